"""The figures of a timeline."""

from __future__ import annotations

from fractions import Fraction

from schedc.ir.cost import StageCosts
from schedc.ir.dependencies import dependencies_of
from schedc.ir.timeline import Figures, Timeline
from schedc.simulate.memory import kept


def figures(timeline: Timeline, costs: StageCosts) -> Figures:
    """Times, peaks and message count of ``timeline``, exact, as docs/language.md defines them.

    ``costs`` are those it was simulated with. A message is what F, or I or B, hands to another
    rank.
    """
    order, tick = timeline.order, timeline.tick
    working = [(s, e) for s, e in zip(timeline.start, timeline.end, strict=True) if len(s)]
    unit, memory = kept(order, costs)
    return Figures(
        makespan=tick * (max(int(e[-1]) for _, e in working) - min(int(s[0]) for s, _ in working)),
        longest_stage=tick * max(int(e[-1] - s[0]) for s, e in working),
        busy=tuple(tick * busy for busy in _busy(timeline)),
        peak_activations=tuple(unit * int(curve.max(initial=0)) for curve in memory),
        messages=int(dependencies_of(order).crosses.sum()),
    )


def _busy(timeline: Timeline) -> list[int]:
    """The ticks that each rank works: a slot of two operations counts once."""
    pairs = timeline.order.pairs or ((),) * timeline.order.ranks
    return [
        int((end - start).sum() - (end - start)[list(firsts)].sum())
        for start, end, firsts in zip(timeline.start, timeline.end, pairs, strict=True)
    ]


def figures_json(timeline: Timeline, found: Figures, costs: StageCosts) -> dict[str, object]:
    """``found`` under the names of ``schedc check --json``, as plain numbers.

    The entries ``deadlock_free`` and ``checks`` are left to who knows them. ``costs`` are those for
    1/P of the model where all stages agree on them, else lists by stage.
    """
    order = timeline.order
    share = Fraction(order.ranks, order.stages)
    printed: dict[str, object] = {
        name: _number(values[0] / share)
        if len(set(values)) == 1
        else [_number(value) for value in values]
        for name, values in (("F", costs.F), ("I", costs.I), ("W", costs.W))
    }
    discount = {"overlap": _number(costs.overlap)} if costs.overlap != 1 else {}
    return {
        "schedule": order.name,
        "P": order.ranks,
        "M": order.microbatches,
        "S": order.stages,
        "costs": {**printed, "comm": _number(costs.comm), **discount},
        "makespan": float(found.makespan),
        "longest_stage": float(found.longest_stage),
        "lower_bound": float(found.lower_bound),
        "bubble": float(found.bubble),
        "bubble_rate": float(found.bubble_rate),
        "bubble_rate_longest_stage": float(found.bubble_rate_longest_stage),
        "peak_activations": [float(peak) for peak in found.peak_activations],
        "messages": found.messages,
    }


def _number(value: Fraction) -> int | float:
    return value.numerator if value.denominator == 1 else float(value)
