"""Which device a rank computes on, and what it is told where that cannot be had."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from schedc.diagnostics import DiagnosticError, render
from schedc.runtime.connect import choose_device, lost_peer
from schedc.runtime.environment import Environment

CPU = torch.device("cpu")
Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Makes this look like another machine."""

    def make(gpus: int, cuda: str | None = "12.8", nccl: bool = True) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(dist, "is_nccl_available", lambda: nccl)

    return make


def rank(number: int, here: int, others: int = 0) -> Environment:
    """Rank ``number`` of this host's ``here``; ``others`` ranks are on hosts before it."""
    variables = {"RANK": others + number, "WORLD_SIZE": others + here}
    variables |= {"LOCAL_RANK": number, "LOCAL_WORLD_SIZE": here}
    return Environment.read({name: str(value) for name, value in variables.items()})


def refusal(wanted: str, environment: Environment) -> str:
    with pytest.raises(DiagnosticError) as caught:
        choose_device(wanted, environment)
    return render(caught.value.diagnostics)


def test_a_gpu_a_rank(machine: Machine) -> None:
    """By the rank on this host, not in the world."""
    machine(gpus=4)
    for wanted in ("auto", "nccl"):
        assert choose_device(wanted, rank(3, here=4, others=8)) == torch.device("cuda", 3)


def test_cpus_on_demand_and_where_there_is_nothing_else(machine: Machine) -> None:
    machine(gpus=4)
    assert choose_device("gloo", rank(1, here=4)) == CPU
    machine(gpus=0)
    assert choose_device("auto", rank(1, here=4)) == CPU


def test_gpus_are_never_silently_left_idle(machine: Machine) -> None:
    machine(gpus=2)
    text = refusal("auto", rank(2, here=4))
    assert "4 ranks were started" in text
    assert "2 GPUs" in text
    assert "--transport gloo" in text
    machine(gpus=2, nccl=False)
    assert "without NCCL" in refusal("auto", rank(0, here=1))


def test_nccl_needs_a_gpu(machine: Machine) -> None:
    machine(gpus=0)
    assert "no GPU is seen" in refusal("nccl", rank(0, here=1))
    machine(gpus=0, cuda=None)
    assert "built without CUDA" in refusal("nccl", rank(0, here=1))


def test_a_process_that_torchrun_did_not_start_has_the_first_gpu(machine: Machine) -> None:
    machine(gpus=1)
    assert choose_device("auto", Environment.read({})) == torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        ("[…/pair.cc:544] Connection closed by peer [127.0.0.1]:4211", True),
        ("NCCL error … ncclRemoteError: remote process exited or there was a network error", True),
        ("CUDA out of memory", False),
    ],
)
def test_errors_of_a_lost_peer(text: str, lost: bool) -> None:
    assert lost_peer(RuntimeError(text)) == lost
