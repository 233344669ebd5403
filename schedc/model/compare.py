"""Whether two configurations mean the same numbers."""

from __future__ import annotations

from dataclasses import asdict

from schedc.model.config import LlamaConfig

# What every result depends on. Not: which architecture's name it goes by, special tokens but the
# padding row, how it was initialised, and the context that it is meant for. Whether the embeddings
# are tied shows in the tensors.
NUMBERS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "rope_theta",
    "qkv_bias",
    "output_bias",
    "mlp_bias",
    "qk_norm",
    "sliding_window",
    "layer_types",
    "pad_token_id",
)


def differences(one: LlamaConfig, other: LlamaConfig) -> tuple[tuple[str, object, object], ...]:
    """What differs and matters: its name, and the value in each of the two.

    Configurations are compared as they are meant: however they are spelled, and with the defaults
    filled in.
    """
    pairs = [(name, getattr(one, name), getattr(other, name)) for name in NUMBERS]
    scalings = _scaling(one), _scaling(other)
    names = dict.fromkeys((*scalings[0], *scalings[1]))
    pairs += [(f"rope_scaling.{n}", scalings[0].get(n), scalings[1].get(n)) for n in names]
    return tuple((name, a, b) for name, a, b in pairs if a != b)


def _scaling(config: LlamaConfig) -> dict[str, object]:
    scaling = config.rope_scaling
    if scaling is None:
        return {"rope_type": "default"}
    return {"rope_type": scaling.kind, **asdict(scaling)}
