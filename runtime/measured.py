"""A measured step as a trace: what ``schedc viz`` draws and what stands beside the prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from schedc.ir.order import Op
from schedc.ir.trace import Trace, TraceMessage, TraceOther, TraceTask
from schedc.program.instructions import (
    CODE,
    MICROBATCH,
    OP,
    PLACE,
    QUEUE,
    REF,
    SEQUENCE,
    STAGE,
    Code,
)
from schedc.program.program import Programs, RankProgram

WAITS = {
    "message": Code.WAIT_MESSAGE,
    "reduce": Code.WAIT_REDUCE,
    "count": Code.WAIT_COUNT,
    "tie": Code.WAIT_TIE,
    "norm": Code.WAIT_NORM,
    "report": Code.WAIT_REPORT,
}
SUMS = {
    Code.WAIT_COUNT: "count",
    Code.WAIT_TIE: "tie",
    Code.WAIT_NORM: "norm",
    Code.WAIT_REPORT: "report",
}


@dataclass(frozen=True, slots=True)
class RankTimes:
    """One pipeline rank's step: its begin, and each row's end, in ns of a clock all ranks share.

    ``memory[i]`` is the highest amount of bytes alive during row ``i``; empty if not measured.
    """

    began: int
    ends: Sequence[int]
    memory: Sequence[int] = ()


def measured_trace(
    programs: Programs,
    times: Sequence[RankTimes],
    title: str,
    figures: Mapping[str, object],
    notes: tuple[str, ...],
) -> Trace:
    """The trace of a measured step; ``times`` by pipeline rank. Seconds from the first begin."""
    zero = min(time.began for time in times)
    steps = [_Step(p, t, zero) for p, t in zip(programs, times, strict=True)]
    rank_of = {stage: program.rank for program in programs for stage, _ in program.stages}
    return Trace(
        title=title,
        origin="measured",
        unit="s",
        ranks=len(programs),
        stages=len(rank_of),
        microbatches=programs[0].microbatches,
        rank_of=tuple(rank for _, rank in sorted(rank_of.items())),
        tasks=tuple(task for step in steps for task in step.tasks()),
        messages=_messages(steps),
        others=tuple(other for step in steps for other in step.others()),
        memory=tuple(step.curve() for step in steps) if times[0].memory else (),
        memory_unit="bytes",
        figures={**_figures(steps), **figures},
        notes=notes,
    )


class _Step:
    """One rank's rows with their starts and ends in seconds."""

    def __init__(self, program: RankProgram, times: RankTimes, zero: int) -> None:
        self.program, self.memory = program, times.memory
        self.table = program.stream.table
        ends = np.array([times.began, *times.ends], dtype=np.float64)
        ends = (ends - zero) / 1e9
        self.start, self.end = ends[:-1], ends[1:]
        self.code = self.table[:, CODE]

    def rows(self, code: Code) -> list[int]:
        return np.flatnonzero(self.code == code).tolist()

    def takes(self, code: Code) -> float:
        at = self.code == code
        return float((self.end[at] - self.start[at]).sum())

    def tasks(self) -> list[TraceTask]:
        places = (*self.program.stream.places, "")
        return [
            TraceTask(
                self.program.rank,
                Op(self.table[row, OP]).name,
                int(self.table[row, STAGE]),
                int(self.table[row, MICROBATCH]),
                float(self.start[row]),
                float(self.end[row]),
                places[self.table[row, PLACE]],
            )
            for row in self.rows(Code.RUN)
        ]

    def others(self) -> list[TraceOther]:
        """What waiting for sums and the optimizer take: what the step is longer by."""
        spans: list[tuple[int, str]] = []
        for row in self.rows(Code.WAIT_REDUCE):
            spans.append((row, f"reduce {self.program.stream.units[self.table[row, REF]]}"))
        for code, name in SUMS.items():
            spans += [(row, name) for row in self.rows(code)]
        spans += [(row, "step") for row in self.rows(Code.STEP)]
        return [
            TraceOther(self.program.rank, name, float(self.start[row]), float(self.end[row]))
            for row, name in sorted(spans)
        ]

    def curve(self) -> tuple[tuple[float, float], ...]:
        """(time, bytes from then on): an instruction's highest amount from its start."""
        curve: list[tuple[float, float]] = []
        for start, amount in zip(self.start.tolist(), self.memory, strict=True):
            if not curve or curve[-1][1] != amount:
                curve.append((start, float(amount)))
        return tuple(curve)


def _messages(steps: Sequence[_Step]) -> tuple[TraceMessage, ...]:
    """Every message, from when both sides had posted it until it is known to have been there.

    That is the end of the first wait for it, the receiver's or the sender's: an upper bound where
    both came late.
    """
    there: dict[tuple[str, int], tuple[float, float]] = {}
    for step in steps:
        for row in step.rows(Code.WAIT_MESSAGE):
            post = int(step.table[row, REF])
            posted, seen = float(step.end[post]), float(step.end[row])
            key = _key(step, post)
            before = there.get(key)
            there[key] = (
                (posted, seen) if before is None else (max(before[0], posted), min(before[1], seen))
            )
    messages: list[TraceMessage] = []
    for step in steps:
        for row in step.rows(Code.SEND):
            queue = step.program.queues[step.table[row, QUEUE]]
            start, end = there[_key(step, row)]
            messages.append(
                TraceMessage(
                    "F" if step.table[row, OP] == Op.F else "B",
                    queue.source,
                    queue.target,
                    int(step.table[row, STAGE]),
                    int(step.table[row, MICROBATCH]),
                    start,
                    max(start, end),
                )
            )
    return tuple(sorted(messages, key=lambda m: (m.start, m.source)))


def _key(step: _Step, row: int) -> tuple[str, int]:
    """What identifies a message on both sides."""
    return str(step.program.queues[step.table[row, QUEUE]]), int(step.table[row, SEQUENCE])


def _figures(steps: Sequence[_Step]) -> dict[str, object]:
    """The figures of ``schedc check --json``, of the operations alone, and ``step_…``."""
    runs = [(step.start[step.code == Code.RUN], step.end[step.code == Code.RUN]) for step in steps]
    first = min(float(start[0]) for start, _ in runs)
    last = max(float(end[-1]) for _, end in runs)
    busy = [float((end - start).sum()) for start, end in runs]
    longest = max(float(end[-1] - start[0]) for start, end in runs)
    whole = max(float(step.end[-1]) for step in steps)
    working = [step.code < Code.WAIT_MESSAGE for step in steps]
    step_busy = [float((s.end - s.start)[at].sum()) for s, at in zip(steps, working, strict=True)]
    makespan, bound, step_bound = last - first, max(busy), max(step_busy)
    found: dict[str, object] = {
        "makespan": makespan,
        "longest_stage": longest,
        "lower_bound": bound,
        "busy": busy,
        "bubble": makespan - bound,
        "bubble_rate": (makespan - bound) / makespan,
        "bubble_rate_longest_stage": 1 - bound / longest,
        "messages": sum(len(step.rows(Code.SEND)) for step in steps),
        "step_makespan": whole,
        "step_lower_bound": step_bound,
        "step_busy": step_busy,
        "step_bubble": whole - step_bound,
        "step_bubble_rate": (whole - step_bound) / whole,
        "step_waits": {name: [s.takes(code) for s in steps] for name, code in WAITS.items()},
    }
    if steps[0].memory:
        found["peak_bytes"] = [max(step.memory) for step in steps]
    return found
