"""``runtime/exec.py`` with the nccl transport on CPUs: its groups are gloo's, all else is its own.

gloo's sends are rendezvous as NCCL's are, and its waits hold the host as NCCL's hold the stream.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from schedc.program.artifact import Artifact
from schedc.program.program import tied_ranks
from schedc.runtime import connect, launch
from schedc.runtime.transports.nccl import NcclTransport

new_group = dist.new_group


def new_gloo_group(
    ranks: list[int], timeout: timedelta, backend: str, device_id: torch.device | None = None
) -> Any:
    assert (backend, device_id) == ("nccl", torch.device("cpu"))
    return new_group(ranks, timeout=timeout, backend="gloo")


def main() -> None:
    def over_nccl(environment: Any, store: Any, artifact: Artifact, *others: Any) -> NcclTransport:
        connect.connect(environment, store, artifact, *others)  # joins the others; unused
        dist.new_group = new_gloo_group
        queues = {queue for program in artifact.programs for queue in program.queues}
        mesh = artifact.manifest.mesh
        tied = tied_ranks(artifact.programs)
        return NcclTransport(mesh, queues, torch.device("cpu"), timedelta(seconds=60), tied)

    torch.cuda.synchronize = lambda device: None
    launch.connect = over_nccl
    launch.main()


if __name__ == "__main__":
    main()
