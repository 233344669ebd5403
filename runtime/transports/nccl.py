"""The nccl transport: one process and one GPU a rank.

Facts of NCCL and of torch's ``ProcessGroupNCCL`` that this file rests on (torch 2.11 to 2.13):

* A send may block its stream until it is received, a receive until it is sent; whether small ones
  are buffered is not promised. The verifier assumes that none are.
* A group made with ``device_id`` connects at once and has one communicator with one stream, on
  which all its operations follow one another in the order of their posts, whatever their peer and
  direction. Activations and gradients therefore have a group each, so that neither holds the other.
* A post waits, on that stream, for what the current stream was given before it. ``wait`` makes the
  current stream, not the host, wait for the post. So the current stream runs the program just as
  the host would if it did block, and what is proved of the program holds on the device.
* torch keeps the tensors of a post until its wait. What fills them is enqueued before the post,
  and what uses or frees them after the wait, both on the current stream.
* The first message of a pair in a direction makes the host wait for the peer, while they connect.
* Streams are not promised to run side by side (``CUDA_DEVICE_MAX_CONNECTIONS=1``). Programs finish
  even if everything that a rank enqueues runs one by one: all ranks post in one order of transfers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from schedc.ir.mesh import Mesh
from schedc.program.program import Queue
from schedc.runtime.transports.control import GlooControl
from schedc.runtime.transports.groups import KINDS, make_groups
from schedc.runtime.transports.interface import DONE, Link, Work


class NcclTransport(GlooControl):
    """One rank's end. ``queues`` are those of all programs; ``device`` is this rank's GPU; ``tied``
    are the two pipeline ranks between which a gradient is tied, if there are.

    Communicators are made and connected at once, in an order that is the same on all ranks.
    """

    def __init__(
        self,
        mesh: Mesh,
        queues: Iterable[Queue],
        device: torch.device,
        timeout: timedelta,
        tied: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        self.device = device
        # That posts of one group follow one another is what the proof rests on, no surprise.
        os.environ.setdefault("TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING", "false")

        def new(ranks: tuple[int, ...]) -> dist.ProcessGroup | None:
            group = dist.new_group(list(ranks), timeout=timeout, backend="nccl", device_id=device)
            return group if isinstance(group, dist.ProcessGroup) else None

        self._groups = make_groups(mesh, self.rank, new, tied)
        self._pp = mesh.coordinates(self.rank)["pp"]
        self._warm_up(queues)

    def post_send(self, link: Link, payload: Tensor) -> Work:
        return self._send(link.queue, payload)

    def post_recv(self, link: Link, payload: Tensor) -> Work:
        return self._recv(link.queue, payload)

    def post_sum(self, name: str, payload: Tensor, axes: tuple[str, ...]) -> Work:
        group = self._groups.sums[axes]
        if group is None:
            return DONE
        work = dist.all_reduce(payload, group=group, async_op=True)
        assert work is not None
        return _Posted(work, payload)

    def post_tie(self, payload: Tensor, peer: int) -> Work:
        assert self._groups.tie is not None, "the group of a tie is made at once"
        work = dist.all_reduce(payload, group=self._groups.tie, async_op=True)
        assert work is not None
        return _Posted(work, payload)

    def _send(self, queue: Queue, payload: Tensor) -> Work:
        payload = payload.contiguous()
        group = self._groups.queues[queue.kind]
        work = dist.isend(payload, group=group, group_dst=queue.target)
        assert work is not None
        return _Posted(work, payload)

    def _recv(self, queue: Queue, payload: Tensor) -> Work:
        group = self._groups.queues[queue.kind]
        work = dist.irecv(payload, group=group, group_src=queue.source)
        assert work is not None
        return _Posted(work, payload)

    def _warm_up(self, queues: Iterable[Queue]) -> None:
        """Use every communicator and every queue once, one after another.

        Connections are made here, where all ranks follow one order, and not in the first step.
        """
        number = torch.zeros(1, device=self.device)
        for _, group in self._groups.made:
            dist.all_reduce(number, group=group)
            torch.cuda.synchronize(self.device)
        for queue in sorted(set(queues), key=lambda q: (KINDS.index(q.kind), q.source, q.target)):
            if self._pp == queue.source:
                self._send(queue, number).wait()
            elif self._pp == queue.target:
                self._recv(queue, number).wait()
            torch.cuda.synchronize(self.device)


class _Posted:
    """Something posted, and its tensor, which has to live until the wait."""

    def __init__(self, work: dist.Work, payload: Tensor) -> None:
        self._work, self._payload = work, payload

    def wait(self) -> bool:
        """Lets the current stream wait; the host goes on."""
        self._work.wait()
        return True
