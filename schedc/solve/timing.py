"""When the operations of rank lists run, and how good that is."""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

from schedc.solve.problem import Lists, Problem


class Score(NamedTuple):
    """How good lists are; the smaller the better, in this order of importance.

    ``makespan`` and ``longest_stage`` in the problem's ticks, ``peak`` in its unit of memory, of
    the rank that keeps most.
    """

    makespan: int
    peak: int
    longest_stage: int


def score(problem: Problem, lists: Lists) -> Score | None:
    """The score of ``lists``; None where they deadlock."""
    times = _times(problem, lists)
    if times is None:
        return None
    start, end = times
    ends = [end[operations[-1]] for operations in lists if operations]
    spans = [end[operations[-1]] - start[operations[0]] for operations in lists if operations]
    return Score(max(ends), max(peaks(problem, lists)), max(spans))


def peaks(problem: Problem, lists: Lists) -> list[int]:
    """The most that each rank keeps at once."""
    change = problem.change
    return [max(accumulate(map(change.__getitem__, line)), default=0) for line in lists]


def _times(problem: Problem, lists: Lists) -> tuple[list[int], list[int]] | None:
    """Start and end of each operation; None where some never start.

    As :mod:`schedc.simulate.order` does it: a rank runs until it needs what is not there yet.
    """
    source, lag, duration = problem.source, problem.lag, problem.duration
    start, end = [0] * len(problem), [-1] * len(problem)
    cursor, clock = [0] * problem.ranks, [0] * problem.ranks
    waiting: dict[int, int] = {}
    runnable = list(range(problem.ranks))
    while runnable:
        rank = runnable.pop()
        line, now, at = lists[rank], clock[rank], cursor[rank]
        while at < len(line):
            operation = line[at]
            needed = source[operation]
            if needed >= 0:
                there = end[needed]
                if there < 0:
                    waiting[needed] = rank
                    break
                now = max(now, there + lag[operation])
            start[operation] = now
            now += duration[operation]
            end[operation] = now
            if operation in waiting:
                runnable.append(waiting.pop(operation))
            at += 1
        cursor[rank], clock[rank] = at, now
    return (start, end) if not waiting else None
