"""The order: for each pipeline rank, the operations it executes, one after another.

Every body of a ``.sched`` file (``order``, ``policy``, ``pattern``, ``solve``) becomes this, and so
does a PyTorch schedule CSV. Orders are large, so each rank's operations are one integer table;
:class:`Task` is the view for reading, printing and errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from schedc.diagnostics import Span


class Op(IntEnum):
    """The operations, in PyTorch's letters."""

    F = 0
    B = 1
    I = 2  # noqa: E741  (the field's letter)
    W = 3
    R = 4


@dataclass(frozen=True, slots=True)
class Task:
    """One operation on one stage and microbatch."""

    op: Op
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.op.name}(stage {self.stage}, microbatch {self.microbatch})"


OP, STAGE, MICROBATCH, SPAN = range(4)
"""Columns of a rank's table; SPAN indexes ``Order.spans`` and is -1 where there is no source."""

Table = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Order:
    """What each rank executes, in order.

    ``rank_of[s]`` is the pipeline rank that holds stage ``s``. ``tables[r]`` has one row an
    operation of rank ``r`` with the columns OP, STAGE, MICROBATCH, SPAN. ``pairs[r]`` are the rows
    of rank ``r`` that share one slot with the row behind them (``overlap``); empty where no rank
    has any.
    """

    name: str
    ranks: int
    microbatches: int
    rank_of: tuple[int, ...]
    tables: tuple[Table, ...]
    spans: tuple[Span, ...] = ()
    pairs: tuple[tuple[int, ...], ...] = ()

    @property
    def stages(self) -> int:
        return len(self.rank_of)

    @cached_property
    def stages_of(self) -> tuple[tuple[int, ...], ...]:
        """The stages that each rank holds, in model order."""
        return tuple(
            tuple(s for s, r in enumerate(self.rank_of) if r == rank) for rank in range(self.ranks)
        )

    def __len__(self) -> int:
        """The number of operations on all ranks."""
        return sum(len(table) for table in self.tables)

    def tasks(self, rank: int) -> Iterator[Task]:
        """The operations of ``rank`` as views."""
        for op, stage, microbatch, _ in self.tables[rank].tolist():
            yield Task(Op(op), stage, microbatch)

    def forwards(self) -> Order:
        """The order of an evaluation: each rank's F, as they follow one another here."""
        tables = tuple(table[table[:, OP] == Op.F] for table in self.tables)
        return replace(self, tables=tables, pairs=())

    def one_by_one(self) -> Order:
        """The order with the operations of a slot one after another, as a program runs them."""
        return replace(self, pairs=()) if self.pairs else self

    def only(self, kept: tuple[npt.NDArray[np.bool_], ...]) -> Order:
        """The order with the rows of each rank that ``kept`` says; a pair needs both of its."""
        tables = tuple(table[mask] for table, mask in zip(self.tables, kept, strict=True))
        if not self.pairs:
            return replace(self, tables=tables)
        pairs: list[tuple[int, ...]] = []
        for firsts, mask in zip(self.pairs, kept, strict=True):
            at = np.cumsum(mask) - 1
            pairs.append(tuple(int(at[row]) for row in firsts if mask[row] and mask[row + 1]))
        return replace(self, tables=tables, pairs=tuple(pairs))

    @property
    def evaluates(self) -> bool:
        """Whether there are only F."""
        return all(bool((table[:, OP] == Op.F).all()) for table in self.tables)

    def span(self, rank: int, index: int) -> Span | None:
        """Where the ``index``-th operation of ``rank`` was written."""
        at = int(self.tables[rank][index, SPAN])
        return self.spans[at] if at >= 0 else None


def make_table(rows: list[tuple[int, int, int, int]]) -> Table:
    """A rank's table from (op, stage, microbatch, span) rows."""
    return np.array(rows, dtype=np.int32).reshape(len(rows), 4)


def inputs_of(
    op: Op, stage: int, microbatch: int, stages: int, split: bool, recomputed: bool = False
) -> tuple[Task, ...]:
    """The tasks that must end before this one may start (data dependencies).

    ``split`` says whether the next stage's backward of this microbatch is I and W (else B),
    ``recomputed`` whether the order has an R of this stage and microbatch.
    """
    F, B, I, W, R = Op.F, Op.B, Op.I, Op.W, Op.R  # noqa: E741
    if op is F:
        return (Task(F, stage - 1, microbatch),) if stage > 0 else ()
    if op is R:
        return (Task(F, stage, microbatch),)
    if op is W:
        return (Task(I, stage, microbatch),)
    assert op is B or op is I
    own = (Task(R if recomputed else F, stage, microbatch),)
    if stage == stages - 1:
        return own
    return (*own, Task(I if split else B, stage + 1, microbatch))
