"""Buffers and the values in them: filled, used, freed, and always the right value (E505, E502).

Every use of a slot is an event. Sorted by slot and then by program order, the rules are about
neighbouring events, so that a million instructions are checked by a few array operations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from schedc.program.instructions import CODE, READS, REF, WRITES, Code
from schedc.program.program import RankProgram
from schedc.program.signature import DTYPE_BYTES, Model
from schedc.program.verify_columns import At, Bools, Columns, Findings, Ints
from schedc.program.verify_values import (
    ANY_LOSS,
    NOTHING,
    check_kinds,
    expected_values,
    produced_values,
    value_text,
)


@dataclass(frozen=True, eq=False)
class Events:
    """Uses of slots, sorted by slot and then by program order. Reads of a row precede its writes.

    ``fills`` tells the events that begin a new value; ``position`` is the operand's place among the
    row's reads or writes.
    """

    row: Ints
    position: Ints
    buffer: Ints
    slot: Ints  # over all buffers of the rank
    fills: Bools
    last: Bools

    def __len__(self) -> int:
        return len(self.row)


def check_buffers(columns: Columns, model: Model | None, findings: Findings) -> None:
    """All slots of all ranks."""
    for program in columns.programs:
        _check_waits(columns, program, findings)
        events = _events(program, findings)
        if events is not None:
            _check_pools(program, events, findings)
        if events is not None and len(events):
            check_kinds(columns, program, events, model, findings)
            _Slots(columns, program, events, findings).check()


def _check_pools(program: RankProgram, events: Events, findings: Findings) -> None:
    """Every pool is as large as its use: the prediction of memory rests on it."""
    last = np.zeros(len(program.buffers), dtype=np.int64)
    base = np.cumsum([0, *(buffer.slots for buffer in program.buffers)])[:-1]
    np.maximum.at(last, events.buffer, events.slot - base[events.buffer] + 1)
    for buffer, used in zip(program.buffers, last.tolist(), strict=True):
        where = f"rank {program.rank}: buffer {buffer.name}"
        if buffer.slots != used:
            findings.add("E505", f"{where} has {buffer.slots} slots, but {used} are used")
        if buffer.kind in ("saved", "owed"):
            if buffer.shape or buffer.dtype:
                findings.add("E505", f"{where} holds many tensors, and so has no shape of its own")
            continue
        if buffer.dtype not in DTYPE_BYTES:
            findings.add("E505", f"{where} has no dtype that is known: `{buffer.dtype}`")
            continue
        size = math.prod(buffer.shape) * DTYPE_BYTES[buffer.dtype]
        if buffer.bytes != size:
            findings.add("E505", f"{where} is said to hold {buffer.bytes} bytes, but holds {size}")


def _check_waits(columns: Columns, program: RankProgram, findings: Findings) -> None:
    """Every post is waited for once, after it."""
    table = program.stream.table
    rank = program.rank
    posts = np.isin(table[:, CODE], (Code.SEND, Code.RECV))
    waits = (table[:, CODE] == Code.WAIT_MESSAGE).nonzero()[0]
    of = table[waits, REF].astype(np.int64)
    bad = (of < 0) | (of >= waits)
    bad |= ~posts[np.where(bad, 0, of)]
    findings.each(
        "E503",
        waits[bad],
        lambda i: (
            f"rank {rank} would wait for ever: no send or receive was posted before",
            (rank, i),
        ),
    )
    count = np.bincount(of[~bad], minlength=len(table))
    findings.each(
        "E505",
        (posts & (count == 0)).nonzero()[0],
        lambda i: (f"rank {rank} never waits for this message", (rank, i)),
    )
    findings.each(
        "E505",
        (count > 1).nonzero()[0],
        lambda i: (f"rank {rank} waits {count[i]} times for this message", (rank, i)),
    )


def _events(program: RankProgram, findings: Findings) -> Events | None:
    """All events; None where an operand is no slot of a buffer."""
    stream = program.stream
    number = {buffer.name: index for index, buffer in enumerate(program.buffers)}
    slots = np.array([buffer.slots for buffer in program.buffers], dtype=np.int64)
    base = np.concatenate(([0], np.cumsum(slots)))
    flat = [
        (number.get(operand.buffer, -1), operand.slot, operand.last)
        for operands in stream.operands
        for operand in operands
    ]
    operand = np.array(flat, dtype=np.int64).reshape(len(flat), 3)
    counts = np.array([len(operands) for operands in stream.operands])
    starts = np.concatenate(([0], np.cumsum(counts)))[:-1]
    parts: list[tuple[Ints, Ints, Ints]] = []
    for column in (READS, WRITES):
        index = stream.table[:, column].astype(np.int64)
        length = counts[index]
        row = np.repeat(np.arange(len(index)), length)
        position = np.arange(len(row)) - np.repeat(np.cumsum(length) - length, length)
        parts.append((row, position, np.repeat(starts[index], length) + position))
    row, position, which = (np.concatenate(both) for both in zip(*parts, strict=True))
    writes = np.repeat([False, True], [len(part[0]) for part in parts])
    buffer, slot = operand[which, 0], operand[which, 1]
    bad = (buffer < 0) | (slot < 0) | (slot >= np.append(slots, 0)[buffer])
    rank = program.rank
    if bad.any():
        findings.each(
            "E505",
            np.unique(row[bad]),
            lambda i: (f"rank {rank} uses a slot that its buffer does not have", (rank, i)),
        )
        return None
    slot = base[buffer] + slot
    order = np.lexsort((row * 2 + writes, slot))
    return Events(
        row[order],
        position[order],
        buffer[order],
        slot[order],
        writes[order],
        operand[which, 2][order] != 0,
    )


class _Slots:
    """The rules about the events of one rank's slots."""

    def __init__(
        self, columns: Columns, program: RankProgram, events: Events, findings: Findings
    ) -> None:
        self.columns, self.program, self.events, self.findings = columns, program, events, findings
        self.rank = program.rank
        self.table = program.stream.table
        self.code = self.table[events.row, CODE]
        self.same: Bools = np.concatenate(([False], events.slot[1:] == events.slot[:-1]))
        self.next_same: Bools = np.append(self.same[1:], False)
        self.base = np.concatenate(([0], np.cumsum([buffer.slots for buffer in program.buffers])))

    def check(self) -> None:
        broken = self._check_lives()
        self._check_receives()
        self._check_sends()
        self._check_values(broken)

    def _slot(self, event: int) -> str:
        buffer = int(self.events.buffer[event])
        slot = int(self.events.slot[event]) - int(self.base[buffer])
        return f"{self.program.buffers[buffer].name}.{slot}"

    def _each(self, bad: Bools, message: str, before: bool = False) -> None:
        """E505 for each event in ``bad``; ``{}`` in the message is its slot."""
        for event in bad.nonzero()[0].tolist():
            rows = [int(self.events.row[event])]
            if before:
                rows.insert(0, int(self.events.row[event - 1]))
            text = f"rank {self.rank} {message.format(self._slot(event))}"
            self.findings.add("E505", text, *((self.rank, row) for row in rows))

    def _check_lives(self) -> Bools:
        """Filled, used, freed after the last use; returns the uses of nothing."""
        events = self.events
        fills, last = events.fills, events.last
        before_last = np.concatenate(([False], last[:-1]))
        before_row = np.concatenate(([-1], events.row[:-1]))
        unfilled = ~fills & ~self.same
        freed = ~fills & self.same & before_last
        self._each(unfilled, "uses {} before anything is in it")
        self._each(freed, "uses {} after its last use", before=True)
        self._each(
            fills & self.same & ~before_last, "overwrites {} while it is in use", before=True
        )
        together = fills & self.same & (before_row == events.row)
        self._each(together, "fills {} by the instruction that still uses it")
        self._each(fills & last, "fills {} and frees it at once")
        self._each(~self.next_same & ~last & ~(fills & last), "never frees {}")
        return unfilled | freed

    def _check_receives(self) -> None:
        """After the post of a receive, its wait is the first to touch the slot."""
        events = self.events
        receives = events.fills & (self.code == Code.RECV)
        after = np.append(np.arange(1, len(events)), 0)
        waits = self.next_same & (self.code[after] == Code.WAIT_MESSAGE)
        waits &= self.table[events.row[after], REF] == events.row
        early = receives & ~waits
        self._each(early, "uses {} before it waited for the receive into it, or never waits")

    def _check_sends(self) -> None:
        """The wait for a send (or receive) is about the same value in the same slot."""
        events = self.events
        waits = (self.code == Code.WAIT_MESSAGE).nonzero()[0]
        posts = np.isin(self.code, (Code.SEND, Code.RECV)).nonzero()[0]
        event_of: Ints = np.full(len(self.table), -1, dtype=np.int64)
        event_of[events.row[posts]] = posts
        of = self.table[events.row[waits], REF]
        known = (of >= 0) & (of < len(self.table))
        post = np.where(known, event_of[np.where(known, of, 0)], -1)
        life = np.cumsum(events.fills)
        bad = (post >= 0) & (
            (life[post] != life[waits]) | (events.slot[post] != events.slot[waits])
        )
        wrong: Bools = np.zeros(len(events), dtype=np.bool_)
        wrong[waits[bad]] = True
        self._each(wrong, "waits for {}, but the message it waits for is not of what is in it")

    def _check_values(self, broken: Bools) -> None:
        """Every reader finds the value it wants."""
        events = self.events
        expected = expected_values(self.columns, self.program, events)
        produced = produced_values(self.columns, self.program, events)
        start = np.maximum.accumulate(np.where(events.fills, np.arange(len(events)), 0))
        held = produced[start]
        usable = ~events.fills & ~broken & (expected != NOTHING)
        usable &= events.slot[start] == events.slot
        any_loss = expected == ANY_LOSS
        is_loss = held >= 4 * self.columns.stages * self.columns.microbatches
        is_loss &= held < 5 * self.columns.stages * self.columns.microbatches
        bad = usable & np.where(any_loss, ~is_loss, held != expected)
        received = self.code[start] == Code.RECV
        for event in bad.nonzero()[0].tolist():
            holds = value_text(int(held[event]), self.columns)
            wants = value_text(int(expected[event]), self.columns)
            at: tuple[At, At] = (
                (self.rank, int(events.row[start[event]])),
                (self.rank, int(events.row[event])),
            )
            code = "E502" if received[event] else "E505"
            slot = self._slot(event)
            self.findings.add(code, f"rank {self.rank}: {slot} holds {holds}, not {wants}", *at)
        self._check_losses(held[usable & any_loss & is_loss])

    def _check_losses(self, losses: Ints) -> None:
        """The report reads the loss of every microbatch once."""
        columns = self.columns
        if columns.rank_of[columns.stages - 1] != self.rank:
            return
        count = np.bincount(losses % columns.microbatches, minlength=columns.microbatches)
        for m in (count != 1).nonzero()[0].tolist():
            text = f"rank {self.rank} reports the loss of microbatch {m} {count[m]} times, not once"
            self.findings.add("E505", text)
