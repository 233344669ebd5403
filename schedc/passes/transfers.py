"""Transfers: the messages that an order implies, in one global order, and when they are posted."""

from __future__ import annotations

from dataclasses import dataclass

from schedc.ir.order import MICROBATCH, OP, STAGE, Op, Order
from schedc.ir.timeline import Timeline
from schedc.program.program import Queue

AHEAD = 2
"""A receive is posted this many operations before its consumer, or earlier where order asks."""


@dataclass(frozen=True, slots=True)
class Transfer:
    """A message: the source's ``producer``-th operation feeds the target's ``consumer``-th.

    ``op`` is F (an activation of ``stage``), or B or I (the gradient of its input). ``end`` is when
    the producer ends, in ticks of the timeline; ``sequence`` its number in its queue.
    """

    op: Op
    stage: int
    microbatch: int
    queue: Queue
    sequence: int
    producer: int
    consumer: int
    end: int


def make_transfers(timeline: Timeline) -> tuple[Transfer, ...]:
    """All messages between ranks, in the order in which the simulation starts them.

    Every rank posts its sends and receives in this one order. That is what makes programs free of
    deadlock by construction, whatever the buffering: the earliest transfer not yet done has both
    its posts before any wait for a later one.

    The gradient of an input goes to the stage before if that has an operation that reads it: the
    order of a model with frozen parameters (:mod:`schedc.passes.drop_idle`) may have none.

    Contract: every operation takes time in ``timeline``, so that a message starts later than those
    its producer depends on.
    """
    order = timeline.order
    consumer = _backward_and_forward_positions(order)
    found: list[tuple[int, int, int, int, int, int]] = []
    for rank, table in enumerate(order.tables):
        ends = timeline.end[rank].tolist()
        rows: list[tuple[int, int, int, int]] = table.tolist()
        for i, (op, stage, microbatch, _) in enumerate(rows):
            if op == Op.F or op == Op.B or op == Op.I:
                neighbour = stage + 1 if op == Op.F else stage - 1
                reads = (op == Op.F, neighbour, microbatch) in consumer
                if reads and order.rank_of[neighbour] != rank:
                    found.append((ends[i], rank, i, op, stage, microbatch))
    numbers: dict[Queue, int] = {}
    transfers: list[Transfer] = []
    for end, rank, i, op, stage, microbatch in sorted(found):
        forward = op == Op.F
        neighbour = stage + 1 if forward else stage - 1
        queue = Queue("act" if forward else "grad", rank, order.rank_of[neighbour])
        number = numbers.get(queue, 0)
        numbers[queue] = number + 1
        to = consumer[forward, neighbour, microbatch]
        transfers.append(Transfer(Op(op), stage, microbatch, queue, number, i, to, end))
    return tuple(transfers)


def _backward_and_forward_positions(order: Order) -> dict[tuple[bool, int, int], int]:
    """Where on its rank each (forward?, stage, microbatch) stands; backward is B or I."""
    positions: dict[tuple[bool, int, int], int] = {}
    for table in order.tables:
        rows: list[list[int]] = table[:, (OP, STAGE, MICROBATCH)].tolist()
        for i, (op, stage, microbatch) in enumerate(rows):
            if op == Op.F:
                positions[True, stage, microbatch] = i
            elif op == Op.B or op == Op.I:
                positions[False, stage, microbatch] = i
    return positions


def post_boundaries(order: Order, transfers: tuple[Transfer, ...]) -> tuple[tuple[int, ...], ...]:
    """Per rank, for each of its transfers in global order: before which operation it is posted.

    A send is posted right after its producer. A receive's place lies between its neighbours' in the
    rank's order of posts, and AHEAD operations before its consumer where they leave that choice.
    """
    wanted: list[list[int]] = [[] for _ in range(order.ranks)]
    latest: list[list[int]] = [[] for _ in range(order.ranks)]
    for transfer in transfers:
        source, target = transfer.queue.source, transfer.queue.target
        wanted[source].append(transfer.producer + 1)
        latest[source].append(transfer.producer + 1)
        wanted[target].append(max(0, transfer.consumer - AHEAD))
        latest[target].append(transfer.consumer)
    result: list[tuple[int, ...]] = []
    for want, bound in zip(wanted, latest, strict=True):
        for k in reversed(range(len(bound) - 1)):
            bound[k] = min(bound[k], bound[k + 1])
        at = 0
        chosen: list[int] = []
        for k, boundary in enumerate(want):
            at = max(at, min(boundary, bound[k]))
            chosen.append(at)
        result.append(tuple(chosen))
    return tuple(result)


def receive_times(
    timeline: Timeline, transfers: tuple[Transfer, ...], boundaries: tuple[tuple[int, ...], ...]
) -> tuple[int, ...]:
    """When the target posts its receive of each transfer, in the simulation."""
    position = [0] * timeline.order.ranks
    times: list[int] = []
    for transfer in transfers:
        target = transfer.queue.target
        boundary = boundaries[target][position[target]]
        position[transfer.queue.source] += 1
        position[target] += 1
        times.append(int(timeline.end[target][boundary - 1]) if boundary else 0)
    return tuple(times)
