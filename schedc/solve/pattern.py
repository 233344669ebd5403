"""``pattern``: one microbatch's slots, repeated, then drawn together.

After *Pipeline Parallelism with Controllable Memory* (2405.15362): a schedule is a building block
that is repeated at a fixed interval; how long a microbatch is alive in it bounds the memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import islice, product

from schedc.solve.holes import fill_holes
from schedc.solve.lookahead import FINALISTS, RATIOS, THRESHOLDS, WORK
from schedc.solve.problem import BACKWARD, FORWARD, WEIGHT, Lists, Problem
from schedc.solve.timing import Score, peaks, score

WINDOWS = (6, 1)
"""Periods that an operation may be moved over at once: far, and hardly."""


@dataclass(frozen=True, slots=True)
class Slot:
    """``kind(stage) at offset`` of microbatch 0; microbatch m is ``period * m`` later."""

    kind: int
    stage: int
    offset: int


@dataclass(frozen=True, eq=False)
class Pattern:
    """The slots of each rank. ``in_holes``: weight gradients take slots that are left free."""

    period: int
    slots: tuple[tuple[Slot, ...], ...]
    in_holes: bool


def lay_out(problem: Problem, pattern: Pattern) -> Lists:
    """The operations of each rank as the pattern has them, one after another."""
    return [list(_line(problem, pattern, slots)) for slots in pattern.slots]


def _line(problem: Problem, pattern: Pattern, slots: tuple[Slot, ...]) -> Iterator[int]:
    """One rank's operations. A hole takes the weight gradient owed longest, if one is owed."""
    M, S, period = problem.microbatches, problem.stages, pattern.period
    taken = {slot.offset % period for slot in slots}
    placed = sorted(
        (slot.offset + period * m, (slot.kind * S + slot.stage) * M + m, slot.kind)
        for slot in slots
        for m in range(M)
    )
    owed: deque[int] = deque()
    time = placed[0][0] if placed else 0
    for at, operation, kind in placed:
        while owed and time < at:
            if time % period not in taken:
                yield owed.popleft()
            time += 1
        time = at + 1
        yield operation
        if kind == BACKWARD and pattern.in_holes:
            owed.append(operation + S * M)
    yield from owed


def draw_together(problem: Problem, pattern: Pattern) -> Lists:
    """The pattern's lists with operations moved earlier where that ends sooner.

    An operation moves over others only if its input is there, its rank would idle otherwise, and
    no rank ever keeps more than in the pattern as it is laid out. Of the ways to do so, with
    weight gradients in the pattern's holes or in those that the moves leave, the best.
    """
    lists = lay_out(problem, pattern)
    bounded = replace(problem, limits=tuple(peaks(problem, lists)))
    windows = [periods * max(map(len, pattern.slots), default=1) for periods in WINDOWS]
    best = (_must(score(bounded, lists)), lists)
    seen = {_digest(lists)}
    # The more operations, the fewer ways are tried, so that the time grows with the operations.
    count = max(FINALISTS, WORK // len(problem))
    for candidate in islice(_candidates(bounded, pattern, lists, windows), count):
        if candidate is None or _digest(candidate) in seen:
            continue
        seen.add(_digest(candidate))
        value = score(bounded, candidate)
        if value is not None and value < best[0]:
            best = (value, candidate)
    return best[1]


def _candidates(
    problem: Problem, pattern: Pattern, lists: Lists, windows: list[int]
) -> Iterator[Lists | None]:
    yield _advance(problem, lists, windows[0], eager=True)
    yield _advance(problem, lists, windows[0], eager=False)
    if not pattern.in_holes:
        return
    weights = WEIGHT * problem.stages * problem.microbatches
    skeleton = [[operation for operation in line if operation < weights] for line in lists]
    for threshold in THRESHOLDS:
        yield fill_holes(problem, skeleton, threshold)
    ways = product(windows, RATIOS, sorted({0, problem.latency}), (True, False))
    for window, ratio, latency, eager in ways:
        moved = _advance(problem.without_weights(ratio, latency), skeleton, window, eager)
        for threshold in THRESHOLDS:
            yield fill_holes(problem, moved, threshold)


def _digest(lists: Lists) -> tuple[int, ...]:
    return tuple(hash(tuple(line)) for line in lists)


def _must(value: Score | None) -> Score:
    assert value is not None, "a pattern whose slots follow its dependencies cannot deadlock"
    return value


def _advance(problem: Problem, lists: Lists, window: int, eager: bool) -> Lists:
    """The lists after one run in which a rank never waits if it has something else to do.

    Where the next operation of a rank has not got its input, the first of the ``window`` following
    ones that has, and that memory allows, goes before it; unless ``eager``, not where the input
    will come before that one has ended.
    """
    ranks = [_Pending(problem, line, rank, window) for rank, line in enumerate(lists)]
    where = [rank for rank in problem.rank_of for _ in range(problem.microbatches)]
    size = len(where)
    arrived: dict[int, int] = {}
    followers: list[list[int]] = [[] for _ in range(len(problem))]
    for operation, needed in enumerate(problem.source):
        if needed < 0:
            arrived[operation] = 0
        else:
            followers[needed].append(operation)
    wake = [(0, rank) for rank in range(problem.ranks)]
    while wake:
        now, rank = heappop(wake)
        here = ranks[rank]
        if here.free > now:
            continue
        chosen, at_last = here.choose(now, arrived, eager)
        if chosen is None:
            if at_last is not None:
                heappush(wake, (at_last, rank))
            continue
        end = here.run(chosen, now)
        heappush(wake, (end, rank))
        for operation in followers[here.done[-1]]:
            arrival = end + problem.lag[operation]
            arrived[operation] = arrival
            heappush(wake, (arrival, where[operation % size]))
    return [here.done for here in ranks]


class _Pending:
    """What a rank still has to run, in order: a window of it at hand."""

    def __init__(self, problem: Problem, line: list[int], rank: int, window: int) -> None:
        self.change, self.duration = problem.change, problem.duration
        self.forwards = (FORWARD + 1) * problem.stages * problem.microbatches
        self.limit = problem.limits[rank] if problem.limits is not None else None
        self.rest = iter(line)
        self.near = list(islice(self.rest, window))
        self.done: list[int] = []
        self.free = self.kept = 0

    def choose(
        self, now: int, arrived: dict[int, int], eager: bool
    ) -> tuple[int | None, int | None]:
        """What to run now, as an index of ``near``; else when the next input comes, if known."""
        kept = most = self.kept
        soonest = None
        for index, operation in enumerate(self.near):
            arrival = arrived.get(operation)
            if arrival is not None and arrival <= now:
                if index == 0 or self._fits(operation, most):
                    if self._should_wait(index, eager, soonest, now + self.duration[operation]):
                        return None, soonest
                    return index, None
            elif arrival is not None and (soonest is None or arrival < soonest):
                soonest = arrival
            kept += self.change[operation]
            most = max(most, kept)
        return None, soonest

    @staticmethod
    def _should_wait(index: int, eager: bool, soonest: int | None, end: int) -> bool:
        """Whether an operation before the one chosen gets its input before that one ends."""
        return index > 0 and not eager and soonest is not None and soonest < end

    def _fits(self, operation: int, most: int) -> bool:
        """Whether a forward may go before operations that keep up to ``most``."""
        if operation >= self.forwards or self.limit is None:
            return True
        return most + self.change[operation] <= self.limit

    def run(self, index: int, now: int) -> int:
        operation = self.near.pop(index)
        self.near += islice(self.rest, 1)
        self.done.append(operation)
        self.kept += self.change[operation]
        self.free = now + self.duration[operation]
        return self.free
