"""The gloo transport: one process a rank, messages over TCP between CPUs.

Facts of gloo that this file rests on (torch 2.13): a send is a rendezvous; messages of one pair
and communicator arrive in the order of their posts; shapes and dtypes are not checked, so programs
are verified before they run; a message must be contiguous; a wait that times out closes the pair,
so nothing here polls.
"""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from schedc.ir.mesh import Mesh
from schedc.runtime.transports.control import GlooControl
from schedc.runtime.transports.groups import make_groups
from schedc.runtime.transports.interface import DONE, Link, Work


class GlooTransport(GlooControl):
    """One rank's end. Groups are made at once, in an order that is the same on all ranks."""

    device = torch.device("cpu")

    def __init__(self, mesh: Mesh, timeout: timedelta, tied: tuple[int, ...] = ()) -> None:
        """``tied`` are the two pipeline ranks between which a gradient is tied, if there are."""
        super().__init__()

        def new(ranks: tuple[int, ...]) -> dist.ProcessGroup | None:
            group = dist.new_group(list(ranks), timeout=timeout, backend="gloo")
            return group if isinstance(group, dist.ProcessGroup) else None

        self._groups = make_groups(mesh, self.rank, new, tied)

    def post_send(self, link: Link, payload: Tensor) -> Work:
        group = self._groups.queues[link.queue.kind]
        work = dist.isend(payload.contiguous(), group=group, group_dst=link.queue.target)
        assert work is not None
        return work

    def post_recv(self, link: Link, payload: Tensor) -> Work:
        group = self._groups.queues[link.queue.kind]
        work = dist.irecv(payload, group=group, group_src=link.queue.source)
        assert work is not None
        return work

    def post_sum(self, name: str, payload: Tensor, axes: tuple[str, ...]) -> Work:
        group = self._groups.sums[axes]
        if group is None:
            return DONE
        work = dist.all_reduce(payload, group=group, async_op=True)
        assert work is not None
        return work

    def post_tie(self, payload: Tensor, peer: int) -> Work:
        assert self._groups.tie is not None, "the group of a tie is made at once"
        work = dist.all_reduce(payload, group=self._groups.tie, async_op=True)
        assert work is not None
        return work
