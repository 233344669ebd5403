"""Messages: each send meets exactly one receive, and both mean the same value (E501, E502)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from schedc.ir.order import Op
from schedc.program.instructions import (
    CODE,
    MICROBATCH,
    OP,
    PEER,
    QUEUE,
    READS,
    SEQUENCE,
    STAGE,
    WRITES,
    Code,
)
from schedc.program.program import Buffer
from schedc.program.verify_columns import Bools, Columns, Findings, Ints


@dataclass(frozen=True, eq=False)
class Transfers:
    """Matched messages: lines of the send and of its receive."""

    sends: Ints
    receives: Ints


@dataclass(frozen=True, eq=False)
class _Side:
    """The sends, or the receives, of all ranks in program order."""

    lines: Ints
    queue: Ints  # kind, source and target as one number
    sequence: Ints


def check_messages(columns: Columns, findings: Findings) -> Transfers:
    """Queues, numbers, tasks and shapes of all messages; the matched ones."""
    sends, receives = columns.rows(Code.SEND), columns.rows(Code.RECV)
    both = np.concatenate([sends, receives])
    _check_tasks(columns, both, findings)
    _check_ends(columns, both, findings)
    sending, receiving = _side(columns, sends), _side(columns, receives)
    transfers = _match(columns, sending, receiving, findings)
    for side in (sending, receiving):
        _check_sequence(columns, side, findings)
    _check_pairs(columns, transfers, findings)
    _check_single(columns, sends, findings)
    return transfers


def _check_tasks(columns: Columns, lines: Ints, findings: Findings) -> None:
    """A message carries F's, I's or B's output between the ranks of neighbouring stages."""
    op, stage = columns.column(lines, OP), columns.column(lines, STAGE)
    microbatch = columns.column(lines, MICROBATCH)
    forward = op == Op.F
    neighbour = stage + np.where(forward, 1, -1)
    bad = ~(forward | (op == Op.I) | (op == Op.B)) | (microbatch < 0)
    bad |= (microbatch >= columns.microbatches) | (stage < 0) | (stage >= columns.stages)
    bad |= (neighbour < 0) | (neighbour >= columns.stages)
    findings.each(
        "E502",
        lines[bad],
        lambda i: (f"{columns.task(i)} has no output that is sent", columns.at(i)),
    )
    rank_of = np.append(columns.rank_of, -1)
    source, target = rank_of[np.where(bad, -1, stage)], rank_of[np.where(bad, -1, neighbour)]
    is_send = columns.table[lines, CODE] == Code.SEND
    rank, peer = columns.rank[lines], columns.column(lines, PEER)
    wrong = ~bad & (
        (np.where(is_send, rank, peer) != source) | (np.where(is_send, peer, rank) != target)
    )
    for i in wrong.nonzero()[0].tolist():
        line = int(lines[i])
        ends = f"from rank {source[i]} to rank {target[i]}"
        findings.add("E502", f"the output of {columns.task(line)} goes {ends}", columns.at(line))


def _queues(columns: Columns, lines: Ints) -> Ints:
    """(kind, source, target) of each line's queue; kind 0 is activations."""
    result: Ints = np.zeros((len(lines), 3), dtype=np.int64)
    for program in columns.programs:
        mine = columns.rank[lines] == program.rank
        if mine.any():
            ends = [(int(q.kind == "grad"), q.source, q.target) for q in program.queues]
            result[mine] = np.array(ends, dtype=np.int64)[columns.table[lines[mine], QUEUE]]
    return result


def _check_ends(columns: Columns, lines: Ints, findings: Findings) -> None:
    """A message's queue has its kind and connects its two ranks."""
    queues = _queues(columns, lines)
    is_send = columns.table[lines, CODE] == Code.SEND
    rank, peer = columns.rank[lines], columns.column(lines, PEER)
    bad = queues[:, 0] != (columns.column(lines, OP) != Op.F)
    bad |= queues[:, 1] != np.where(is_send, rank, peer)
    bad |= queues[:, 2] != np.where(is_send, peer, rank)
    findings.each(
        "E502", lines[bad], lambda i: ("the message is in the wrong queue", columns.at(i))
    )


def _side(columns: Columns, lines: Ints) -> _Side:
    queues = _queues(columns, lines)
    ranks = max(len(columns.programs), int(queues.max(initial=0)) + 1)
    key = (queues[:, 0] * ranks + queues[:, 1]) * ranks + queues[:, 2]
    return _Side(lines, key, columns.column(lines, SEQUENCE))


def _match(columns: Columns, sends: _Side, receives: _Side, findings: Findings) -> Transfers:
    """Pairs of equal queue and number; what is left over is E501."""
    span = 1 + max(int(side.sequence.max(initial=0)) for side in (sends, receives))
    keys = [side.queue * span + side.sequence for side in (sends, receives)]
    unique = [np.unique(key, return_index=True) for key in keys]
    for key, (_, index), side, what in zip(
        keys, unique, (sends, receives), ("send", "receive"), strict=True
    ):
        twice = np.setdiff1d(np.arange(len(key)), index)
        findings.each(
            "E501",
            side.lines[twice],
            lambda i, what=what: (f"a second {what} of this queue and number", columns.at(i)),
        )
    (send_keys, send_index), (receive_keys, receive_index) = unique
    alone = send_index[~np.isin(send_keys, receive_keys)]
    findings.each(
        "E501", sends.lines[alone], lambda i: ("no receive meets this send", columns.at(i))
    )
    alone = receive_index[~np.isin(receive_keys, send_keys)]
    findings.each(
        "E501", receives.lines[alone], lambda i: ("no send meets this receive", columns.at(i))
    )
    _, left, right = np.intersect1d(send_keys, receive_keys, True, return_indices=True)
    return Transfers(sends.lines[send_index[left]], receives.lines[receive_index[right]])


def _check_sequence(columns: Columns, side: _Side, findings: Findings) -> None:
    """Each rank posts the messages of a queue as numbers 0, 1, 2, …."""
    by_queue = np.argsort(side.queue, kind="stable")
    queue = side.queue[by_queue]
    start = np.concatenate(([True], queue[1:] != queue[:-1]))[: len(queue)]
    position = np.arange(len(queue))
    wanted = position - np.maximum.accumulate(np.where(start, position, 0))
    for i in (side.sequence[by_queue] != wanted).nonzero()[0].tolist():
        at = columns.at(int(side.lines[by_queue[i]]))
        findings.add("E502", f"the message stands as number {wanted[i]} of its queue", at)


def _check_pairs(columns: Columns, transfers: Transfers, findings: Findings) -> None:
    """Both ends of a transfer mean the same task, shape and dtype."""
    sends, receives = transfers.sends, transfers.receives
    task = (OP, STAGE, MICROBATCH)
    differ: Bools = np.any(
        columns.table[sends][:, task] != columns.table[receives][:, task], axis=1
    )
    for i in differ.nonzero()[0].tolist():
        send, receive = int(sends[i]), int(receives[i])
        findings.add(
            "E502",
            f"{columns.task(send)} is sent where {columns.task(receive)} is received",
            columns.at(send),
            columns.at(receive),
        )
    shapes: dict[tuple[tuple[int, ...], str], int] = {}
    left = _shapes(columns, sends, READS, shapes)
    right = _shapes(columns, receives, WRITES, shapes)
    names = list(shapes)
    for i in (left != right).nonzero()[0].tolist():
        sent, received = (_shape_text(names[side[i]]) for side in (left, right))
        findings.add(
            "E501",
            f"{sent} is sent where {received} is received",
            columns.at(int(sends[i])),
            columns.at(int(receives[i])),
        )


def _shapes(
    columns: Columns, lines: Ints, column: int, shapes: dict[tuple[tuple[int, ...], str], int]
) -> Ints:
    """The number in ``shapes`` of the shape and dtype of each message's buffer."""
    result: Ints = np.zeros(len(lines), dtype=np.int64)
    for program in columns.programs:
        buffers: dict[str, Buffer] = {buffer.name: buffer for buffer in program.buffers}
        known: Ints = np.zeros(len(program.stream.operands), dtype=np.int64)
        for index, operands in enumerate(program.stream.operands):
            if operands:
                buffer = buffers[operands[0].buffer]
                key = (buffer.shape, buffer.dtype)
                known[index] = shapes.setdefault(key, len(shapes))
        mine = columns.rank[lines] == program.rank
        result[mine] = known[columns.table[lines[mine], column]]
    return result


def _shape_text(shape: tuple[tuple[int, ...], str]) -> str:
    return f"{shape[1]}[{','.join(map(str, shape[0]))}]"


def _check_single(columns: Columns, sends: Ints, findings: Findings) -> None:
    """No value is sent twice."""
    op, stage = columns.column(sends, OP), columns.column(sends, STAGE)
    key = ((op == Op.F) * 1 * columns.stages + stage) * columns.microbatches
    key += columns.column(sends, MICROBATCH)
    _, index = np.unique(key, return_index=True)
    twice = sends[np.setdiff1d(np.arange(len(sends)), index)]
    findings.each(
        "E501", twice, lambda i: (f"the output of {columns.task(i)} is sent twice", columns.at(i))
    )
