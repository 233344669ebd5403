"""List scheduling: each rank that is free takes what is preferred among what is ready."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from schedc.solve.problem import BACKWARD, FORWARD, WEIGHT, Lists, Problem


@dataclass(frozen=True, slots=True)
class Tie:
    """Which of several ready operations of one kind goes first.

    ``deepest``: the stage last in the model, else the first one; ``oldest``: the microbatch with
    the smallest number, else the largest; ``stage_first``: which of the two decides first.
    """

    deepest: bool = True
    oldest: bool = True
    stage_first: bool = True


@dataclass(frozen=True, slots=True)
class Preference:
    """What a policy says. ``kinds`` are in order of preference, ``ties`` by kind.

    A forward of another stage than the last one on its rank leaves room for ``reserve``
    microbatches of that last one.
    """

    kinds: tuple[int, ...]
    ties: tuple[Tie, Tie, Tie] = (Tie(), Tie(), Tie())
    reserve: int = 0


@dataclass(frozen=True, eq=False)
class Listing:
    """The lists, complete or up to where all ranks had to stop for want of memory.

    ``blocked[rank]`` are the forwards that were ready there and did not fit, as numbers.
    """

    lists: Lists
    complete: bool
    blocked: list[list[int]]


def list_schedule(problem: Problem, preference: Preference) -> Listing:
    """Lists made by going through time; no rank idles while something allowed is ready.

    An operation is ready once its input has arrived. Linear in the operations (times the logarithm
    of how many are ready at once).
    """
    ranks = [_Rank(problem, preference, rank) for rank in range(problem.ranks)]
    M, S, latency, rank_of = problem.microbatches, problem.stages, problem.latency, problem.rank_of
    for m in range(M):
        ranks[rank_of[0]].add(FORWARD, 0, m)
    wake = [(0, rank) for rank in range(problem.ranks)]
    left = len(problem)
    while wake:
        now, rank = heappop(wake)
        here = ranks[rank]
        if here.free > now:
            continue
        here.admit(now)
        chosen = here.choose()
        if chosen is None:
            if here.coming:
                heappush(wake, (here.coming[0][0], rank))
            continue
        kind, stage, m = chosen
        end = here.run(kind, stage, m, now)
        left -= 1
        heappush(wake, (end, rank))
        if kind == BACKWARD and problem.split:
            heappush(here.coming, (end, WEIGHT, stage, m))
        following = _following(kind, stage, S)
        if following is not None:
            there = rank_of[following[1]]
            arrival = end + (latency if there != rank else 0)
            heappush(ranks[there].coming, (arrival, *following, m))
            heappush(wake, (arrival, there))
    return Listing(
        [here.done for here in ranks], left == 0, [here.blocked_forwards() for here in ranks]
    )


def _following(kind: int, stage: int, stages: int) -> tuple[int, int] | None:
    """The kind and stage that needs the result of an operation."""
    if kind == FORWARD:
        return (FORWARD, stage + 1) if stage + 1 < stages else (BACKWARD, stage)
    if kind == BACKWARD and stage > 0:
        return BACKWARD, stage - 1
    return None


class _Rank:
    """What is ready on a rank, what comes, what it keeps."""

    def __init__(self, problem: Problem, preference: Preference, rank: int) -> None:
        self.problem, self.preference = problem, preference
        stages = problem.stages_of[rank]
        self.last = stages[-1] if stages else -1
        self.limit = problem.limits[rank] if problem.limits is not None else None
        self.free = self.kept = 0
        self.done: list[int] = []
        self.coming: list[tuple[int, int, int, int]] = []
        """(arrival, kind, stage, microbatch), the earliest first."""
        self.ready: list[dict[int, list[int]]] = [
            {stage: [] for stage in sorted(stages, reverse=tie.deepest)} for tie in preference.ties
        ]
        """By kind and stage, in the order of preference: a heap of signed microbatches."""
        self.signs = tuple(1 if tie.oldest else -1 for tie in preference.ties)
        held_back = preference.reserve * problem.kept[self.last] if stages else 0
        self.needs = {
            stage: problem.kept[stage] + (held_back if stage != self.last else 0)
            for stage in stages
        }
        self.ways = [(kind, preference.ties[kind].stage_first) for kind in preference.kinds]

    def add(self, kind: int, stage: int, microbatch: int) -> None:
        heappush(self.ready[kind][stage], self.signs[kind] * microbatch)

    def admit(self, now: int) -> None:
        coming = self.coming
        while coming and coming[0][0] <= now:
            _, kind, stage, microbatch = heappop(coming)
            self.add(kind, stage, microbatch)

    def choose(self) -> tuple[int, int, int] | None:
        """The kind, stage and microbatch to run now."""
        for kind, stage_first in self.ways:
            best = None
            for stage, waiting in self.ready[kind].items():
                if not waiting or (kind == FORWARD and not self.fits(stage)):
                    continue
                if best is None or waiting[0] < self.ready[kind][best][0]:
                    best = stage
                if stage_first:
                    break
            if best is not None:
                return kind, best, self.signs[kind] * heappop(self.ready[kind][best])
        return None

    def fits(self, stage: int) -> bool:
        return self.limit is None or self.kept + self.needs[stage] <= self.limit

    def run(self, kind: int, stage: int, microbatch: int, now: int) -> int:
        """Runs an operation; when it ends."""
        problem = self.problem
        operation = (kind * problem.stages + stage) * problem.microbatches + microbatch
        self.done.append(operation)
        self.kept += problem.change[operation]
        self.free = now + problem.durations[kind][stage]
        return self.free

    def blocked_forwards(self) -> list[int]:
        M, sign = self.problem.microbatches, self.signs[FORWARD]
        return [
            stage * M + sign * signed
            for stage, waiting in self.ready[FORWARD].items()
            for signed in sorted(waiting)
        ]
