"""Lowering: an order becomes programs with messages, loads, waits and the end of the step."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

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
        self.places = [span.place for span in order.spans]
        self.posts = posts
        queues = {post.transfer.queue for at in posts.values() for post in at}
        self.queues = tuple(sorted(queues, key=str))
        self.queue_index = {queue: i for i, queue in enumerate(self.queues)}
        self.losses: list[Operand] = []
        self.loaded: set[Operand] = set()
        self.posted: dict[tuple[str, int, int], int] = {}
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
            self._run(op, stage, microbatch, self._place(span))
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

    def _place(self, span: int) -> str:
        return self.places[span] if span >= 0 else ""

    def _post(self, boundary: int) -> None:
        """The sends and receives due before operation ``boundary``."""
        for transfer, received in self.posts.get(boundary, ()):
            op, stage, microbatch = transfer.op, transfer.stage, transfer.microbatch
            task = (int(op), stage, microbatch)
            queue = self.queue_index[transfer.queue]
            if transfer.queue.source == self.rank:
                operand = self._slot("y" if op is Op.F else "dx", stage, microbatch)
                row = self.builder.add(
                    Code.SEND,
                    task=task,
                    link=(transfer.queue.target, queue, transfer.sequence),
                    reads=(operand,),
                    place=self._place(self.rows[transfer.producer][3]),
                )
                heapq.heappush(self.unsent, (received, transfer.producer, row, operand))
            else:
                name, stage = ("x", stage + 1) if op is Op.F else ("dy", stage - 1)
                self.posted[name, stage, microbatch] = self.builder.add(
                    Code.RECV,
                    task=task,
                    link=(transfer.queue.source, queue, transfer.sequence),
                    writes=(self._slot(name, stage, microbatch),),
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
                self.builder.add(Code.WAIT_MESSAGE, reads=(operand,), ref=row)
        for send in kept:
            heapq.heappush(self.unsent, send)

    def _run(self, op: int, stage: int, microbatch: int, place: str) -> None:
        key = op, stage, microbatch == self.tail
        body = self.bodies[key]
        reads = tuple(self._input(name, op, stage, microbatch) for name in body.reads)
        writes = tuple(self._output(name, stage, microbatch) for name in body.writes)
        for name, operand in zip(body.reads, reads, strict=True):
            posted = self.posted.pop((name, stage, microbatch), None)
            if posted is not None:
                self.builder.add(Code.WAIT_MESSAGE, reads=(operand,), ref=posted, place=place)
            elif name in ("tokens", "labels") and operand not in self.loaded:
                self.loaded.add(operand)
                self.builder.add(
                    Code.LOAD, task=(-1, -1, microbatch), writes=(operand,), place=place
                )
        if not self.counted and op in (Op.I, Op.B) and stage == self.order.stages - 1:
            self.builder.add(Code.WAIT_COUNT, place=place)
            self.counted = True
        self.builder.add(
            Code.RUN,
            task=(op, stage, microbatch),
            body=self.body_index[key],
            reads=reads,
            writes=writes,
            place=place,
        )
        self.losses += [w for w in writes if w.buffer == "loss"]

    def _input(self, name: str, op: int, stage: int, microbatch: int) -> Operand:
        """The slot ``name`` is read from; a neighbour stage on this rank hands over its own."""
        neighbours = self.order.rank_of
        if name == "x" and neighbours[stage - 1] == self.rank:
            return self._slot("y", stage - 1, microbatch)
        if name == "dy" and neighbours[stage + 1] == self.rank:
            return self._slot("dx", stage + 1, microbatch)
        return self._output(name, stage, microbatch)

    def _output(self, name: str, stage: int, microbatch: int) -> Operand:
        tail = microbatch == self.tail
        if name in ("saved", "owed"):
            return Operand(pool_name(f"{name}{stage}", tail), microbatch)
        if name in ("tokens", "labels", "loss"):
            return Operand(pool_name(name, tail), microbatch)
        return self._slot(name, stage, microbatch)

    def _slot(self, name: str, stage: int, microbatch: int) -> Operand:
        """A value's own slot in a pool that all stages of the rank share."""
        local = self.order.stages_of[self.rank].index(stage)
        pool = pool_name(name, microbatch == self.tail)
        return Operand(pool, local * self.order.microbatches + microbatch)


def _mark_last_uses(stream: Stream) -> Stream:
    """Mark the last use of every slot: after it, the slot is free."""
    builder = StreamBuilder(stream.units)
    seen: set[Operand] = set()
    table = stream.table.copy()

    def marked(operands: tuple[Operand, ...]) -> Iterator[Operand]:
        for operand in operands:
            yield operand if operand in seen else operand._replace(last=True)

    for row in reversed(range(len(table))):
        reads = stream.operands[int(table[row, READS])]
        table[row, READS] = builder.operands(tuple(marked(reads)))
        table[row, WRITES] = builder.operands(stream.operands[int(table[row, WRITES])])
        seen.update(reads)
    return Stream(table, builder.build().operands, stream.units, stream.places)
