"""Lowering: an order becomes programs with messages, loads, waits and the end of the step."""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from schedc.ir.order import Op
from schedc.ir.timeline import Timeline
from schedc.passes.bodies import Partition, make_bodies
from schedc.passes.pools import make_pools, pool_name
from schedc.passes.transfers import (
    Transfer,
    make_transfers,
    post_boundaries,
    receive_times,
)
from schedc.program.body import Body
from schedc.program.instructions import READS, WRITES, Code, Operand, Stream, StreamBuilder
from schedc.program.program import Programs, RankProgram
from schedc.program.signature import Model


def lower(timeline: Timeline, model: Model, partition: Partition, label: str) -> Programs:
    """Programs that do what ``timeline.order`` says. Every value has a slot of its own.

    Contract: the order is verified; every operation takes time; ``partition`` holds every unit
    once.

    Pseudocode::

        transfers in one global order; each rank posts its sends and receives in that order:
            a send right after its producer,
            a receive AHEAD operations before its consumer, earlier where a later post needs it
        per operation: posts due here; waits for sends that the simulation says were received;
            wait for the operation's message; load tokens or labels; run
        at the end: the remaining waits, norm, report, step (of an evaluation: only report)
    """
    order = timeline.order
    bodies = make_bodies(model, partition, keep=not order.evaluates)
    transfers = make_transfers(timeline)
    boundaries = post_boundaries(order, transfers)
    posts = _posts_of_ranks(timeline, transfers, boundaries)
    return tuple(
        _Rank(rank, timeline, model, partition, bodies, posts[rank], label).program()
        for rank in range(order.ranks)
    )


def _posts_of_ranks(
    timeline: Timeline, transfers: tuple[Transfer, ...], boundaries: tuple[tuple[int, ...], ...]
) -> tuple[dict[int, list[_Post]], ...]:
    """Per rank: the posts before each of its operations, in order."""
    posts: tuple[dict[int, list[_Post]], ...] = tuple({} for _ in boundaries)
    position = [0] * len(boundaries)
    received = receive_times(timeline, transfers, boundaries)
    for transfer, time in zip(transfers, received, strict=True):
        for rank in (transfer.queue.source, transfer.queue.target):
            boundary = boundaries[rank][position[rank]]
            position[rank] += 1
            posts[rank].setdefault(boundary, []).append(_Post(transfer, max(time, transfer.end)))
    return posts


class _Post(NamedTuple):
    """A send or receive of the rank, and when the peer has received it in the simulation."""

    transfer: Transfer
    received: int


class _Rank:
    """Lowers one rank."""

    def __init__(
        self,
        rank: int,
        timeline: Timeline,
        model: Model,
        partition: Partition,
        bodies: dict[tuple[Op, int, bool], Body],
        posts: dict[int, list[_Post]],
        label: str,
    ) -> None:
        order = timeline.order
        self.rank, self.order, self.timeline, self.label = rank, order, timeline, label
        self.units_of = {s: partition[s] for s in order.stages_of[rank]}
        rows: list[tuple[int, int, int, int]] = order.tables[rank].tolist()
        self.rows = rows
        self.tail = order.microbatches - 1 if model.has_tail and not order.evaluates else -1
        used = sorted({(op, stage, m == self.tail) for op, stage, m, _ in rows})
        self.bodies = {key: bodies[Op(key[0]), key[1], key[2]] for key in used}
        self.body_index = {key: i for i, key in enumerate(self.bodies)}
        self.pools = make_pools(model, self.units_of, split=any(op == Op.W for op, *_ in used))
        self.builder = StreamBuilder(tuple(u for units in self.units_of.values() for u in units))
        self.place = [self.builder.place(span.place) for span in order.spans]
        self.local = {stage: index for index, stage in enumerate(order.stages_of[rank])}
        self.plans = {key: self._plan(key, body) for key, body in self.bodies.items()}
        self.posts = posts
        queues = {post.transfer.queue for at in posts.values() for post in at}
        self.queues = tuple(sorted(queues, key=str))
        self.queue_index = {queue: i for i, queue in enumerate(self.queues)}
        self.losses: list[Operand] = []
        self.loaded: set[Operand] = set()
        self.posted: dict[Operand, int] = {}
        self.unsent: list[tuple[int, int, int, Operand]] = []
        self.counted = False

    def program(self) -> RankProgram:
        stream = _mark_last_uses(self._stream())
        slots: dict[str, int] = {}
        for operands in stream.operands:
            for operand in operands:
                slots[operand.buffer] = max(slots.get(operand.buffer, 0), operand.slot + 1)
        buffers = tuple(
            replace(pool, slots=slots[pool.name]) for pool in self.pools if pool.name in slots
        )
        return RankProgram(
            rank=self.rank,
            ranks=self.order.ranks,
            microbatches=self.order.microbatches,
            order=self.label,
            stages=tuple(self.units_of.items()),
            buffers=buffers,
            queues=self.queues,
            stream=stream,
            bodies=tuple(self.bodies.values()),
            evaluates=self.order.evaluates,
        )

    def _stream(self) -> Stream:
        add = self.builder.add
        add(Code.COUNT)
        starts: list[int] = self.timeline.start[self.rank].tolist()
        for i, (op, stage, microbatch, span) in enumerate(self.rows):
            self._post(i)
            self._wait_for_sends(i, starts[i])
            self._run(op, stage, microbatch, span)
        self._post(len(self.rows))
        self._wait_for_sends(len(self.rows) + 1, None)
        if not self.counted:
            add(Code.WAIT_COUNT)
        if not self.order.evaluates:
            add(Code.NORM)
        add(Code.REPORT, reads=tuple(self.losses))
        if not self.order.evaluates:
            add(Code.WAIT_NORM)
        add(Code.WAIT_REPORT)
        if not self.order.evaluates:
            add(Code.STEP)
        return self.builder.build()

    def _place(self, span: int) -> int:
        """The index of a place; -1 for none."""
        return self.place[span] if span >= 0 else -1

    def _post(self, boundary: int) -> None:
        """The sends and receives due before operation ``boundary``."""
        for transfer, received in self.posts.get(boundary, ()):
            op, stage, microbatch = transfer.op, transfer.stage, transfer.microbatch
            task = (int(op), stage, microbatch)
            queue = self.queue_index[transfer.queue]
            if transfer.queue.source == self.rank:
                operand = self._slot("y" if op is Op.F else "dx", stage, microbatch)
                row = self.builder.add_row(
                    Code.SEND,
                    task,
                    (transfer.queue.target, queue, transfer.sequence),
                    reads=(operand,),
                    place=self._place(self.rows[transfer.producer][3]),
                )
                heapq.heappush(self.unsent, (received, transfer.producer, row, operand))
            else:
                name, stage = ("x", stage + 1) if op is Op.F else ("dy", stage - 1)
                operand = self._slot(name, stage, microbatch)
                self.posted[operand] = self.builder.add_row(
                    Code.RECV,
                    task,
                    (transfer.queue.source, queue, transfer.sequence),
                    writes=(operand,),
                    place=self._place(self.rows[transfer.consumer][3]),
                )

    def _wait_for_sends(self, boundary: int, now: int | None) -> None:
        """Wait for the sends that are received by ``now`` in the simulation: that never stalls.

        A send gets at least one operation to overlap with.
        """
        kept: list[tuple[int, int, int, Operand]] = []
        while self.unsent and (now is None or self.unsent[0][0] <= now):
            ready, producer, row, operand = heapq.heappop(self.unsent)
            if producer + 2 > boundary:
                kept.append((ready, producer, row, operand))
            else:
                self.builder.add_row(Code.WAIT_MESSAGE, reads=(operand,), ref=row)
        for send in kept:
            heapq.heappush(self.unsent, send)

    def _run(self, op: int, stage: int, microbatch: int, span: int) -> None:
        plan = self.plans[op, stage, microbatch == self.tail]
        add, place = self.builder.add_row, self._place(span)
        reads = tuple([Operand(pool, first + microbatch) for pool, first, _ in plan.reads])
        writes = tuple([Operand(pool, first + microbatch) for pool, first in plan.writes])
        for (_, _, loaded), operand in zip(plan.reads, reads, strict=True):
            posted = self.posted.pop(operand, None)
            if posted is not None:
                add(Code.WAIT_MESSAGE, reads=(operand,), ref=posted, place=place)
            elif loaded and operand not in self.loaded:
                self.loaded.add(operand)
                add(Code.LOAD, (-1, -1, microbatch), writes=(operand,), place=place)
        if not self.counted and op in (Op.I, Op.B) and stage == self.order.stages - 1:
            add(Code.WAIT_COUNT, place=place)
            self.counted = True
        add(
            Code.RUN,
            (op, stage, microbatch),
            body=plan.body,
            reads=reads,
            writes=writes,
            place=place,
        )
        self.losses += [w for w in writes if w.buffer == "loss"]

    def _plan(self, key: tuple[int, int, bool], body: Body) -> _Plan:
        """Where a body's operands lie: pool and slot of microbatch 0, others follow it."""
        _, stage, tail = key
        reads = tuple(
            (*self._lies(self._home(name, stage), tail), name in ("tokens", "labels"))
            for name in body.reads
        )
        writes = tuple(self._lies((name, stage), tail) for name in body.writes)
        return _Plan(self.body_index[key], reads, writes)

    def _home(self, name: str, stage: int) -> tuple[str, int]:
        """The value that ``name`` is; a neighbour stage on this rank hands over its own."""
        rank_of = self.order.rank_of
        if name == "x" and rank_of[stage - 1] == self.rank:
            return "y", stage - 1
        if name == "dy" and rank_of[stage + 1] == self.rank:
            return "dx", stage + 1
        return name, stage

    def _lies(self, value: tuple[str, int], tail: bool) -> tuple[str, int]:
        name, stage = value
        if name in ("saved", "owed"):
            return pool_name(f"{name}{stage}", tail), 0
        if name in ("tokens", "labels", "loss"):
            return pool_name(name, tail), 0
        return pool_name(name, tail), self.local[stage] * self.order.microbatches

    def _slot(self, name: str, stage: int, microbatch: int) -> Operand:
        """A value's own slot in a pool that all stages of the rank share."""
        pool, first = self._lies((name, stage), microbatch == self.tail)
        return Operand(pool, first + microbatch)


class _Plan(NamedTuple):
    """A body's index; its operands as (pool, slot of microbatch 0), and whether they are loaded."""

    body: int
    reads: tuple[tuple[str, int, bool], ...]
    writes: tuple[tuple[str, int], ...]


def _mark_last_uses(stream: Stream) -> Stream:
    """Mark the last use of every slot: after it, the slot is free."""
    operands = list(stream.operands)
    seen: set[Operand] = set()
    table = stream.table.copy()
    reads: list[int] = table[:, READS].tolist()
    for row in range(len(reads) - 1, -1, -1):
        if not reads[row]:
            continue
        used = operands[reads[row]]
        if not all(operand in seen for operand in used):
            marked = (o if o in seen else Operand(o.buffer, o.slot, True) for o in used)
            reads[row] = len(operands)
            operands.append(tuple(marked))
            seen.update(used)
    table[:, READS] = reads
    return _without_unused(Stream(table, tuple(operands), stream.units, stream.places))


def _without_unused(stream: Stream) -> Stream:
    """The stream with the operands that it uses, in the order of their first use."""
    columns = stream.table[:, (READS, WRITES)]
    indices, first, inverse = np.unique(columns, return_index=True, return_inverse=True)
    rank = np.where(indices == 0, -1, first).argsort()
    place = np.empty_like(rank)
    place[rank] = np.arange(len(rank)) + (0 if indices[0] == 0 else 1)
    table = stream.table.copy()
    table[:, (READS, WRITES)] = place[inverse].reshape(columns.shape)
    kept: list[int] = indices[rank].tolist()
    used = [stream.operands[index] for index in kept if index]
    return Stream(table, ((), *used), stream.units, stream.places)
