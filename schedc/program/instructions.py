"""The instructions of a rank program, and the table that holds a stream of them.

Only ``wait`` blocks. Everything else computes, or posts something that a later ``wait`` completes:

==========  ==============================================================================
``run``     run a body: F, I, W or B of a stage and microbatch (printed by its letter)
``load``    bring a microbatch's tokens or labels into a buffer
``send``    post a message to another rank; the buffer stays in use until its wait
``recv``    post a receive into a buffer; the buffer is filled after its wait
``count``   post the sum over dp of the step's valid labels
``tie``     post the sum of a tied parameter's two gradients over the two ranks that have one
``norm``    post the sum over pp of the squares of all gradients
``step``    clip by the norm and take the optimizer's step
``report``  post the sum over dp and pp of the microbatches' losses
``wait``    block until a message, a unit's reduction, the count, the tie, the norm or the report
            is there
==========  ==============================================================================

A stream of a million instructions is one integer table; the dataclasses are views of its rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from schedc.ir.order import Op, Task


class Code(IntEnum):
    """Instruction codes; column CODE of the table."""

    RUN = 0
    LOAD = 1
    SEND = 2
    RECV = 3
    COUNT = 4
    NORM = 5
    STEP = 6
    REPORT = 7
    TIE = 8
    WAIT_MESSAGE = 9
    WAIT_REDUCE = 10
    WAIT_COUNT = 11
    WAIT_TIE = 12
    WAIT_NORM = 13
    WAIT_REPORT = 14


CODE, OP, STAGE, MICROBATCH, PEER, QUEUE, SEQUENCE, BODY, READS, WRITES, REF, PLACE = range(12)
"""Columns. READS and WRITES index ``Stream.operands``; BODY the program's bodies; QUEUE its queues;
REF is the row of the send or recv that WAIT_MESSAGE waits for, or the unit of TIE and WAIT_REDUCE;
PEER the other rank of SEND, RECV and TIE; PLACE indexes ``Stream.places``. -1 where a column has no
meaning."""

COLUMNS = 12
Table = npt.NDArray[np.int32]


class Operand(NamedTuple):
    """One slot of a buffer. ``last`` marks the use after which the slot is free again: ``x.0!``."""

    buffer: str
    slot: int
    last: bool = False

    def __str__(self) -> str:
        return f"{self.buffer}.{self.slot}{'!' if self.last else ''}"


@dataclass(frozen=True, slots=True)
class Run:
    """Run body ``body`` (an index) for ``task``; operands in the order of the body's interface."""

    task: Task
    body: int
    reads: tuple[Operand, ...]
    writes: tuple[Operand, ...]
    place: str = ""


@dataclass(frozen=True, slots=True)
class Load:
    """Bring a microbatch's ``tokens`` or ``labels`` (the buffer's kind) into a slot."""

    microbatch: int
    write: Operand
    place: str = ""


@dataclass(frozen=True, slots=True)
class Send:
    """Post the message that ``task`` produced to ``peer``, as number ``sequence`` of its queue."""

    task: Task
    read: Operand
    peer: int
    queue: int
    sequence: int
    place: str = ""


@dataclass(frozen=True, slots=True)
class Recv:
    """Post the receive of what ``task`` produces on ``peer``."""

    task: Task
    write: Operand
    peer: int
    queue: int
    sequence: int
    place: str = ""


@dataclass(frozen=True, slots=True)
class Count:
    place: str = ""


@dataclass(frozen=True, slots=True)
class Tie:
    """Post the sum of the gradients of the parameter that ``unit`` shares with one on ``peer``."""

    unit: str
    peer: int
    place: str = ""


@dataclass(frozen=True, slots=True)
class Norm:
    place: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    place: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """``reads`` are the losses of the rank's microbatches (none where it has no last stage)."""

    reads: tuple[Operand, ...]
    place: str = ""


@dataclass(frozen=True, slots=True)
class WaitMessage:
    """Wait for the send or recv at row ``of``; ``operand`` is its buffer."""

    of: int
    operand: Operand
    place: str = ""


@dataclass(frozen=True, slots=True)
class WaitReduce:
    unit: str
    place: str = ""


@dataclass(frozen=True, slots=True)
class WaitCount:
    place: str = ""


@dataclass(frozen=True, slots=True)
class WaitTie:
    place: str = ""


@dataclass(frozen=True, slots=True)
class WaitNorm:
    place: str = ""


@dataclass(frozen=True, slots=True)
class WaitReport:
    place: str = ""


Instruction = (
    Run
    | Load
    | Send
    | Recv
    | Count
    | Tie
    | Norm
    | Step
    | Report
    | WaitMessage
    | WaitReduce
    | WaitCount
    | WaitTie
    | WaitNorm
    | WaitReport
)


@dataclass(frozen=True, eq=False)
class Stream:
    """A rank's instructions: a table, and what its columns index.

    ``operands[0]`` is the empty tuple. ``units`` are the rank's units in model order.
    """

    table: Table
    operands: tuple[tuple[Operand, ...], ...]
    units: tuple[str, ...]
    places: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.table)

    def __iter__(self) -> Iterator[Instruction]:
        for row in self.table.tolist():
            yield self._view(row)

    def __getitem__(self, index: int) -> Instruction:
        return self._view(self.table[index].tolist())

    def _view(self, row: list[int]) -> Instruction:
        code = Code(row[CODE])
        place = self.places[row[PLACE]] if row[PLACE] >= 0 else ""
        reads, writes = self.operands[row[READS]], self.operands[row[WRITES]]
        if code is Code.RUN:
            task = Task(Op(row[OP]), row[STAGE], row[MICROBATCH])
            return Run(task, row[BODY], reads, writes, place)
        if code is Code.SEND or code is Code.RECV:
            task = Task(Op(row[OP]), row[STAGE], row[MICROBATCH])
            link = (row[PEER], row[QUEUE], row[SEQUENCE], place)
            if code is Code.SEND:
                return Send(task, reads[0], *link)
            return Recv(task, writes[0], *link)
        if code is Code.LOAD:
            return Load(row[MICROBATCH], writes[0], place)
        if code is Code.WAIT_MESSAGE:
            return WaitMessage(row[REF], reads[0], place)
        if code is Code.WAIT_REDUCE:
            return WaitReduce(self.units[row[REF]], place)
        if code is Code.TIE:
            return Tie(self.units[row[REF]], row[PEER], place)
        if code is Code.REPORT:
            return Report(reads, place)
        return _BARE[code](place)


_BARE = {
    Code.COUNT: Count,
    Code.NORM: Norm,
    Code.STEP: Step,
    Code.WAIT_COUNT: WaitCount,
    Code.WAIT_TIE: WaitTie,
    Code.WAIT_NORM: WaitNorm,
    Code.WAIT_REPORT: WaitReport,
}


class StreamBuilder:
    """Builds a stream: from rows, or from instruction views."""

    def __init__(self, units: tuple[str, ...]) -> None:
        self.rows: list[tuple[int, ...]] = []
        self.units = units
        self._operands: dict[tuple[Operand, ...], int] = {(): 0}
        self._places: dict[str, int] = {}

    def operands(self, operands: tuple[Operand, ...]) -> int:
        """The index of a tuple of operands."""
        return self._operands.setdefault(operands, len(self._operands))

    def place(self, place: str) -> int:
        """The index of a place; -1 for none."""
        return self._places.setdefault(place, len(self._places)) if place else -1

    def add(
        self,
        code: Code,
        *,
        task: tuple[int, int, int] = (-1, -1, -1),
        link: tuple[int, int, int] = (-1, -1, -1),
        body: int = -1,
        reads: tuple[Operand, ...] = (),
        writes: tuple[Operand, ...] = (),
        ref: int = -1,
        place: str = "",
    ) -> int:
        """Append an instruction; returns its row. ``link`` is (peer, queue, sequence)."""
        return self.add_row(
            code, task, link, body=body, reads=reads, writes=writes, ref=ref,
            place=self.place(place),
        )  # fmt: skip

    def add_row(
        self,
        code: Code,
        task: tuple[int, int, int] = (-1, -1, -1),
        link: tuple[int, int, int] = (-1, -1, -1),
        *,
        body: int = -1,
        reads: tuple[Operand, ...] = (),
        writes: tuple[Operand, ...] = (),
        ref: int = -1,
        place: int = -1,
    ) -> int:
        """As :meth:`add`, the place being an index that :meth:`place` gave."""
        index, size = self._operands, len(self._operands)
        read = index.setdefault(reads, size) if reads else 0
        written = index.setdefault(writes, len(index)) if writes else 0
        self.rows.append((code, *task, *link, body, read, written, ref, place))
        return len(self.rows) - 1

    def build(self) -> Stream:
        table = np.array(self.rows, dtype=np.int32).reshape(len(self.rows), COLUMNS)
        return Stream(table, tuple(self._operands), self.units, tuple(self._places))
