"""The figures of simulated programs: of the whole step, and of the compute alone."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from schedc.ir.timeline import Figures, Ticks
from schedc.program.instructions import CODE, Code
from schedc.simulate.program import ProgramTimeline

WAITS = {
    "message": Code.WAIT_MESSAGE,
    "reduce": Code.WAIT_REDUCE,
    "count": Code.WAIT_COUNT,
    "tie": Code.WAIT_TIE,
    "norm": Code.WAIT_NORM,
    "report": Code.WAIT_REPORT,
}


@dataclass(frozen=True, slots=True)
class StepFigures:
    """Figures of a whole step, all that is in the stream; times are exact.

    ``busy[r]`` is what rank ``r`` does not wait; ``waits[kind][r]`` how long it waits for its
    ``message`` s, for its reductions (``reduce``), and for ``count tie norm report``.
    """

    makespan: Fraction
    busy: tuple[Fraction, ...]
    waits: dict[str, tuple[Fraction, ...]]

    @property
    def lower_bound(self) -> Fraction:
        return max(self.busy)

    @property
    def bubble(self) -> Fraction:
        return self.makespan - self.lower_bound

    @property
    def bubble_rate(self) -> Fraction:
        return self.bubble / self.makespan if self.makespan else Fraction(0)


def step_figures(timeline: ProgramTimeline) -> StepFigures:
    """The figures ``step_…``: first start to last end of everything, and what ranks wait."""
    tick = timeline.tick
    takes = [end - start for start, end in zip(timeline.start, timeline.end, strict=True)]
    codes = [program.stream.table[:, CODE] for program in timeline.programs]
    ends = [int(end[-1]) for end in timeline.end if len(end)]
    return StepFigures(
        makespan=tick * max(ends, default=0),
        busy=tuple(
            tick * int(took[code < Code.WAIT_MESSAGE].sum())
            for took, code in zip(takes, codes, strict=True)
        ),
        waits={
            kind: tuple(
                tick * int(took[code == wait].sum())
                for took, code in zip(takes, codes, strict=True)
            )
            for kind, wait in WAITS.items()
        },
    )


def compute_figures(timeline: ProgramTimeline) -> Figures:
    """The figures of docs/language.md, of the programs' operations alone (without activations)."""
    tick = timeline.tick
    spans = [_operations(timeline, rank) for rank in range(len(timeline.programs))]
    working = [(int(start[0]), int(end[-1])) for start, end in spans if len(start)]
    first = min((start for start, _ in working), default=0)
    last = max((end for _, end in working), default=0)
    sends = [int((p.stream.table[:, CODE] == Code.SEND).sum()) for p in timeline.programs]
    return Figures(
        makespan=tick * (last - first),
        longest_stage=tick * max((end - start for start, end in working), default=0),
        busy=tuple(tick * int((end - start).sum()) for start, end in spans),
        peak_activations=(),
        messages=sum(sends),
    )


def _operations(timeline: ProgramTimeline, rank: int) -> tuple[Ticks, Ticks]:
    run = timeline.programs[rank].stream.table[:, CODE] == Code.RUN
    return timeline.start[rank][run], timeline.end[rank][run]


def program_figures_json(timeline: ProgramTimeline) -> dict[str, object]:
    """All figures under the names of ``schedc check --json`` and ``step_…``, as plain numbers."""
    compute, step = compute_figures(timeline), step_figures(timeline)
    return {
        "makespan": float(compute.makespan),
        "longest_stage": float(compute.longest_stage),
        "lower_bound": float(compute.lower_bound),
        "busy": [float(busy) for busy in compute.busy],
        "bubble": float(compute.bubble),
        "bubble_rate": float(compute.bubble_rate),
        "bubble_rate_longest_stage": float(compute.bubble_rate_longest_stage),
        "messages": compute.messages,
        "step_makespan": float(step.makespan),
        "step_lower_bound": float(step.lower_bound),
        "step_busy": [float(busy) for busy in step.busy],
        "step_bubble": float(step.bubble),
        "step_bubble_rate": float(step.bubble_rate),
        "step_waits": {kind: [float(w) for w in waits] for kind, waits in step.waits.items()},
    }
