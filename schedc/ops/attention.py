"""Attention as one device-neutral op: ``schedc::attention`` and ``schedc::attention_backward``.

Layout is ``[batch, sequence, heads, head_dim]`` throughout, the order in which projections leave
queries, keys and values; fewer key and value heads than query heads (GQA) are taken as they are.
The log-sum-exp is ``[batch, sequence, heads]``, fp32 (fp64
for fp64). All results are contiguous on every device, so
that graphs traced on a CPU hold elsewhere. A causal mask is aligned top-left: query i sees keys
0..i, also where there are fewer queries than keys.

Kernels are torch's own: flash on CPUs; on CUDA flash for fp16 and bf16 (flash-attn 2, which torch
ships) and memory-efficient for fp32. What they refuse is computed by plain matmuls. Which kernel
runs depends on shapes, dtype, mask and device only, so forward and backward always choose alike.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

aten = torch.ops.aten
Pair = tuple[Tensor, Tensor]
Triple = tuple[Tensor, Tensor, Tensor]

LIBRARY = torch.library.Library("schedc", "FRAGMENT")
LIBRARY.define(
    "attention(Tensor q, Tensor k, Tensor v, float scale, bool causal=True) "
    "-> (Tensor out, Tensor lse)"
)
LIBRARY.define(
    "attention_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
    "float scale, bool causal=True) -> (Tensor dq, Tensor dk, Tensor dv)"
)


def _heads_first(*tensors: Tensor) -> list[Tensor]:
    """Views of ``[b, s, h, d]`` (or ``[b, s, h]``) tensors with heads before the sequence."""
    return [tensor.transpose(1, 2) for tensor in tensors]


def _heads_last(*tensors: Tensor) -> list[Tensor]:
    return [tensor.transpose(1, 2).contiguous() for tensor in tensors]


def _accumulation(q: Tensor) -> torch.dtype:
    """fp32, or fp64 for fp64: the dtype of scores and log-sum-exp."""
    return torch.promote_types(q.dtype, torch.float32)


def _repeat_heads(tensor: Tensor, heads: int) -> Tensor:
    """Key or value heads ``[b, h, s, d]`` repeated until there are ``heads`` of them."""
    return tensor.repeat_interleave(heads // tensor.size(1), dim=1)


def _sum_heads(gradient: Tensor, heads: int) -> Tensor:
    """The transpose of :func:`_repeat_heads`: gradients of repeated heads, summed."""
    return gradient.unflatten(1, (heads, gradient.size(1) // heads)).sum(2)


# -- plain matmuls: what kernels refuse --------------------------------------------------------


def _probabilities(q: Tensor, k: Tensor, scale: float, causal: bool) -> Pair:
    """Attention weights ``[b, h, sq, sk]`` and log-sum-exp ``[b, h, sq]``, heads first."""
    accumulate = _accumulation(q)
    scores = (q.to(accumulate) @ _repeat_heads(k, q.size(1)).to(accumulate).mT) * scale
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    lse = scores.logsumexp(-1)
    return (scores - lse.unsqueeze(-1)).exp(), lse


def math_forward(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Pair:
    q, k, v = _heads_first(q, k, v)
    weights, lse = _probabilities(q, k, scale, causal)
    out = (weights @ _repeat_heads(v, q.size(1)).to(weights.dtype)).to(q.dtype)
    out, lse = _heads_last(out, lse)
    return out, lse


def math_backward(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, scale: float, causal: bool
) -> Triple:
    dout, q, k, v, out = _heads_first(dout, q, k, v, out)
    weights, _ = _probabilities(q, k, scale, causal)
    dout, out = dout.to(weights.dtype), out.to(weights.dtype)
    dweights = dout @ _repeat_heads(v, q.size(1)).to(weights.dtype).mT
    dscores = weights * (dweights - (dout * out).sum(-1, keepdim=True)) * scale
    dq = dscores @ _repeat_heads(k, q.size(1)).to(weights.dtype)
    dk = _sum_heads(dscores.mT @ q.to(weights.dtype), k.size(1))
    dv = _sum_heads(weights.mT @ dout, v.size(1))
    dq, dk, dv = _heads_last(dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype))
    return dq, dk, dv


# -- CPU ---------------------------------------------------------------------------------------


def _flash_takes(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether torch's flash kernels take these: one head size, heads that divide, not empty."""
    same = q.size(3) == k.size(3) == v.size(3) and k.size(2) == v.size(2)
    return same and q.size(2) % k.size(2) == 0 and q.numel() > 0 and k.numel() > 0


def _cpu_forward(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool = True) -> Pair:
    if not _flash_takes(q, k, v):
        return math_forward(q, k, v, scale, causal)
    q, k, v = _heads_first(q, k, v)
    out, lse = aten._scaled_dot_product_flash_attention_for_cpu.default(
        q, k, v, 0.0, causal, scale=scale
    )
    out, lse = _heads_last(out, lse)
    return out, lse


def _cpu_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    scale: float,
    causal: bool = True,
) -> Triple:
    if not _flash_takes(q, k, v):
        return math_backward(dout, q, k, v, out, scale, causal)
    dout, q, k, v, out, lse = _heads_first(dout, q, k, v, out, lse)
    gradients = aten._scaled_dot_product_flash_attention_for_cpu_backward.default(
        dout, q, k, v, out, lse, 0.0, causal, scale=scale
    )
    dq, dk, dv = _heads_last(*gradients)
    return dq, dk, dv


# -- CUDA --------------------------------------------------------------------------------------


@cache
def _is_ampere_or_later(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (8, 0)


def _cuda_kernel(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> str:
    """``flash``, ``efficient`` or ``math``. Head sizes must be multiples of 8, for flash up to 256.

    Flash aligns a causal mask bottom-right: where that differs it is not ours.
    """
    if not _flash_takes(q, k, v) or q.size(3) % 8 or q.dtype == torch.float64:
        return "math"
    if q.dtype == torch.float32:
        return "efficient"
    if not _is_ampere_or_later(q.device):
        return "efficient" if q.dtype == torch.float16 else "math"
    aligned = not causal or q.size(1) == k.size(1)
    return "flash" if aligned and q.size(3) <= 256 else "efficient"


def _cuda_forward(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool = True) -> Pair:
    kernel, length = _cuda_kernel(q, k, v, causal), q.size(1)
    if kernel == "math":
        return math_forward(q, k, v, scale, causal)
    q, k, v = _heads_first(q, k, v)
    if kernel == "flash":
        out, lse, *_ = aten._scaled_dot_product_flash_attention.default(
            q, k, v, 0.0, causal, False, scale=scale
        )
    else:
        k, v = _repeat_heads(k, q.size(1)), _repeat_heads(v, q.size(1))
        out, lse, *_ = aten._scaled_dot_product_efficient_attention.default(
            q, k, v, None, True, 0.0, causal, scale=scale
        )
    # The efficient kernel pads the log-sum-exp to a multiple of 32 queries.
    out, lse = _heads_last(out, lse[..., :length])
    return out, lse


def _cuda_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    scale: float,
    causal: bool = True,
) -> Triple:
    kernel = _cuda_kernel(q, k, v, causal)
    queries, keys, kv_heads = q.size(1), k.size(1), k.size(2)
    if kernel == "math":
        return math_backward(dout, q, k, v, out, scale, causal)
    dout, q, k, v, out, lse = _heads_first(dout, q, k, v, out, lse)
    # Philox seed and offset: read only where there is dropout.
    seed, offset = (torch.zeros((), dtype=torch.int64, device=q.device) for _ in range(2))
    if kernel == "flash":
        dq, dk, dv = aten._scaled_dot_product_flash_attention_backward.default(
            dout, q, k, v, out, lse.contiguous(), None, None, queries, keys, 0.0, causal,
            seed, offset, scale=scale,
        )  # fmt: skip
    else:
        k, v = _repeat_heads(k, q.size(1)), _repeat_heads(v, q.size(1))
        padded = torch.nn.functional.pad(lse, (0, -queries % 32), value=float("inf"))
        dq, dk, dv, _ = aten._scaled_dot_product_efficient_attention_backward.default(
            dout, q, k, v, None, out, padded.contiguous(), seed, offset, 0.0,
            [True, True, True, False], causal, scale=scale,
        )  # fmt: skip
        dk, dv = _sum_heads(dk, kv_heads), _sum_heads(dv, kv_heads)
    dq, dk, dv = _heads_last(dq, dk, dv)
    return dq, dk, dv


# -- shapes and autograd -----------------------------------------------------------------------


def _fake_forward(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool = True) -> Pair:
    batch, length, heads, _ = q.shape
    out = q.new_empty((batch, length, heads, v.size(3)))
    return out, q.new_empty((batch, length, heads), dtype=_accumulation(q))


def _fake_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    scale: float,
    causal: bool = True,
) -> Triple:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx, inputs: tuple, output: Pair) -> None:
    q, k, v, ctx.scale, ctx.causal = inputs
    out, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.save_for_backward(q, k, v, out, lse)


def _differentiate(ctx, dout: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    gradients = torch.ops.schedc.attention_backward.default(
        dout, *ctx.saved_tensors, ctx.scale, ctx.causal
    )
    return *gradients, None, None


LIBRARY.impl("attention", _cpu_forward, "CPU")
LIBRARY.impl("attention", _cuda_forward, "CUDA")
LIBRARY.impl("attention_backward", _cpu_backward, "CPU")
LIBRARY.impl("attention_backward", _cuda_backward, "CUDA")
torch.library.register_fake("schedc::attention", _fake_forward, lib=LIBRARY)
torch.library.register_fake("schedc::attention_backward", _fake_backward, lib=LIBRARY)
torch.library.register_autograd(
    "schedc::attention", _differentiate, setup_context=_save, lib=LIBRARY
)


def attention(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool = True) -> Pair:
    """``softmax(scale · q kᵀ) v`` and its log-sum-exp.

    ``q`` is ``[batch, queries, heads, head_dim]``, ``k`` and ``v`` are
    ``[batch, keys, kv_heads, head_dim]`` with ``kv_heads`` dividing ``heads``. Returns the output,
    shaped as ``q``, and the log-sum-exp ``[batch, queries, heads]``, which has no gradient.
    """
    return torch.ops.schedc.attention.default(q, k, v, scale, causal)
