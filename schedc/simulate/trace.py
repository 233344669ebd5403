"""The trace of a simulated order: the timeline as plain numbers, ready to be drawn."""

from __future__ import annotations

import numpy as np

from schedc.ir.cost import StageCosts
from schedc.ir.dependencies import Dependencies, dependencies_of
from schedc.ir.order import Op
from schedc.ir.timeline import Figures, Timeline
from schedc.ir.trace import Trace, TraceMessage, TraceTask
from schedc.simulate.figures import figures_json
from schedc.simulate.memory import kept
from schedc.simulate.ticks import in_ticks


def trace_of(timeline: Timeline, figures: Figures, costs: StageCosts, title: str) -> Trace:
    """``timeline`` as a predicted trace in cost units, with messages and activation curves."""
    order = timeline.order
    dependencies = dependencies_of(order)
    places = {-1: "", **{i: span.place for i, span in enumerate(order.spans)}}
    tasks = tuple(
        TraceTask(
            rank,
            Op(op).name,
            stage,
            microbatch,
            start,
            end,
            places[span],
        )
        for rank, table in enumerate(order.tables)
        for (op, stage, microbatch, span), start, end in zip(
            table.tolist(),
            _times(timeline, timeline.start[rank].tolist()),
            _times(timeline, timeline.end[rank].tolist()),
            strict=True,
        )
    )
    return Trace(
        title=title,
        origin="predicted",
        unit="",
        ranks=order.ranks,
        stages=order.stages,
        microbatches=order.microbatches,
        rank_of=order.rank_of,
        tasks=tasks,
        messages=_messages(timeline, dependencies, costs),
        memory=_memory(timeline, costs),
        figures={**figures_json(timeline, figures, costs)},
    )


def _times(timeline: Timeline, ticks: list[int]) -> list[float]:
    """Ticks as time units; the division of whole numbers rounds once."""
    numerator, denominator = timeline.tick.numerator, timeline.tick.denominator
    return [tick * numerator / denominator for tick in ticks]


def _messages(
    timeline: Timeline, dependencies: Dependencies, costs: StageCosts
) -> tuple[TraceMessage, ...]:
    """What crosses from rank to rank, by time of departure."""
    end = np.concatenate(timeline.end)
    (comm,) = in_ticks((costs.comm,), timeline.tick)
    consumers = np.flatnonzero(dependencies.crosses)
    consumers = consumers[np.argsort(end[dependencies.neighbour[consumers]], kind="stable")]
    producers = dependencies.neighbour[consumers]
    departures = end[producers]
    columns = (
        (dependencies.op[producers] == Op.F).tolist(),
        dependencies.rank[producers].tolist(),
        dependencies.rank[consumers].tolist(),
        dependencies.stage[producers].tolist(),
        dependencies.microbatch[producers].tolist(),
        _times(timeline, departures.tolist()),
        _times(timeline, (departures + comm).tolist()),
    )
    return tuple(
        TraceMessage("F" if forward else "B", *rest)
        for forward, *rest in zip(*columns, strict=True)
    )


def _memory(timeline: Timeline, costs: StageCosts) -> tuple[tuple[tuple[float, float], ...], ...]:
    """For each rank, (time, units kept from then on), from time 0 on, where the amount changes."""
    unit, amounts = kept(timeline.order, costs)
    curves: list[tuple[tuple[float, float], ...]] = []
    for start, end, amount in zip(timeline.start, timeline.end, amounts, strict=True):
        ticks = np.stack([start, end], axis=1).reshape(-1).tolist()
        changes = {0: 0}
        for tick, value in zip(ticks, amount.reshape(-1).tolist(), strict=True):
            changes[tick] = value
        curve: list[tuple[int, int]] = []
        for tick, value in changes.items():
            if not curve or value != curve[-1][1]:
                curve.append((tick, value))
        times = _times(timeline, [tick for tick, _ in curve])
        curves.append(
            tuple(
                (time, float(unit * value)) for time, (_, value) in zip(times, curve, strict=True)
            )
        )
    return tuple(curves)
