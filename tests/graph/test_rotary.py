"""Rotary tables of every kind of scaling: transformers' own, at short and at long positions."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import LlamaConfig as HFConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from schedc.diagnostics import Source
from schedc.graph.llama import RotaryTables
from schedc.graph.rotary import inverse_frequencies
from schedc.graph.tables import rotary_graph
from schedc.model.config import LlamaConfig
from schedc.model.load import read_config
from schedc.ops import load_graph

BASE = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 32768,
}
LLAMA3 = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {"factor": 4.0, "original_max_position_embeddings": 8192}
KINDS = {
    "default": {},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3 32": {"rope_type": "llama3", **LLAMA3},
    "llama3 8": {"rope_type": "llama3", **LLAMA3, "factor": 8},
    "yarn": {"rope_type": "yarn", **YARN},
    "yarn attention": {"rope_type": "yarn", **YARN, "attention_factor": 1.5},
    "yarn mscale": {"rope_type": "yarn", **YARN, "mscale": 1.0, "mscale_all_dim": 0.8},
    "yarn betas": {"rope_type": "yarn", **YARN, "beta_fast": 16, "beta_slow": 2, "truncate": False},
    "yarn context": {"rope_type": "yarn", "factor": 2.0},  # the original context is left out
}
SPELLINGS = {
    "type": lambda rope: {"rope_theta": 5e5, "rope_scaling": renamed(rope)},
    "rope_type": lambda rope: {"rope_theta": 5e5, "rope_scaling": rope or None},
    "rope_parameters": lambda rope: {
        "rope_parameters": {"rope_type": "default", "rope_theta": 5e5, **rope}
    },
}


def renamed(rope: dict[str, object]) -> dict[str, object] | None:
    return {"type" if name == "rope_type" else name: rope[name] for name in rope} or None


def read(**changes: object) -> LlamaConfig:
    return read_config(Source("config.json", json.dumps({**BASE, **changes})))


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_tables_are_transformers(kind: str, spelling: str) -> None:
    """Case A41. The same bits, from the graph and from the module; 0, 100 and 5000 are far enough
    apart to show a forgotten factor."""
    rope = KINDS[kind]
    config = read(**SPELLINGS[spelling](rope))
    assert config.rope_theta == 5e5
    raw = {**BASE, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5, **rope}}
    theirs = LlamaRotaryEmbedding(HFConfig.from_dict(raw))
    assert torch.equal(torch.tensor(inverse_frequencies(config)), theirs.inv_freq)

    positions = torch.tensor([0, 100, 5000])
    for dtype, of in (("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)):
        _, source = rotary_graph(config, 3, dtype)
        cos, sin = load_graph(source, "rotary")([positions])
        expected = theirs(torch.empty(1, 3, 64, dtype=of), positions.unsqueeze(0))
        for ours in ((cos, sin), RotaryTables(config, of)(positions)):
            assert ours[0].dtype == ours[1].dtype == of
            assert torch.equal(ours[0], expected[0][0])
            assert torch.equal(ours[1], expected[1][0])
    plain = LlamaRotaryEmbedding(HFConfig.from_dict({**BASE, "rope_theta": 5e5}))
    far = plain(torch.empty(1, 3, 64), positions.unsqueeze(0))
    assert torch.equal(far[0][0][2], RotaryTables(config, torch.float32)(positions)[0][2]) == (
        kind == "default"
    )


def test_llama3_frequencies_are_the_published_ones() -> None:
    """Case A41: head_dim 64, theta 5e5, factor 32, low 1, high 4, context 8192."""
    plain = torch.tensor(inverse_frequencies(read(rope_theta=5e5)))
    scaling = {"rope_type": "llama3", **LLAMA3}
    scaled = torch.tensor(inverse_frequencies(read(rope_theta=5e5, rope_scaling=scaling)))
    assert plain[15].item() == pytest.approx(1.2905480e-3 * 1.6513, rel=1e-4)
    assert scaled[15].item() == pytest.approx(1.2905480e-3, rel=1e-6)
    ratio = plain / scaled
    assert torch.equal(ratio[:15], torch.ones(15))
    assert ratio[15:18].tolist() == pytest.approx([1.6513, 3.2923, 9.6667], rel=1e-4)
    assert ratio[18:].tolist() == pytest.approx([32.0] * 14)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_the_factor_costs_bytes_moved_but_no_memory(dtype: str) -> None:
    plain, _ = rotary_graph(read(), 16, dtype)
    yarn, _ = rotary_graph(read(rope_scaling=KINDS["yarn"]), 16, dtype)
    assert yarn.peak == plain.peak
    assert yarn.moved == plain.moved + 2 * 2 * 16 * 64 * 4
    assert yarn.digest != plain.digest
