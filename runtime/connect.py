"""How a rank joins the others: which transport carries its messages, on which device."""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from schedc.diagnostics import Diagnostic, DiagnosticError
from schedc.program.artifact import Artifact
from schedc.program.program import tied_ranks
from schedc.runtime.environment import Environment
from schedc.runtime.transports.gloo import GlooTransport
from schedc.runtime.transports.interface import Endpoint
from schedc.runtime.transports.nccl import NcclTransport
from schedc.runtime.watchdog import PATIENCE

LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Socket closed",
    "remote process exited or there was a network error",
)
"""What the errors of gloo, and the last of NCCL, say when the other side is gone."""


def choose_device(wanted: str, environment: Environment) -> torch.device:
    """This rank's device for ``--transport``: its GPU for nccl, the CPU for gloo.

    ``auto`` is nccl where torch sees a GPU. Raises E904 where NCCL cannot be had: a GPU that is
    there is never silently left idle.
    """
    if wanted == "gloo" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        why = "this torch is built without CUDA" if torch.version.cuda is None else "no GPU is seen"
        raise _refusal(f"--transport nccl needs GPUs, but {why}")
    if not dist.is_nccl_available():
        raise _refusal("there are GPUs, but this torch is built without NCCL")
    here, gpus = environment.local_world, torch.cuda.device_count()
    if environment.local_rank >= gpus:
        raise _refusal(
            f"{here} ranks were started on {environment.host}, which shows {gpus} GPUs to them; "
            "every rank needs one of its own"
        )
    return torch.device("cuda", environment.local_rank)


def connect(
    environment: Environment,
    store: TCPStore,
    artifact: Artifact,
    device: torch.device,
    timeout: float,
) -> Endpoint:
    """Join the others. The transports' own timeout is longer than the watchdog's ``timeout``
    (seconds), which says more.
    """
    environment.prefer_loopback()
    patience = timedelta(seconds=2 * timeout + 60)
    mesh, tied = artifact.manifest.mesh, tied_ranks(artifact.programs)
    try:
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group(
            "gloo",
            store=environment.prefixed(store, "groups"),
            rank=environment.rank,
            world_size=environment.world,
            timeout=max(patience, timedelta(seconds=PATIENCE)),
        )
        if device.type == "cpu":
            return GlooTransport(mesh, patience, tied)
        queues = {queue for program in artifact.programs for queue in program.queues}
        return NcclTransport(mesh, queues, device, patience, tied)
    except RuntimeError as error:
        if lost_peer(error):
            raise
        message = f"rank {environment.rank} cannot connect to the others: {error}"
        networks = "GLOO_SOCKET_IFNAME"
        if device.type == "cuda":
            networks += " (gloo) and NCCL_SOCKET_IFNAME (NCCL)"
        helps = f"{networks} name{'s' * (device.type == 'cpu')} the network device to use"
        raise DiagnosticError(Diagnostic("E904", message, help=helps)) from error


def lost_peer(error: RuntimeError) -> bool:
    """Whether ``error`` is how gloo or NCCL say that the other side is gone."""
    text = str(error)
    return any(sign in text for sign in LOST)


def _refusal(message: str) -> DiagnosticError:
    help = "--transport gloo runs on CPUs"
    return DiagnosticError(Diagnostic("E904", message, help=help))
