"""The rotary frequencies of a configuration."""

from __future__ import annotations

import math

import torch

from schedc.graph.config import LlamaConfig


def inverse_frequencies(config: LlamaConfig) -> tuple[float, ...]:
    """Angle per position of each of the head_dim / 2 pairs: fp32 numbers, as transformers has them.

    With Llama 3.1's scaling, long wavelengths are stretched by ``factor``, short ones are kept and
    those between are blended (`modeling_rope_utils.py`, `_compute_llama3_parameters`).
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device="cpu")
    frequencies = 1.0 / (config.rope_theta ** (exponents / config.head_dim))
    scaling = config.rope_scaling
    if scaling is None:
        return tuple(frequencies.tolist())
    context = scaling.original_max_position_embeddings
    longest, shortest = context / scaling.low_freq_factor, context / scaling.high_freq_factor
    wavelengths = 2 * math.pi / frequencies
    stretched = torch.where(wavelengths > longest, frequencies / scaling.factor, frequencies)
    smooth = (context / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    blended = (1 - smooth) * stretched / scaling.factor + smooth * stretched
    between = ~(wavelengths < shortest) & ~(wavelengths > longest)
    return tuple(torch.where(between, blended, stretched).tolist())
