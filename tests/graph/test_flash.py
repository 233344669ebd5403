"""Which flash-attention kernels a GPU gets. There is none here: torch's registry is replaced."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from schedc.ops import flash
from schedc.ops.flash import TOLERANCE, use_newest_flash

CPU = torch.device("cpu")


class Registry:
    """Torch's registry of kernels; ``found`` says what happens where one is activated."""

    def __init__(self, found: dict[str, float | Exception]) -> None:
        self.found = found
        self.active: str | None = None

    def activate_flash_attention_impl(self, name: str) -> None:
        if name not in self.found:
            raise ImportError(name)
        self.active = name

    def restore_flash_attention_impl(self) -> None:
        self.active = None

    def difference(self, *problem: object) -> float:
        assert problem == (CPU, 4, 2, 16)
        assert self.active is not None
        result = self.found[self.active]
        if isinstance(result, Exception):
            raise result
        return result


@pytest.fixture
def choose(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[str, str | None]]:
    """What is used and what is active, on a GPU with these kernels installed."""

    def choose(major: int, **found: float | Exception) -> tuple[str, str | None]:
        registry = Registry(found)
        monkeypatch.setattr(flash, "registry", registry)
        monkeypatch.setattr(flash, "_difference", registry.difference)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (major, 0))
        return use_newest_flash(CPU, 4, 2, 16), registry.active

    return choose


def test_torchs_own_where_nothing_newer_is_installed_or_made_for_the_gpu(choose) -> None:
    assert choose(9) == ("torch's own kernels", None)
    assert choose(8, FA3=0.0, FA4=0.0) == ("torch's own kernels", None)
    assert choose(10, FA3=0.0) == ("torch's own kernels", None)


def test_the_newest_that_agrees_with_matmuls(choose) -> None:
    assert choose(9, FA3=0.01, FA4=0.01) == ("flash-attn 3", "FA3")
    assert choose(9, FA4=0.01) == ("flash-attn 4", "FA4")
    assert choose(10, FA3=0.0, FA4=TOLERANCE) == ("flash-attn 4", "FA4")


def test_what_fails_or_differs_is_named_and_left_alone(choose) -> None:
    assert choose(9, FA3=0.5, FA4=0.01) == ("flash-attn 4", "FA4")
    text, active = choose(9, FA3=0.5, FA4=RuntimeError("no such kernel\nat …"))
    assert active is None
    assert (
        text == "torch's own kernels; FA3 differs from matmuls by 0.500; FA4 fails: no such kernel"
    )


def test_a_difference_that_is_no_number_is_no_agreement(choose) -> None:
    _, active = choose(10, FA4=float("nan"))
    assert active is None


def test_the_kernels_of_this_torch_agree_with_matmuls() -> None:
    """The trial problem itself, on the CPU: bf16 rounding is within the tolerance, and visible."""
    assert 0 < flash._difference(CPU, 4, 2, 16) <= TOLERANCE
    assert flash._difference(CPU, 8, 8, 64) <= TOLERANCE


def test_one_result_that_is_no_number_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: object) -> tuple[torch.Tensor, ...]:
        q, k, v = (torch.ones(1, flash.LENGTH, heads, 16) for heads in (4, 2, 2))
        return q, k.fill_(float("nan")), v

    monkeypatch.setattr(flash, "math_backward", broken)
    assert not flash._difference(CPU, 4, 2, 16) <= TOLERANCE
