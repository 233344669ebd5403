"""What a transport offers: messages between pipeline ranks, and sums over mesh axes.

Everything here posts; only ``Work.wait`` blocks. The shape fits NCCL as it stands: the activations
and the gradients of a pipeline group are different ``Link.queue.kind``, so each gets its own
communicator; a post enqueues on that communicator's stream, and ``wait`` makes the compute stream,
not the host, wait for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from schedc.ir.order import Task
from schedc.program.program import Queue

if TYPE_CHECKING:
    import torch
    from torch import Tensor

P_contra = TypeVar("P_contra", contravariant=True)
"""What travels: a tensor, or nothing on the virtual transport."""


@dataclass(frozen=True, slots=True)
class Link:
    """A message's way: its queue, its number there, and the task that produced it."""

    queue: Queue
    sequence: int
    task: Task

    def __str__(self) -> str:
        return f"{self.queue} seq {self.sequence}, {self.task}"


class Work(Protocol):
    """Something posted."""

    def wait(self) -> bool:
        """Block until it is done and return True.

        A cooperative transport returns False instead of blocking: call again later.
        """
        ...


class _Done:
    """What needs no wait: the sum over a group of one."""

    def wait(self) -> bool:
        return True


DONE = _Done()


class Transport(Protocol[P_contra]):
    """One rank's end of the connections to all others."""

    def post_send(self, link: Link, payload: P_contra) -> Work:
        """Post a message; ``payload`` must neither change nor be freed before its wait."""
        ...

    def post_recv(self, link: Link, payload: P_contra) -> Work:
        """Post the receive of a message into ``payload``, which has its shape and dtype."""
        ...

    def post_sum(self, name: str, payload: P_contra, axes: tuple[str, ...]) -> Work:
        """Post the sum, in place, over this rank's group along ``axes``; equal bits on all ranks.

        ``name`` says what is summed (``count``, ``norm``, ``report`` or a unit); every rank of a
        group posts its sums in the same order.
        """
        ...

    def post_tie(self, payload: P_contra, peer: int) -> Work:
        """Post the sum, in place, over this rank and pipeline rank ``peer`` of its replica.

        Both get equal bits: what is added is two numbers. A program has one at most.
        """
        ...


class TensorTransport(Transport["Tensor"], Protocol):
    """A transport of tensors. Those of a rank live on its ``device``."""

    @property
    def device(self) -> torch.device: ...


class Control(Protocol):
    """What runs outside a step: setting up, gathering results, keeping ranks together.

    Every rank makes the same calls in the same order.
    """

    @property
    def rank(self) -> int:
        """The global rank."""
        ...

    def barrier(self) -> None:
        """Return when every rank has come here."""
        ...

    def gather(self, value: Any) -> list[Any]:
        """Every rank's value, by rank, on rank 0; an empty list elsewhere."""
        ...

    def share(self, value: Any) -> Any:
        """Rank 0's value on every rank."""
        ...

    def fetch(self, tensor: Tensor, source: int) -> None:
        """Fill rank 0's ``tensor`` with that of ``source``; only these two make the call.

        Both tensors are on the CPU.
        """
        ...


class Endpoint(TensorTransport, Control, Protocol):
    """What a rank of a real run has: messages and sums of tensors, and control."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a rank waits for when nothing moves any more."""

    rank: int
    what: str

    def __str__(self) -> str:
        return f"rank {self.rank} waits for {self.what}"


class Hang(Exception):
    """No rank can move: each of ``waiting`` waits for what none of the others will do."""

    def __init__(self, waiting: tuple[Waiting, ...]) -> None:
        self.waiting = waiting
        super().__init__("no rank can move\n" + "\n".join(f"  {w}" for w in waiting))
