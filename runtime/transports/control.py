"""What runs outside a step, between processes: over gloo, on CPUs, whatever carries the messages.

Kept apart from the messages, so that it needs no memory of a GPU and no communicator of NCCL.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor


class GlooControl:
    """One rank's end of the default process group, which has to be gloo's."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()

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
