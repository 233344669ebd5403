"""A fake of ``torch.distributed`` and of a GPU: every rank runs alone, and its calls are recorded.

The GPU is torch's device without memory, ``meta``; operations that mix its tensors with those of
the CPU are refused, as on a GPU. Nothing is sent, and every wait returns at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from schedc.program.artifact import Artifact
from schedc.runtime.config import RunConfig
from schedc.runtime.rank import Rank, load_states, make_rank
from schedc.runtime.training import run_step
from schedc.runtime.transports.interface import Link, Work
from schedc.runtime.transports.nccl import NcclTransport
from tests.runtime.builds import Shape, artifact_of

DEVICE = torch.device("meta")


@dataclass(frozen=True)
class Communicator:
    """What ``new_group`` made: the ``number``-th call. Ranks are global."""

    number: int
    ranks: tuple[int, ...]
    backend: str
    device: torch.device | None


@dataclass(frozen=True)
class Post:
    """A send, a receive or a sum (``peer`` -1), the ``number``-th post of its rank.

    ``link`` is what a message is to the program; None while setting up, and for sums.
    """

    number: int
    verb: str
    communicator: Communicator
    peer: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    link: Link | None


@dataclass(frozen=True)
class Wait:
    """The current stream waits for a post."""

    post: int


@dataclass(frozen=True)
class Read:
    """The host reads numbers of the device: it waits for the current stream."""


@dataclass(frozen=True)
class Synchronize:
    """The host waits for all streams of the device."""


Call = Communicator | Post | Wait | Read | Synchronize


@dataclass
class Recording:
    """One rank's calls in order. ``steps`` are where its training steps begin."""

    rank: int
    calls: list[Call] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)

    def posts(self, communicator: Communicator | None = None) -> list[Post]:
        return [
            call
            for call in self.calls
            if isinstance(call, Post) and communicator in (None, call.communicator)
        ]

    def communicators(self) -> list[Communicator]:
        return [call for call in self.calls if isinstance(call, Communicator)]


class _Group(dist.ProcessGroup):
    """Stands for a communicator where the code under test wants a process group."""

    def __init__(self, communicator: Communicator, rank: int) -> None:
        super().__init__(rank, len(communicator.ranks))  # pyright: ignore[reportCallIssue]
        self.communicator = communicator


class _Distributed:
    """What one rank sees of ``torch.distributed``."""

    def __init__(self, recording: Recording, world: int) -> None:
        self.recording, self.world = recording, world
        self.link: Link | None = None
        self._posts = 0

    def get_rank(self) -> int:
        return self.recording.rank

    def get_world_size(self) -> int:
        return self.world

    def new_group(
        self,
        ranks: list[int],
        timeout: timedelta,
        backend: str,
        device_id: torch.device | None = None,
    ) -> object:
        number = len(self.recording.communicators())
        made = Communicator(number, tuple(ranks), backend, device_id)
        self.recording.calls.append(made)
        if self.recording.rank not in ranks:
            return dist.GroupMember.NON_GROUP_MEMBER
        return _Group(made, ranks.index(self.recording.rank))

    def isend(self, tensor: Tensor, group: _Group, group_dst: int) -> _Work:
        return self._post("send", tensor, group, group.communicator.ranks[group_dst])

    def irecv(self, tensor: Tensor, group: _Group, group_src: int) -> _Work:
        return self._post("recv", tensor, group, group.communicator.ranks[group_src])

    def all_reduce(self, tensor: Tensor, group: _Group, async_op: bool = False) -> _Work:
        work = self._post("sum", tensor, group, -1)
        if not async_op:
            work.wait()
        return work

    def _post(self, verb: str, tensor: Tensor, group: _Group, peer: int) -> _Work:
        assert tensor.is_contiguous()
        post = Post(
            self._posts,
            verb,
            group.communicator,
            peer,
            tuple(tensor.shape),
            tensor.dtype,
            tensor.device,
            self.link,
        )
        self._posts += 1
        self.recording.calls.append(post)
        return _Work(self.recording, post.number)


class _Linked(NcclTransport):
    """The transport under test, which tells what each message is."""

    fake: _Distributed

    def post_send(self, link: Link, payload: Tensor) -> Work:
        return self._tell(link, super().post_send, payload)

    def post_recv(self, link: Link, payload: Tensor) -> Work:
        return self._tell(link, super().post_recv, payload)

    def _tell(self, link: Link, post: Callable[[Link, Tensor], Work], payload: Tensor) -> Work:
        self.fake.link = link
        work = post(link, payload)
        self.fake.link = None
        return work


@dataclass
class _Work:
    recording: Recording
    number: int

    def wait(self) -> None:
        self.recording.calls.append(Wait(self.number))


class _Event:
    """Stands for ``torch.cuda.Event``."""

    def __init__(self, enable_timing: bool, blocking: bool) -> None:
        assert enable_timing

    def record(self) -> None: ...
    def synchronize(self) -> None: ...
    def elapsed_time(self, end_event: _Event) -> float:
        return 0.0


class _Batches:
    """A batch of zeros for every step: all labels are valid."""

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence

    def rows(self, step: int, start: int, stop: int) -> tuple[_Rows, _Rows]:
        rows = _Rows(np.zeros((stop - start, self.sequence), dtype=np.int64))
        return rows, rows


@dataclass
class _Rows:
    array: np.ndarray

    def numpy(self) -> np.ndarray:
        return self.array


class MixedDevices(Exception):
    """An operation has tensors of the CPU and of the GPU."""


class _Gpu(TorchDispatchMode):
    """Refuses what a GPU would. Numbers may come from the CPU; copies go both ways."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        devices = {t.device for t in tensors if t.device == DEVICE or t.dim() > 0}
        if func is torch.ops.aten._to_copy.default and kwargs.get("device") == torch.device("cpu"):
            return torch.zeros(args[0].shape, dtype=args[0].dtype)
        if len(devices) > 1 and func is not torch.ops.aten.copy_.default:
            raise MixedDevices(f"{func}: {[tuple(t.shape) for t in tensors]}")
        return func(*args, **kwargs)


@contextmanager
def fake_gpu(recording: Recording, world: int) -> Iterator[_Distributed]:
    """Within it, this thread is a rank of ``world`` with a GPU."""

    def read(tensor: Tensor) -> float:
        recording.calls.append(Read())
        return 1.0

    def read_all(tensor: Tensor) -> list[float]:
        recording.calls.append(Read())
        return [1.0] * tensor.numel()

    adamw = torch.optim.AdamW

    def unfused(parameters: list[Tensor], fused: bool, **numbers: Any) -> torch.optim.Optimizer:
        return adamw(parameters, foreach=False, **numbers)  # no fused kernels without memory

    fake = _Distributed(recording, world)
    calls = ("get_rank", "get_world_size", "new_group", "isend", "irecv", "all_reduce")
    to_device = lambda share, rows: torch.zeros(rows.shape, dtype=torch.int64, device=DEVICE)  # noqa: E731
    with (
        patch.multiple(dist, **{name: getattr(fake, name) for name in calls}),
        patch.object(
            torch.cuda, "synchronize", lambda device: recording.calls.append(Synchronize())
        ),
        patch.object(torch.cuda, "Event", _Event),
        patch.object(torch.optim, "AdamW", unfused),
        patch.object(Tensor, "item", read),
        patch.object(Tensor, "tolist", read_all),
        patch("schedc.runtime.share.Share._on_device", to_device),
        _Gpu(),
    ):
        yield fake


def record_rank(artifact: Artifact, number: int, steps: int = 1) -> Recording:
    """The calls of global rank ``number``: setting up, then ``steps`` steps."""
    recording = Recording(number)
    mesh = artifact.manifest.mesh
    with fake_gpu(recording, mesh.size) as fake:
        rank = make_fake_rank(artifact, number, fake)
        for step in range(steps):
            recording.steps.append(len(recording.calls))
            run_step(rank, rank.config, step)
    return recording


def make_fake_rank(artifact: Artifact, number: int, fake: _Distributed) -> Rank:
    """A rank over the nccl transport; to be made and used within ``fake_gpu``."""
    manifest, config = artifact.manifest, RunConfig(data=())
    queues = {queue for program in artifact.programs for queue in program.queues}
    transport = _Linked(manifest.mesh, queues, DEVICE, timedelta(seconds=1))
    transport.fake = fake
    units = artifact.programs[manifest.mesh.coordinates(number)["pp"]].units
    states = load_states(manifest, units, config, DEVICE)
    batches: Any = _Batches(manifest.sequence)
    return make_rank(artifact, number, transport, config, states, batches)


@cache
def record(shape: Shape) -> tuple[Recording, ...]:
    """The calls of every rank of a plan, by global rank."""
    artifact = artifact_of(shape)
    return tuple(record_rank(artifact, n) for n in range(artifact.manifest.mesh.size))
