"""The data dependencies of an order as integer columns, for verifier and simulator."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from schedc.ir.order import MICROBATCH, OP, STAGE, Op, Order, Task

Column = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Dependencies:
    """The operations of all ranks in one numbering, rank after rank, and what each one needs.

    Operations ``first[r]`` up to ``first[r + 1]`` are those of rank ``r``, in its order.
    ``own[n]`` is the operation on the same stage and microbatch whose result ``n`` needs (the F,
    or R, of a backward; the I of a W), ``neighbour[n]`` the one on the stage before or after it;
    -1 where there is none. Of a missing input both say -1, of a duplicated one they name one copy.
    ``pairs`` are the operations that share a slot with the next one.
    """

    stages: int
    first: Column
    rank: Column
    op: Column
    stage: Column
    microbatch: Column
    own: Column
    neighbour: Column
    pairs: Column

    def __len__(self) -> int:
        return len(self.rank)

    @cached_property
    def slots(self) -> Column:
        """The slot of each operation: numbered as they are, the two of a pair as one."""
        new = np.ones(len(self), dtype=np.int64)
        new[self.pairs + 1] = 0
        return np.cumsum(new) - 1

    @property
    def crosses(self) -> npt.NDArray[np.bool_]:
        """Whether the neighbour's result comes from another rank: one message each."""
        return (self.neighbour >= 0) & (self.rank[self.neighbour] != self.rank)

    @property
    def lacks_input(self) -> bool:
        """Some operation needs another that the order does not contain."""
        backward = (self.op == Op.B) | (self.op == Op.I)
        receives = np.where(
            backward, self.stage < self.stages - 1, (self.op == Op.F) & (self.stage > 0)
        )
        lacks = ((self.op != Op.F) & (self.own < 0)) | (receives & (self.neighbour < 0))
        return bool(lacks.any())

    def place(self, node: int) -> tuple[int, int]:
        """The (rank, index in the rank's order) of an operation."""
        rank = int(self.rank[node])
        return rank, node - int(self.first[rank])

    def task(self, node: int) -> Task:
        """The operation as a view."""
        return Task(Op(int(self.op[node])), int(self.stage[node]), int(self.microbatch[node]))


def dependencies_of(order: Order) -> Dependencies:
    """Look up the inputs of every operation, as :func:`schedc.ir.order.inputs_of` defines them.

    Every operation's stage and microbatch must be in range.
    """
    lengths = [len(table) for table in order.tables]
    first = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    rank = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
    rows = np.concatenate(order.tables).astype(np.int64)
    op, stage, microbatch = rows[:, OP], rows[:, STAGE], rows[:, MICROBATCH]

    # One stage past either end, so that a neighbour's index is valid and finds nothing.
    at = np.full((len(Op), order.stages + 2, order.microbatches), -1, dtype=np.int64)
    at[op, stage + 1, microbatch] = np.arange(len(rows))
    at_f, at_b, at_i, _, at_r = at
    forward = np.where(at_r >= 0, at_r, at_f)
    backward = np.where(at_b >= 0, at_b, at_i)

    own = np.full(len(rows), -1, dtype=np.int64)
    neighbour = np.full(len(rows), -1, dtype=np.int64)
    is_f, is_w, is_r = op == Op.F, op == Op.W, op == Op.R
    is_backward = (op == Op.B) | (op == Op.I)
    for chosen, table, shift, column in (
        (is_r, at_f, 0, own),
        (is_w, at_i, 0, own),
        (is_backward, forward, 0, own),
        (is_f, at_f, -1, neighbour),
        (is_backward, backward, 1, neighbour),
    ):
        column[chosen] = table[stage[chosen] + 1 + shift, microbatch[chosen]]
    pairs = [first[r] + np.array(rows, dtype=np.int64) for r, rows in enumerate(order.pairs)]
    return Dependencies(
        order.stages, first, rank, op, stage, microbatch, own, neighbour,
        np.concatenate(pairs) if pairs else np.zeros(0, dtype=np.int64),
    )  # fmt: skip
