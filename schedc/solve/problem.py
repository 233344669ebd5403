"""What is to be ordered: operations with costs in ticks, memory and its limit, on ranks.

Everything is a whole number and operations are numbers too, so that the searches of this folder
are plain loops over lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np

from schedc.ir.cost import StageCosts
from schedc.ir.order import Op, Table
from schedc.simulate.ticks import in_ticks, tick_of

FORWARD, BACKWARD, WEIGHT = range(3)
"""Kinds of operations; the backward is I where there are weight gradients of their own, else B."""

Lists = list[list[int]]
"""For each rank its operations, one after another."""

FINE = 10
"""Ticks are made this much finer, so that a cost can be taken in tenths of itself."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Operations ``(kind * stages + stage) * microbatches + microbatch`` to be put in order.

    ``durations[kind][stage]`` and ``latency`` (of an edge between two ranks) are in ticks.
    ``kept[stage]`` is what a forward keeps, ``freed[stage]`` how much of it the backward frees at
    its end; the weight gradient frees the rest. ``limits[rank]`` bounds what a rank keeps, in the
    same unit; None where nothing does.
    """

    ranks: int
    microbatches: int
    rank_of: tuple[int, ...]
    split: bool
    durations: tuple[tuple[int, ...], ...]
    latency: int
    kept: tuple[int, ...]
    freed: tuple[int, ...]
    limits: tuple[int, ...] | None
    memory_unit: Fraction
    """Activation units in one of ``kept``."""

    @property
    def stages(self) -> int:
        return len(self.rank_of)

    @property
    def kinds(self) -> tuple[int, ...]:
        return (FORWARD, BACKWARD, WEIGHT) if self.split else (FORWARD, BACKWARD)

    def __len__(self) -> int:
        """The number of operations."""
        return len(self.kinds) * self.stages * self.microbatches

    @cached_property
    def stages_of(self) -> tuple[tuple[int, ...], ...]:
        """The stages that each rank holds, in model order."""
        return tuple(
            tuple(s for s, r in enumerate(self.rank_of) if r == rank) for rank in range(self.ranks)
        )

    @cached_property
    def source(self) -> list[int]:
        """The operation whose result each operation needs, -1 for none.

        A forward of one's own is no entry of its own: it ends before the next stage's does.
        """
        M, S = self.microbatches, self.stages
        size = S * M
        forward = np.arange(size) - M
        forward[:M] = -1
        backward = np.arange(size, 2 * size) + M
        backward[size - M :] = np.arange(size - M, size)
        weight = np.arange(size, 2 * size)
        return np.concatenate((forward, backward, weight)[: len(self.kinds)]).tolist()

    @cached_property
    def duration(self) -> list[int]:
        """What each operation takes."""
        table = np.array(self.durations[: len(self.kinds)], dtype=object).reshape(-1)
        return np.repeat(table, self.microbatches).tolist()

    @cached_property
    def lag(self) -> list[int]:
        """What lies between the end of each operation's source and its own earliest start."""
        M, S = self.microbatches, self.stages
        crosses = [a != b for a, b in zip(self.rank_of, self.rank_of[1:], strict=False)]
        forward = [False, *crosses]
        backward = [*crosses, False]
        weight = [False] * S
        flags = [forward, backward, weight][: len(self.kinds)]
        return [self.latency * flag for kind in flags for flag in kind for _ in range(M)]

    @cached_property
    def change(self) -> list[int]:
        """What each operation adds to the memory of its rank; a forward at its start."""
        M = self.microbatches
        rest = [freed - kept for kept, freed in zip(self.kept, self.freed, strict=True)]
        kinds = (self.kept, [-freed for freed in self.freed], rest)[: len(self.kinds)]
        return [change for kind in kinds for change in kind for _ in range(M)]

    def without_weights(self, ratio: int, latency: int) -> Problem:
        """The same pipeline with backwards only, of ``ratio`` tenths of their time.

        A backward frees all; what weight gradients take is ignored.
        """
        forward, backward, _ = self.durations
        scaled = tuple(cost * ratio // FINE for cost in backward)
        durations = (forward, scaled, (0,) * self.stages)
        return replace(self, split=False, durations=durations, latency=latency, freed=self.kept)

    def table(self, operations: Sequence[int], spans: Sequence[int]) -> Table:
        """A rank's operations as a table of an :class:`schedc.ir.order.Order`.

        ``spans[kind * stages + stage]`` is where such an operation was written.
        """
        ops = np.array([Op.F, Op.I if self.split else Op.B, Op.W])
        number = np.array(operations, dtype=np.int64)
        task, microbatch = np.divmod(number, self.microbatches)
        kind, stage = np.divmod(task, self.stages)
        places = np.array(spans, dtype=np.int64)[task]
        return np.stack((ops[kind], stage, microbatch, places), axis=1).astype(np.int32)


def make_problem(
    ranks: int,
    microbatches: int,
    rank_of: tuple[int, ...],
    costs: StageCosts,
    *,
    split: bool,
    limits: Sequence[Fraction] | None = None,
) -> Problem:
    """The problem of a placement under ``costs``; ``limits`` are activation units of each rank."""
    times = (*costs.F, *costs.I, *costs.W, costs.comm)
    tick = tick_of(times) / FINE
    forward, inputs, weights = (tuple(in_ticks(x, tick)) for x in (costs.F, costs.I, costs.W))
    backward = inputs if split else tuple(i + w for i, w in zip(inputs, weights, strict=True))
    share = costs.mem_I if split else Fraction(1)
    freed = [unit * share for unit in costs.units]
    unit = tick_of((*costs.units, *freed))
    return Problem(
        ranks=ranks,
        microbatches=microbatches,
        rank_of=rank_of,
        split=split,
        durations=(forward, backward, weights),
        latency=in_ticks((costs.comm,), tick)[0],
        kept=tuple(in_ticks(costs.units, unit)),
        freed=tuple(in_ticks(freed, unit)),
        limits=None if limits is None else tuple(int(limit // unit) for limit in limits),
        memory_unit=unit,
    )
