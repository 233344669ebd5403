"""Newer flash-attention kernels in the place of torch's own, where they are installed and right."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import attention as registry

from schedc.ops.attention import math_backward, math_forward

NEWER = {9: ("FA3", "FA4"), 10: ("FA4",)}
"""By the GPU's major compute capability: torch's names of flash-attn 3 and 4, best first."""

LENGTH = 256
TOLERANCE = 0.02
"""Of bf16, relative to the largest number: kernels round at other places than matmuls do."""


def use_newest_flash(device: torch.device, heads: int, kv_heads: int, head_dim: int) -> str:
    """Let ``schedc::attention`` use flash-attn 3 or 4 for fp16 and bf16; says what is used.

    Each that is installed is tried on a small problem with the model's heads, forward and backward.
    One that fails, or that differs from plain matmuls, is left alone.
    """
    major, _ = torch.cuda.get_device_capability(device)
    failures: list[str] = []
    for name in NEWER.get(major, ()):
        try:
            registry.activate_flash_attention_impl(name)
            difference = _difference(device, heads, kv_heads, head_dim)
        except (ImportError, AttributeError):  # not installed; a torch without the registry
            continue
        except Exception as error:  # whatever a young library may raise
            failures.append(f"{name} fails: {str(error).splitlines()[0]}")
        else:
            if difference <= TOLERANCE:
                return f"flash-attn {name[2:]}"
            failures.append(f"{name} differs from matmuls by {difference:.3f}")
        registry.restore_flash_attention_impl()
    return "; ".join(["torch's own kernels", *failures])


def _difference(device: torch.device, heads: int, kv_heads: int, head_dim: int) -> float:
    """The largest difference of the op's results from those of matmuls, of the largest number."""
    generator = torch.Generator(device).manual_seed(0)

    def random(heads: int) -> Tensor:
        shape = (1, LENGTH, heads, head_dim)
        return torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16)

    q, k, v, dout = random(heads), random(kv_heads), random(kv_heads), random(heads)
    scale = head_dim**-0.5
    out, lse = torch.ops.schedc.attention.default(q, k, v, scale)
    gradients = torch.ops.schedc.attention_backward.default(dout, q, k, v, out, lse, scale)
    plain, plain_lse = math_forward(q, k, v, scale, True)
    expected = (plain, plain_lse, *math_backward(dout, q, k, v, plain, scale, True))
    differences = [
        (a.float() - b.float()).abs().max() / b.float().abs().max()
        for a, b in zip((out, lse, *gradients), expected, strict=True)
    ]
    return torch.stack(differences).max().item()  # not a number, if one is not
