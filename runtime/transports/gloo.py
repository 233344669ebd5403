"""The gloo transport: one process a rank, messages over TCP between CPUs.

Facts of gloo that this file rests on (torch 2.13): a send is a rendezvous; messages of one pair
and communicator arrive in the order of their posts; shapes and dtypes are not checked, so programs
are verified before they run; a message must be contiguous; a wait that times out closes the pair,
so nothing here polls.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch import Tensor

from schedc.ir.mesh import Mesh
from schedc.runtime.transports.interface import Link, Work

SUMS: tuple[tuple[str, ...], ...] = (("dp",), ("pp",), ("dp", "pp"))
"""The sets of axes that programs sum over."""


LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Socket closed",
)
"""What gloo's errors say when the other side is gone."""


class _Done:
    """The sum over a group of one."""

    def wait(self) -> bool:
        return True


DONE = _Done()


class GlooTransport:
    """One rank's end. Groups are made at once, in an order that is the same on all ranks.

    Each pipeline group has one communicator for activations and one for gradients. Groups of one
    get none.
    """

    def __init__(self, mesh: Mesh, timeout: timedelta, tied: tuple[int, ...] = ()) -> None:
        """``tied`` are the two pipeline ranks between which a gradient is tied, if there are."""
        self.rank = dist.get_rank()
        self._queues: dict[str, dist.ProcessGroup] = {}
        for ranks in mesh.groups("pp"):
            for kind in ("act", "grad"):
                group = _new_group(ranks, timeout)
                if group is not None and self.rank in ranks:
                    self._queues[kind] = group
        self._sums: dict[tuple[str, ...], dist.ProcessGroup | None] = {}
        made: dict[tuple[int, ...], dist.ProcessGroup | None] = {}
        for axes in SUMS:
            for ranks in mesh.groups(*axes):
                if ranks not in made:
                    made[ranks] = _new_group(ranks, timeout)
                if self.rank in ranks:
                    self._sums[axes] = made[ranks]
        self._tie: dist.ProcessGroup | None = None
        for pipeline in mesh.groups("pp") if tied else ():
            ranks = tuple(pipeline[pp] for pp in tied)
            if ranks not in made:
                made[ranks] = _new_group(ranks, timeout)
            if self.rank in ranks:
                self._tie = made[ranks]

    def post_send(self, link: Link, payload: Tensor) -> Work:
        group = self._queues[link.queue.kind]
        work = dist.isend(payload.contiguous(), group=group, group_dst=link.queue.target)
        assert work is not None
        return work

    def post_recv(self, link: Link, payload: Tensor) -> Work:
        group = self._queues[link.queue.kind]
        work = dist.irecv(payload, group=group, group_src=link.queue.source)
        assert work is not None
        return work

    def post_sum(self, name: str, payload: Tensor, axes: tuple[str, ...]) -> Work:
        group = self._sums[axes]
        if group is None:
            return DONE
        work = dist.all_reduce(payload, group=group, async_op=True)
        assert work is not None
        return work

    def post_tie(self, payload: Tensor, peer: int) -> Work:
        assert self._tie is not None, "the group of a tie is made at once"
        work = dist.all_reduce(payload, group=self._tie, async_op=True)
        assert work is not None
        return work

    def barrier(self) -> None:
        dist.barrier()

    def gather(self, value: Any) -> list[Any]:
        values: list[Any] | None = [None] * dist.get_world_size() if self.rank == 0 else None
        dist.gather_object(value, values, dst=0)
        return values or []

    def share(self, value: Any) -> Any:
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    def fetch(self, tensor: Tensor, source: int) -> None:
        if self.rank == 0:
            dist.recv(tensor, src=source)
        else:
            dist.send(tensor.contiguous(), dst=0)


def _new_group(ranks: tuple[int, ...], timeout: timedelta) -> dist.ProcessGroup | None:
    """A communicator of ``ranks``; every rank of the world makes this call. None for one rank."""
    if len(ranks) == 1:
        return None
    group = dist.new_group(list(ranks), timeout=timeout, backend="gloo")
    return group if isinstance(group, dist.ProcessGroup) else None


def lost_peer(error: RuntimeError) -> bool:
    """Whether ``error`` is how gloo says that the other side is gone."""
    text = str(error)
    return any(sign in text for sign in LOST)
