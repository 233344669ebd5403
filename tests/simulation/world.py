"""A simulated world: one thread, one heap of events, and a seed that decides all that can differ.

Every rank runs its program in the real executor, one instruction at a time; how long each takes,
how slow a rank is, how long a transfer lasts, when its data moves and who dies comes from the seed.
So a run is a function of programs and seed, and ends: finished, or with nobody able to move.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from schedc.ir.mesh import Mesh
from schedc.program.program import Queue
from schedc.runtime.executor import Executor, Handler
from schedc.runtime.transports.interface import Link

Lane = Callable[[Queue | tuple[str, ...]], Hashable]
"""The lane that a message (by its queue) or a sum (by its axes) stands in, on all its ranks."""


def by_queue(of: Queue | tuple[str, ...]) -> Hashable:
    """The queues of the programs: a pair of ranks and a kind; each set of axes has its own."""
    return of


def by_communicator(of: Queue | tuple[str, ...]) -> Hashable:
    """NCCL's: one stream for all activations of a pipeline group, one for all gradients."""
    return of.kind if isinstance(of, Queue) else of


def in_one(of: Queue | tuple[str, ...]) -> Hashable:
    """All communication of a rank, one by one."""
    return ""


class Payloads(Protocol):
    """How data moves: tensors, or symbols."""

    def move(self, source: Any, target: Any) -> None: ...
    def add(self, values: Sequence[Any]) -> None: ...


class World:
    """The clock, and what is to happen."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0
        self.trace: list[tuple[int, str]] = []
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0

    def after(self, delay: int, do: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + delay, self._count, do))

    def run(self) -> None:
        """Until nothing is left to happen."""
        while self._events:
            self.now, _, do = heapq.heappop(self._events)
            do()

    def note(self, what: str) -> None:
        self.trace.append((self.now, what))


@dataclass(eq=False)
class Joint:
    """A message or a sum: what its ranks have posted of it, and whether it is done."""

    name: str
    lane: Hashable
    members: tuple[int, ...]
    finish: Callable[[dict[int, Any]], None]
    posted: dict[int, Any] = field(default_factory=dict[int, Any])
    begun: bool = False
    done: bool = False
    waiting: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])


class Network:
    """No buffering: a joint begins when all its ranks have posted it and have nothing before it."""

    def __init__(self, world: World, payloads: Payloads, lane: Lane) -> None:
        self.world, self.payloads, self.lane = world, payloads, lane
        self.dead: set[int] = set()
        self.joints: dict[Hashable, Joint] = {}
        self.lanes: dict[tuple[int, Hashable], deque[Joint]] = {}

    def post(self, rank: int, key: Hashable, payload: Any, make: Callable[[], Joint]) -> Joint:
        joint = self.joints.get(key)
        if joint is None:
            joint = self.joints[key] = make()
        assert rank in joint.members, f"rank {rank} posts {joint.name} of {joint.members}"
        assert rank not in joint.posted, f"rank {rank} posts {joint.name} twice"
        joint.posted[rank] = payload
        self.lanes.setdefault((rank, joint.lane), deque()).append(joint)
        self._try(joint)
        return joint

    def _try(self, joint: Joint) -> None:
        world = self.world
        if joint.begun or len(joint.posted) < len(joint.members):
            return
        if any(self.lanes[rank, joint.lane][0] is not joint for rank in joint.members):
            return
        if self.dead.intersection(joint.members):
            return
        joint.begun = True
        early = world.random.random() < 0.5
        if early:
            joint.finish(joint.posted)
        world.after(world.random.choice((0, 1, 3, 30)), lambda: self._end(joint, early))

    def _end(self, joint: Joint, moved: bool) -> None:
        if self.dead.intersection(joint.members) and self.world.random.random() < 0.5:
            return  # lost on the way: its sender or its receiver died meanwhile
        if not moved:
            joint.finish(joint.posted)
        joint.done = True
        self.world.note(joint.name)
        for wake in joint.waiting:
            wake()
        lanes = [self.lanes[rank, joint.lane] for rank in joint.members]
        for lane in lanes:
            lane.popleft()
        for lane in lanes:
            if lane:
                self._try(lane[0])


@dataclass(eq=False)
class SimulatedWork:
    """A rank's part of a joint."""

    joint: Joint
    wake: Callable[[], None]

    def wait(self) -> bool:
        if not self.joint.done:
            self.joint.waiting.append(self.wake)
        return self.joint.done


class SimulatedTransport:
    """One rank's end: the runtime's transport interface on a network."""

    device = torch.device("cpu")

    def __init__(self, network: Network, mesh: Mesh, rank: int) -> None:
        self.network, self.mesh, self.rank = network, mesh, rank
        self.wake: Callable[[], None] = lambda: None
        self._numbers: dict[Hashable, int] = {}

    def post_send(self, link: Link, payload: Any) -> SimulatedWork:
        return self._message(link, link.queue.source, payload)

    def post_recv(self, link: Link, payload: Any) -> SimulatedWork:
        return self._message(link, link.queue.target, payload)

    def _message(self, link: Link, me: int, payload: Any) -> SimulatedWork:
        """Messages of a queue meet in the order of their posts, whatever they are meant to be."""
        at = self.mesh.coordinates(self.rank)
        assert me == at["pp"], link
        source = self.mesh.rank_at(**(at | {"pp": link.queue.source}))
        target = self.mesh.rank_at(**(at | {"pp": link.queue.target}))
        number = self._next(link.queue)
        lane = self.network.lane(link.queue)
        move = self.network.payloads.move

        def make() -> Joint:
            return Joint(
                f"{link.queue} #{number} {source} -> {target}",
                lane,
                (source, target),
                lambda posted: move(posted[source], posted[target]),
            )

        return self._post((source, target, link.queue, number), payload, make)

    def post_sum(self, name: str, payload: Any, axes: tuple[str, ...]) -> SimulatedWork:
        group = next(g for g in self.mesh.groups(*axes) if self.rank in g)
        number = self._next(axes)
        lane, add = self.network.lane(axes), self.network.payloads.add

        def make() -> Joint:
            return Joint(
                f"{name} over {group}",
                lane,
                tuple(group),
                lambda posted: add([posted[rank] for rank in group]),
            )

        work = self._post((group, axes, number), payload, make)
        assert work.joint.name == f"{name} over {group}", f"{name} meets {work.joint.name}"
        return work

    def post_tie(self, payload: Any, peer: int) -> SimulatedWork:
        at = self.mesh.coordinates(self.rank)
        pair = tuple(sorted((self.rank, self.mesh.rank_at(**(at | {"pp": peer})))))
        lane, add = self.network.lane(("tie",)), self.network.payloads.add

        def make() -> Joint:
            name = f"tie of {pair}"
            return Joint(name, lane, pair, lambda posted: add([posted[rank] for rank in pair]))

        return self._post((pair, "tie", self._next("tie")), payload, make)

    def _post(self, key: Hashable, payload: Any, make: Callable[[], Joint]) -> SimulatedWork:
        self.network.world.note(f"rank {self.rank} posts {key}")
        return SimulatedWork(self.network.post(self.rank, key, payload, make), self.wake)

    def _next(self, of: Hashable) -> int:
        self._numbers[of] = self._numbers.get(of, -1) + 1
        return self._numbers[of]


class Pace:
    """Lets an executor run one instruction at a time, as slowly as the seed says."""

    def __init__(
        self, world: World, transport: SimulatedTransport, executor: Executor[Any]
    ) -> None:
        self.world, self.transport, self.executor = world, transport, executor
        self.slowness = world.random.choice((1, 1, 1, 20))
        self.finished = False
        self.stops_at = -1  # the row at which the rank dies
        self._allowed = 0
        transport.wake = self._later
        handlers = executor._handlers  # pyright: ignore[reportPrivateUsage]
        handlers[:] = [self._paced(handler) for handler in handlers]
        executor.begin()
        self._later()

    def _paced(self, handler: Handler) -> Handler:
        def paced() -> bool:
            if not self._allowed or not handler():
                return False
            self._allowed -= 1
            return True

        return paced

    def _later(self) -> None:
        self.world.after(self.slowness * self.world.random.choice((0, 1, 2, 9)), self._turn)

    def _turn(self) -> None:
        if self.executor.at == self.stops_at:
            self.transport.network.dead.add(self.transport.rank)
        if self.transport.rank in self.transport.network.dead:
            return
        self._allowed = 1
        self.finished = self.executor.advance()
        if not self.finished and not self._allowed:
            self._later()  # else it stands at a wait, which wakes it
