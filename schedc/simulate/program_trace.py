"""The trace of simulated programs: operations, messages, reductions and sums, bytes alive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

import numpy as np

from schedc.ir.order import Op
from schedc.ir.timeline import Ticks
from schedc.ir.trace import Trace, TraceMessage, TraceOther, TraceTask
from schedc.program.instructions import (
    CODE,
    MICROBATCH,
    OP,
    PEER,
    PLACE,
    STAGE,
    Code,
)
from schedc.simulate.program import ProgramTimeline
from schedc.simulate.program_figures import program_figures_json
from schedc.simulate.program_memory import MemoryProfile


def trace_of_programs(
    timeline: ProgramTimeline,
    memory: Sequence[MemoryProfile] = (),
    *,
    title: str,
    unit: str = "s",
    figures: Mapping[str, object] | None = None,
    memory_limit: float | None = None,
    notes: tuple[str, ...] = (),
) -> Trace:
    """``timeline`` as a predicted trace, in the unit of its ticks; memory in bytes.

    Its figures are those of the compute, those of the step, each rank's ``peak_bytes`` where
    ``memory`` is given, and ``figures``, which win over equal names.
    """
    programs = timeline.programs
    found = program_figures_json(timeline)
    if memory:
        found["peak_bytes"] = [profile.peak for profile in memory]
        found["peak_bytes_of"] = [profile.at_peak for profile in memory]
    rank_of = {stage: p.rank for p in programs for stage, _ in p.stages}
    ranks = range(len(programs))
    return Trace(
        title=title,
        origin="predicted",
        unit=unit,
        ranks=len(programs),
        stages=len(rank_of),
        microbatches=max((p.microbatches for p in programs), default=0),
        rank_of=tuple(rank for _, rank in sorted(rank_of.items())),
        tasks=tuple(task for rank in ranks for task in _tasks(timeline, rank)),
        messages=_messages(timeline),
        others=tuple(other for rank in ranks for other in _others(timeline, rank)),
        memory=tuple(_curve(timeline, rank, profile) for rank, profile in enumerate(memory)),
        memory_unit="bytes",
        memory_limit=memory_limit,
        figures={**found, **(figures or {})},
        notes=notes,
    )


def _times(tick: Fraction, ticks: Iterable[int]) -> list[float]:
    """Ticks as time units; the division of whole numbers rounds once."""
    numerator, denominator = tick.numerator, tick.denominator
    return [count * numerator / denominator for count in ticks]


def _spans(timeline: ProgramTimeline, rank: int, rows: Ticks) -> tuple[list[float], list[float]]:
    start, end = timeline.start[rank][rows], timeline.end[rank][rows]
    return _times(timeline.tick, start.tolist()), _times(timeline.tick, end.tolist())


def _tasks(timeline: ProgramTimeline, rank: int) -> list[TraceTask]:
    stream = timeline.programs[rank].stream
    places = (*stream.places, "")  # the last where the column says -1
    rows = np.flatnonzero(stream.table[:, CODE] == Code.RUN)
    starts, ends = _spans(timeline, rank, rows)
    tasks: list[list[int]] = stream.table[rows][:, (OP, STAGE, MICROBATCH, PLACE)].tolist()
    return [
        TraceTask(rank, Op(op).name, stage, microbatch, start, end, places[place])
        for (op, stage, microbatch, place), start, end in zip(tasks, starts, ends, strict=True)
    ]


def _messages(timeline: ProgramTimeline) -> tuple[TraceMessage, ...]:
    """Every send, by time of departure."""
    found: list[tuple[int, int, list[int]]] = []
    for rank, program in enumerate(timeline.programs):
        table = program.stream.table
        rows = np.flatnonzero(table[:, CODE] == Code.SEND)
        links: list[list[int]] = table[rows][:, (OP, PEER, STAGE, MICROBATCH)].tolist()
        posted: list[int] = timeline.end[rank][rows].tolist()
        found += [(time, rank, link) for time, link in zip(posted, links, strict=True)]
    found.sort()
    departures = _times(timeline.tick, (time for time, _, _ in found))
    arrivals = _times(timeline.tick, (time + timeline.message for time, _, _ in found))
    return tuple(
        TraceMessage("F" if op == Op.F else "B", rank, peer, stage, microbatch, sent, there)
        for (_, rank, (op, peer, stage, microbatch)), sent, there in zip(
            found, departures, arrivals, strict=True
        )
    )


def _others(timeline: ProgramTimeline, rank: int) -> list[TraceOther]:
    """Reductions, sums and the optimizer's step, by start; those that take no time are left out."""
    spans = [(r.start, r.end, f"reduce {r.name}") for r in timeline.reductions[rank]]
    spans += [(sum_.start, sum_.end, sum_.name) for sum_ in timeline.sums[rank]]
    rows = np.flatnonzero(timeline.programs[rank].stream.table[:, CODE] == Code.STEP)
    steps = zip(timeline.start[rank][rows].tolist(), timeline.end[rank][rows].tolist(), strict=True)
    spans += [(start, end, "step") for start, end in steps]
    spans = sorted(span for span in spans if span[0] < span[1])
    return [
        TraceOther(rank, name, *_times(timeline.tick, (start, end))) for start, end, name in spans
    ]


def _curve(
    timeline: ProgramTimeline, rank: int, profile: MemoryProfile
) -> tuple[tuple[float, float], ...]:
    """(time, bytes from then on), where they change.

    An instruction has its highest amount from its start to its end; of several changes at one
    moment the last counts.
    """
    start, end = timeline.start[rank], timeline.end[rank]
    times = np.stack([start, end], axis=1).reshape(-1)
    amounts = np.stack([profile.highest, profile.after], axis=1).reshape(-1)
    final = np.append(np.diff(times) > 0, np.True_)[: len(times)]
    times, amounts = times[final], amounts[final]
    changes = np.insert(np.diff(amounts) != 0, 0, True)[: len(amounts)]
    at = _times(timeline.tick, times[changes].tolist())
    bytes_: list[int] = amounts[changes].tolist()
    return tuple((time, float(amount)) for time, amount in zip(at, bytes_, strict=True))
