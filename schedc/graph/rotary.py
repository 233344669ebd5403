"""The rotary frequencies of a configuration: fp32 numbers, as transformers has them.

The formulas are those of its ``modeling_rope_utils.py``, operation by operation.
"""

from __future__ import annotations

import math
from typing import assert_never

import torch
from torch import Tensor

from schedc.model.config import LinearScaling, Llama3Scaling, LlamaConfig, YarnScaling


def inverse_frequencies(config: LlamaConfig) -> tuple[float, ...]:
    """Angle per position of each of the head_dim / 2 pairs."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device="cpu")
    wavelengths = config.rope_theta ** (exponents / config.head_dim)
    match config.rope_scaling:
        case None:
            frequencies = 1.0 / wavelengths
        case LinearScaling(factor):
            frequencies = 1.0 / wavelengths / factor
        case Llama3Scaling() as scaling:
            frequencies = _llama3(1.0 / wavelengths, scaling)
        case YarnScaling() as scaling:
            frequencies = _yarn(wavelengths, scaling, config)
        case never:
            assert_never(never)
    return tuple(frequencies.tolist())


def attention_factor(config: LlamaConfig) -> float:
    """What the rotary tables are multiplied by: YaRN's, otherwise 1."""
    scaling = config.rope_scaling
    return scaling.attention_factor if isinstance(scaling, YarnScaling) else 1.0


def _llama3(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Long wavelengths are stretched by ``factor``, short ones kept, those between blended."""
    context = scaling.original_max_position_embeddings
    longest, shortest = context / scaling.low_freq_factor, context / scaling.high_freq_factor
    wavelengths = 2 * math.pi / frequencies
    stretched = torch.where(wavelengths > longest, frequencies / scaling.factor, frequencies)
    smooth = (context / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    blended = (1 - smooth) * stretched / scaling.factor + smooth * stretched
    between = ~(wavelengths < shortest) & ~(wavelengths > longest)
    return torch.where(between, blended, stretched)


def _yarn(wavelengths: Tensor, scaling: YarnScaling, config: LlamaConfig) -> Tensor:
    """Pairs that turn often in the original context are kept, those that hardly turn stretched.

    Between ``beta_fast`` and ``beta_slow`` turns runs a ramp.
    """
    size, theta = config.head_dim, config.rope_theta

    def pair(turns: float) -> float:
        context = scaling.original_max_position_embeddings
        return (size * math.log(context / (turns * 2 * math.pi))) / (2 * math.log(theta))

    low, high = pair(scaling.beta_fast), pair(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    if low == high:
        high += 0.001  # no division by zero
    ramp = (torch.arange(size // 2, dtype=torch.float32, device="cpu") - low) / (high - low)
    kept = 1 - ramp.clamp(0, 1)
    stretched = 1.0 / (scaling.factor * wavelengths)
    return stretched * (1 - kept) + 1.0 / wavelengths * kept
