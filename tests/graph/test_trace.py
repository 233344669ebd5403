"""The module-level graph and its units."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, fx, nn

from schedc.graph.llama import Decoder
from schedc.graph.trace import trace, units
from schedc.model.config import PRESETS

TEST = PRESETS["llama-test"]


def placeholders(graph: fx.Graph) -> list[str]:
    return [str(node.target) for node in graph.nodes if node.op == "placeholder"]


def test_units_need_hidden_states_and_tables_only() -> None:
    model, graph = trace(TEST, torch.float32)
    traced = units(model, graph)
    assert [unit.name for unit in traced] == [
        "embedding",
        "layers.0",
        "layers.1",
        "layers.2",
        "layers.3",
        "head",
    ]
    assert placeholders(traced[0].graph) == ["tokens"]
    assert placeholders(traced[-1].graph) == ["x", "labels"]
    for unit in traced[1:-1]:
        assert placeholders(unit.graph) == ["x", "cos", "sin"]
    assert len({unit.key for unit in traced}) == 3
    named = [full for unit in traced for _, full, _ in unit.parameters]
    assert sorted(named) == sorted(name for name, _ in model.named_parameters())


def test_nothing_is_allocated() -> None:
    model, _ = trace(replace(TEST, hidden_size=1 << 20, intermediate_size=1 << 22), torch.float32)
    assert all(parameter.is_meta for parameter in model.parameters())


def test_the_keys_tell_different_layers_apart() -> None:
    def key(**changes: object) -> str:
        model, graph = trace(replace(TEST, **changes), torch.float32)  # type: ignore[arg-type]
        return units(model, graph)[1].key

    keys = {
        key(),
        key(rms_norm_eps=1e-5),
        key(mlp_bias=True),
        key(head_dim=32),
        key(num_key_value_heads=1),
    }
    assert len(keys) == 5
    assert key() == key(num_hidden_layers=9) == key(vocab_size=7)


def test_a_value_that_skips_over_a_unit_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: Decoder, tokens: Tensor, positions: Tensor) -> Tensor:
        tables = self.rotary_emb(positions)
        first = x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, tables[0], tables[1])
        return nn.Module.__call__(self.norm, x, first)

    monkeypatch.setattr(Decoder, "forward", forward)
    model, graph = trace(TEST, torch.float32)
    with pytest.raises(AssertionError, match="head reads"):
        units(model, graph)
