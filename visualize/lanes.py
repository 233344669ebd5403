"""A rank's time, in order: operations side by side, and the gaps between them. No pixels here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from schedc.ir.trace import Trace, TraceTask

TOLERANCE = 1e-9
"""Times closer than this share of the span are the same: they are printed floats."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What runs on a rank from ``start`` to ``end``.

    One task as a rule, none in a gap, several where tasks overlap; ``lanes[i]`` is then the
    sub-lane of ``tasks[i]``, of ``width`` ones. ``outside`` marks gaps before the first or after
    the last operation of all ranks.
    """

    start: float
    end: float
    tasks: tuple[TraceTask, ...] = ()
    lanes: tuple[int, ...] = ()
    width: int = 1
    outside: bool = False


@dataclass(frozen=True, slots=True)
class RankLane:
    """The cells of a rank, which tile the span, its stages, and the time it executes something."""

    rank: int
    stages: tuple[int, ...]
    cells: tuple[Cell, ...]
    busy: float


def check_trace(trace: Trace) -> None:
    """Raises ValueError where a trace cannot be drawn: ranks out of range, impossible times."""
    ranks = [*trace.rank_of, *(item.rank for item in (*trace.tasks, *trace.others))]
    ranks += [rank for message in trace.messages for rank in (message.source, message.target)]
    for rank in ranks:
        if not 0 <= rank < trace.ranks:
            raise ValueError(f"the trace names rank {rank} but has {trace.ranks} ranks")
    if len(trace.memory) > trace.ranks:
        raise ValueError(f"{len(trace.memory)} memory curves for {trace.ranks} ranks")
    for item in (*trace.tasks, *trace.messages, *trace.others):
        if not -math.inf < item.start <= item.end < math.inf:
            raise ValueError(f"impossible times, {item.start} to {item.end}: {item}")


def makespan_of(trace: Trace) -> tuple[float, float]:
    """The first start and the last end of an operation on any rank."""
    if not trace.tasks:
        return 0.0, 0.0
    return min(task.start for task in trace.tasks), max(task.end for task in trace.tasks)


def span_of(trace: Trace) -> tuple[float, float]:
    """The time that a chart must show: operations, messages and all others."""
    spans = (*trace.tasks, *trace.messages, *trace.others)
    if not spans:
        return 0.0, 0.0
    return min(item.start for item in spans), max(item.end for item in spans)


def stages_of(trace: Trace) -> tuple[tuple[int, ...], ...]:
    """The stages of each rank, in model order: those placed there and those seen there."""
    found: list[set[int]] = [set() for _ in range(trace.ranks)]
    for stage, rank in enumerate(trace.rank_of):
        found[rank].add(stage)
    for task in trace.tasks:
        found[task.rank].add(task.stage)
    return tuple(tuple(sorted(stages)) for stages in found)


def rank_lanes(trace: Trace, span: tuple[float, float]) -> tuple[RankLane, ...]:
    """Each rank's cells over ``span``."""
    tasks: list[list[TraceTask]] = [[] for _ in range(trace.ranks)]
    for task in trace.tasks:
        tasks[task.rank].append(task)
    whole = makespan_of(trace)
    stages = stages_of(trace)
    same = TOLERANCE * (span[1] - span[0])
    lanes: list[RankLane] = []
    for rank, own in enumerate(tasks):
        runs = _clusters(own, same)
        busy = sum(cell.end - cell.start for cell in runs)
        cells = _with_gaps(runs, span, whole, same)
        lanes.append(RankLane(rank, stages[rank], cells, busy))
    return tuple(lanes)


def sublanes(spans: Sequence[tuple[float, float]], same: float) -> tuple[int, ...]:
    """A lane for each of ``spans`` (sorted by start) so that none overlap within a lane."""
    ends: list[float] = []
    chosen: list[int] = []
    for start, end in spans:
        lane = next((i for i, last in enumerate(ends) if last <= start + same), len(ends))
        if lane == len(ends):
            ends.append(end)
        ends[lane] = end
        chosen.append(lane)
    return tuple(chosen)


def _clusters(tasks: list[TraceTask], same: float) -> list[Cell]:
    """Tasks in order of time; those that overlap become one cell."""
    groups: list[list[TraceTask]] = []
    reach = float("-inf")
    for task in sorted(tasks, key=lambda t: (t.start, t.end, t.op, t.stage, t.microbatch)):
        if groups and task.start < reach - same:
            groups[-1].append(task)
            reach = max(reach, task.end)
        else:
            groups.append([task])
            reach = task.end
    cells: list[Cell] = []
    for group in groups:
        lanes = sublanes([(task.start, task.end) for task in group], same)
        start, end = group[0].start, max(task.end for task in group)
        cells.append(Cell(start, end, tuple(group), lanes, max(lanes) + 1))
    return cells


def _with_gaps(
    runs: list[Cell], span: tuple[float, float], whole: tuple[float, float], same: float
) -> tuple[Cell, ...]:
    """``runs`` and the gaps between them, which are cut where the makespan begins and ends."""
    cells: list[Cell] = []
    at = span[0]
    for run in (*runs, None):
        until = span[1] if run is None else run.start
        cuts = [at, *(edge for edge in whole if at + same < edge < until - same), until]
        for start, end in pairwise(cuts):
            if end - start > same:
                outside = end <= whole[0] + same or start >= whole[1] - same
                cells.append(Cell(start, end, outside=outside))
        if run is not None:
            cells.append(run)
            at = run.end
    return tuple(cells)
