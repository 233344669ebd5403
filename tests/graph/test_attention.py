"""``schedc::attention`` and its backward: contract, kernels, fallback."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.library import opcheck
from torch.utils._python_dispatch import TorchDispatchMode

from schedc.ops import attention
from schedc.ops.attention import (
    _cuda_backward,
    _cuda_forward,
    _is_ampere_or_later,
    math_backward,
    math_forward,
)

OP = torch.ops.schedc.attention.default
BACKWARD = torch.ops.schedc.attention_backward.default
CASES = [
    pytest.param(dtype, kv, causal, id=f"{name}-kv{kv}-{'causal' if causal else 'full'}")
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp64", torch.float64))
    for kv in (4, 2, 1)
    for causal in (True, False)
]


def heads(dtype: torch.dtype, kv: int, keys: int = 16, size: int = 16) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 16, 4, size), (2, keys, kv, size), (2, keys, kv, size))
    return [torch.randn(s, generator=generator).to(dtype).requires_grad_() for s in shapes]


@pytest.mark.parametrize(("dtype", "kv", "causal"), CASES)
def test_bitwise_equal_to_torchs_own(dtype: torch.dtype, kv: int, causal: bool) -> None:
    q, k, v = heads(dtype, kv)
    out, lse = attention(q, k, v, 0.25, causal)
    first = [t.transpose(1, 2) for t in (q, k, v)]
    theirs = torch.nn.functional.scaled_dot_product_attention(
        first[0], first[1], first[2], is_causal=causal, scale=0.25, enable_gqa=True
    ).transpose(1, 2)
    assert torch.equal(out, theirs)
    assert out.is_contiguous()
    assert lse.is_contiguous()
    assert lse.dtype == torch.promote_types(dtype, torch.float32)
    assert not lse.requires_grad
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    for ours, other in zip(
        torch.autograd.grad(out, (q, k, v), dout),
        torch.autograd.grad(theirs, (q, k, v), dout),
        strict=True,
    ):
        assert torch.equal(ours, other)
        assert ours.is_contiguous()


@pytest.mark.parametrize(("dtype", "kv", "causal"), CASES)
def test_matmuls_agree_with_the_kernels(dtype: torch.dtype, kv: int, causal: bool) -> None:
    q, k, v = (t.detach() for t in heads(dtype, kv))
    out, lse = attention(q, k, v, 0.25, causal)
    plain, plain_lse = math_forward(q, k, v, 0.25, causal)
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    atol = {torch.float32: 1e-6, torch.bfloat16: 2e-2, torch.float64: 1e-14}[dtype]
    torch.testing.assert_close(plain, out, rtol=0, atol=atol)
    # lse is below 5: an ulp of fp32 or fp64 is the largest difference; of bf16 inputs, 6e-5.
    lse_atol = {torch.float32: 1e-6, torch.bfloat16: 2e-4, torch.float64: 2e-15}[dtype]
    torch.testing.assert_close(plain_lse, lse, rtol=0, atol=lse_atol)
    gradients = BACKWARD(dout, q, k, v, out, lse, 0.25, causal)
    for ours, other in zip(math_backward(dout, q, k, v, out, 0.25, causal), gradients, strict=True):
        torch.testing.assert_close(ours, other, rtol=0, atol=2 * atol)
        assert ours.is_contiguous()


def test_fewer_queries_than_keys_are_aligned_top_left() -> None:
    q, k, v = (t.detach() for t in heads(torch.float32, 2))
    out, lse = attention(q[:, :8].contiguous(), k, v, 0.25)
    whole, whole_lse = attention(q, k, v, 0.25)
    torch.testing.assert_close(out, whole[:, :8])
    torch.testing.assert_close(lse, whole_lse[:, :8])


def test_what_the_kernel_refuses_is_computed_by_matmuls() -> None:
    """Values of another size than keys: no flash kernel takes them."""
    q, k, v = heads(torch.float64, 2)
    v = v[..., :6].detach().requires_grad_()
    assert attention(q, k, v, 0.25)[0].shape == (2, 16, 4, 6)
    assert torch.autograd.gradcheck(
        lambda q, k, v: attention(q, k, v, 0.25)[0], (q[:, :4], k[:, :4], v[:, :4])
    )


@pytest.mark.parametrize(("dtype", "kv", "causal"), CASES[:8])
def test_opcheck(dtype: torch.dtype, kv: int, causal: bool) -> None:
    """Schema, fakes (strides too), autograd's registration, AOT dispatch."""
    q, k, v = heads(dtype, kv)
    tests = ["test_schema", "test_autograd_registration", "test_faketensor"]
    if dtype == torch.float32:
        tests.append("test_aot_dispatch_dynamic")
    opcheck(OP, (q, k, v, 0.25, causal), test_utils=tests)
    q, k, v = (t.detach() for t in (q, k, v))
    out, lse = attention(q, k, v, 0.25, causal)
    opcheck(BACKWARD, (torch.randn_like(out), q, k, v, out, lse, 0.25, causal), test_utils=tests)


# On CUDA. There is none here: what is called, and what comes back, is seen on tensors without
# memory, for which torch knows the kernels' schemas, shapes and strides.

FLASH = "aten::_scaled_dot_product_flash_attention"
EFFICIENT = "aten::_scaled_dot_product_efficient_attention"


class Calls(TorchDispatchMode):
    """The attention kernels that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "attention" in func.name():
            self.kernels.append(func.name())
        return func(*args, **(kwargs or {}))


def on_cuda(
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    dtype: torch.dtype,
    queries: int = 16,
    size: int = 16,
    causal: bool = True,
) -> list[str]:
    """The kernels of a forward and a backward; checks shapes, dtypes and strides of the results."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    _is_ampere_or_later.cache_clear()
    q = torch.empty(2, queries, 4, size, dtype=dtype, device="meta")
    k, v = (torch.empty(2, 16, 2, size, dtype=dtype, device="meta") for _ in range(2))
    with Calls() as calls:
        out, lse = _cuda_forward(q, k, v, 0.25, causal)
        gradients = _cuda_backward(torch.empty_like(out), q, k, v, out, lse, 0.25, causal)
    assert (out.shape, out.dtype) == (q.shape, dtype)
    assert lse.shape == (2, queries, 4)
    assert lse.dtype == torch.promote_types(dtype, torch.float32)
    for gradient, of in zip(gradients, (q, k, v), strict=True):
        assert (gradient.shape, gradient.dtype) == (of.shape, dtype)
    assert all(tensor.is_contiguous() for tensor in (out, lse, *gradients))
    return calls.kernels


HALF, BF16, FP32 = torch.float16, torch.bfloat16, torch.float32
AMPERE, TURING, HOPPER = (8, 0), (7, 5), (9, 0)


@pytest.mark.parametrize(
    ("capability", "dtype", "other", "kernel"),
    [
        pytest.param(AMPERE, BF16, {}, FLASH, id="bf16"),
        pytest.param(HOPPER, HALF, {}, FLASH, id="fp16"),
        pytest.param(HOPPER, FP32, {}, EFFICIENT, id="fp32"),
        pytest.param(HOPPER, torch.float64, {}, None, id="fp64"),
        pytest.param(TURING, HALF, {}, EFFICIENT, id="fp16 before Ampere"),
        pytest.param(TURING, BF16, {}, None, id="bf16 before Ampere"),
        pytest.param(HOPPER, BF16, {"size": 264}, EFFICIENT, id="large heads"),
        pytest.param(HOPPER, BF16, {"size": 20}, None, id="heads of no multiple of 8"),
        pytest.param(HOPPER, BF16, {"queries": 8}, EFFICIENT, id="fewer queries, masked"),
        pytest.param(HOPPER, BF16, {"queries": 8, "causal": False}, FLASH, id="fewer queries"),
        pytest.param(HOPPER, FP32, {"queries": 40}, EFFICIENT, id="padded log-sum-exp"),
    ],
)
def test_kernels_on_cuda(
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    dtype: torch.dtype,
    other: dict[str, Any],
    kernel: str | None,
) -> None:
    """flash-attention aligns a causal mask bottom-right: with fewer queries it would be wrong."""
    found = on_cuda(monkeypatch, capability, dtype, **other)
    assert found == ([kernel, f"{kernel}_backward"] if kernel else [])
