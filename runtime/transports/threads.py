"""The threads transport: every rank is a thread of one process. For tests, and for small runs.

Messages are rendezvous, as with gloo and NCCL: a send is done when its receive was posted and
filled. Where every rank waits and nothing they wait for is done, that is a hang; it is raised in
all of them at once, so that a wrong order never blocks a test.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from schedc.ir.mesh import AXES, Mesh
from schedc.program.program import Queue
from schedc.runtime.transports.interface import Hang, Link, Waiting


class Mismatch(Exception):
    """Two ranks posted what does not belong together."""


@dataclass(slots=True, eq=False)
class ThreadWork:
    """Something posted by ``rank``; ``what`` describes it when nobody moves any more."""

    hub: Hub
    rank: int
    what: Callable[[], str]
    payload: Tensor | None = None
    link: Link | None = None
    done: bool = False

    def wait(self) -> bool:
        if not self.done:
            self.hub.wait(self)
        self.payload = None
        return True


@dataclass(slots=True)
class _Channel:
    sends: deque[ThreadWork] = field(default_factory=deque[ThreadWork])
    recvs: deque[ThreadWork] = field(default_factory=deque[ThreadWork])


@dataclass(slots=True)
class _Meeting:
    """What the ranks of a group have brought so far, by their position in the group."""

    name: str
    values: dict[int, Any] = field(default_factory=dict[int, Any])
    works: list[ThreadWork] = field(default_factory=list[ThreadWork])


class Hub:
    """What all ranks of the process share: the unmatched posts, and who waits for what."""

    def __init__(self, world: int) -> None:
        self.lock = threading.Lock()
        self.arrived = [threading.Condition(self.lock) for _ in range(world)]
        self.active = set(range(world))
        self.waiting: dict[int, ThreadWork] = {}
        self.failure: BaseException | None = None
        self.channels: dict[tuple[int, Queue], _Channel] = {}
        self.meetings: dict[tuple[tuple[int, ...], int], _Meeting] = {}

    def wait(self, work: ThreadWork) -> None:
        """Block until ``work`` is done; raises what ended another rank, or Hang."""
        with self.lock:
            self.waiting[work.rank] = work
            self._check()
            while not work.done and self.failure is None:
                self.arrived[work.rank].wait()
            del self.waiting[work.rank]
            if not work.done:
                assert self.failure is not None
                raise self.failure

    def complete(self, *works: ThreadWork) -> None:
        with self.lock:
            for work in works:
                work.done = True
                self.arrived[work.rank].notify()

    def leave(self, rank: int, failure: BaseException | None = None) -> None:
        """A rank ended; with ``failure`` all others end too."""
        with self.lock:
            self.active.discard(rank)
            if failure is not None:
                self._fail(failure)
            else:
                self._check()

    def _check(self) -> None:
        waiting = self.waiting
        if not self.active or len(waiting) < len(self.active):
            return
        if any(work.done for work in waiting.values()):
            return
        self._fail(Hang(tuple(Waiting(r, w.what()) for r, w in sorted(waiting.items()))))

    def _fail(self, failure: BaseException) -> None:
        if self.failure is None:
            self.failure = failure
        for condition in self.arrived:
            condition.notify()

    def post(self, channel_key: tuple[int, Queue], work: ThreadWork, sends: bool) -> None:
        """Match a send or receive with the oldest of its queue, or leave it there."""
        with self.lock:
            channel = self.channels.setdefault(channel_key, _Channel())
            mine, others = (
                (channel.sends, channel.recvs) if sends else (channel.recvs, channel.sends)
            )
            if not others:
                mine.append(work)
                return
            other = others.popleft()
        send, recv = (work, other) if sends else (other, work)
        assert send.payload is not None
        assert recv.payload is not None
        sent, expected = send.payload, recv.payload
        if send.link != recv.link or sent.shape != expected.shape or sent.dtype != expected.dtype:
            raise Mismatch(f"sent {_described(send)}, but the receive is {_described(recv)}")
        expected.copy_(sent)
        self.complete(send, recv)

    def meet(self, group: tuple[int, ...], number: int, name: str, work: ThreadWork, value: Any,
             finish: Callable[[list[Any]], None]) -> None:  # fmt: skip
        """Bring ``value`` to the ``number``-th meeting of ``group``; the last one ``finish``es."""
        with self.lock:
            meeting = self.meetings.setdefault((group, number), _Meeting(name))
            if meeting.name != name:
                raise Mismatch(f"rank {work.rank} is at {name}, others at {meeting.name}")
            meeting.values[work.rank] = value
            meeting.works.append(work)
            if len(meeting.values) < len(group):
                return
            del self.meetings[group, number]
        finish([meeting.values[rank] for rank in group])
        self.complete(*meeting.works)


class ThreadsTransport:
    """One rank's end. Make it in any thread, use it in that rank's own."""

    def __init__(self, hub: Hub, mesh: Mesh, rank: int) -> None:
        self.hub = hub
        self.rank = rank
        at = mesh.coordinates(rank)
        self._pipeline_rank = lambda pp: mesh.rank_at(**(at | {"pp": pp}))
        self._pipeline = self._pipeline_rank(0)
        self._world = tuple(range(mesh.size))
        self._groups = {
            axes: next(group for group in mesh.groups(*axes) if rank in group)
            for axes in _axis_sets()
        }
        self._meetings: dict[tuple[int, ...], int] = {}

    def post_send(self, link: Link, payload: Tensor) -> ThreadWork:
        return self._post(link, payload, sends=True)

    def post_recv(self, link: Link, payload: Tensor) -> ThreadWork:
        return self._post(link, payload, sends=False)

    def _post(self, link: Link, payload: Tensor, sends: bool) -> ThreadWork:
        verb = "its send" if sends else "the message"
        work = ThreadWork(self.hub, self.rank, lambda: f"{verb} {link}", payload, link)
        self.hub.post((self._pipeline, link.queue), work, sends)
        return work

    def post_sum(self, name: str, payload: Tensor, axes: tuple[str, ...]) -> ThreadWork:
        group = self._groups[tuple(sorted(axes))]
        work = ThreadWork(self.hub, self.rank, lambda: f"the sum of {name} over ranks {group}")
        if len(group) == 1:
            work.done = True
        else:
            self.hub.meet(group, self._next(group), name, work, payload, _sum_in_place)
        return work

    def post_tie(self, payload: Tensor, peer: int) -> ThreadWork:
        group = tuple(sorted((self.rank, self._pipeline_rank(peer))))
        work = ThreadWork(self.hub, self.rank, lambda: f"the tie of ranks {group}")
        self.hub.meet(group, self._next(group), "tie", work, payload, _sum_in_place)
        return work

    def barrier(self) -> None:
        self._meet("barrier", None)

    def gather(self, value: Any) -> list[Any]:
        values = self._meet("gather", value)
        return values if self.rank == 0 else []

    def share(self, value: Any) -> Any:
        return self._meet("share", value)[0]

    def fetch(self, tensor: Tensor, source: int) -> None:
        def copy(tensors: list[Tensor]) -> None:
            tensors[0].copy_(tensors[1])

        group = (0, source)
        work = ThreadWork(self.hub, self.rank, lambda: f"a tensor of rank {source}")
        self.hub.meet(group, self._next(group), "fetch", work, tensor, copy)
        work.wait()

    def _meet(self, name: str, value: Any) -> list[Any]:
        found: list[Any] = []
        work = ThreadWork(self.hub, self.rank, lambda: f"all ranks at a {name}")
        # Whoever comes last fills everybody's list.
        brought = (value, found)

        def hand_out(all_brought: list[Any]) -> None:
            values = [each for each, _ in all_brought]
            for _, target in all_brought:
                target.extend(values)

        self.hub.meet(self._world, self._next(self._world), name, work, brought, hand_out)
        work.wait()
        return found

    def _next(self, group: tuple[int, ...]) -> int:
        self._meetings[group] = self._meetings.get(group, 0) + 1
        return self._meetings[group]


def _described(work: ThreadWork) -> str:
    assert work.payload is not None
    return f"{work.link} {tuple(work.payload.shape)} {work.payload.dtype}"


def _axis_sets() -> list[tuple[str, ...]]:
    """Every set of mesh axes, sorted."""
    sets: list[tuple[str, ...]] = [()]
    for axis in sorted(AXES):
        sets += [(*axes, axis) for axes in sets]
    return sets[1:]


def _sum_in_place(tensors: list[Tensor]) -> None:
    """Sums in rank order, so that a run repeats bit for bit; allocates nothing."""
    total, *others = tensors
    for tensor in others:
        total += tensor
    for tensor in others:
        tensor.copy_(total)
