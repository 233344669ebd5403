"""Configurations: both spellings, biases, head_dim, Llama 3.1's scaling, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig as HFConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from schedc.diagnostics import DiagnosticError, Source, render
from schedc.graph.build import build_model
from schedc.graph.config import PRESETS, Llama3Scaling, LlamaConfig
from schedc.graph.load import load_config, read_config
from schedc.graph.rotary import inverse_frequencies
from schedc.graph.tables import rotary_graph
from schedc.ops import load_graph

BASE = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
LLAMA3 = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def read(**changes: object) -> LlamaConfig:
    return read_config(Source("config.json", json.dumps({**BASE, **changes})))


def theirs_of(**raw: object) -> HFConfig:
    return HFConfig.from_dict(raw)


def refusals(**changes: object) -> list[str]:
    with pytest.raises(DiagnosticError) as caught:
        read(**changes)
    assert {d.code for d in caught.value.diagnostics} == {"E805"}
    assert "config.json" in render(caught.value.diagnostics)
    return [d.message for d in caught.value.diagnostics]


def test_what_is_left_out_is_transformers_default() -> None:
    config, theirs = read(), theirs_of(**BASE)
    for name in ("head_dim", "rms_norm_eps", "initializer_range", "max_position_embeddings"):
        assert getattr(config, name) == getattr(theirs, name)
    assert theirs.to_dict()["rope_parameters"]["rope_theta"] == config.rope_theta
    del (base := dict(BASE))["num_key_value_heads"]
    assert read_config(Source("config.json", json.dumps(base))).num_key_value_heads == 4


@pytest.mark.parametrize("factor", [8.0, 32.0])
@pytest.mark.parametrize(
    "spell",
    [
        lambda s: {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **s}},
        lambda s: {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **s}},
        lambda s: {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **s}},
    ],
)
def test_llama3_scaling_in_every_spelling(factor: float, spell) -> None:
    config = read(head_dim=64, **spell({**LLAMA3, "factor": factor}))
    assert config.rope_theta == 5e5
    assert config.rope_scaling == Llama3Scaling(factor, 1.0, 4.0, 8192)
    rope = {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3, "factor": factor}
    theirs = LlamaRotaryEmbedding(theirs_of(**BASE, head_dim=64, rope_parameters=rope))
    assert torch.equal(torch.tensor(inverse_frequencies(config)), theirs.inv_freq)

    _, source = rotary_graph(config, 3, "fp32")
    positions = torch.tensor([0, 100, 5000])
    cos, sin = load_graph(source, "rotary")([positions])
    expected = theirs(torch.empty(1, 3, 64), positions.unsqueeze(0))
    assert torch.equal(cos, expected[0][0])
    assert torch.equal(sin, expected[1][0])


def test_llama3_frequencies_are_the_published_ones() -> None:
    """Case A41: head_dim 64, theta 5e5, factor 32, low 1, high 4, context 8192."""
    plain = torch.tensor(inverse_frequencies(read(head_dim=64, rope_theta=5e5)))
    scaled = torch.tensor(
        inverse_frequencies(
            read(head_dim=64, rope_theta=5e5, rope_scaling={"rope_type": "llama3", **LLAMA3})
        )
    )
    assert plain[15].item() == pytest.approx(1.2905480e-3 * 1.6513, rel=1e-4)
    assert scaled[15].item() == pytest.approx(1.2905480e-3, rel=1e-6)
    ratio = plain / scaled
    assert torch.equal(ratio[:15], torch.ones(15))
    assert ratio[15:18].tolist() == pytest.approx([1.6513, 3.2923, 9.6667], rel=1e-4)
    assert ratio[18:].tolist() == pytest.approx([32.0] * 14)


def test_head_dim_is_honoured() -> None:
    """Case A42: head_dim 32, heads 4, kv 2, hidden 64. Hidden need not
    be a multiple of heads then."""
    assert read(head_dim=32).head_dim == 32
    assert read(head_dim=32, num_attention_heads=6, num_key_value_heads=3).head_dim == 32
    (message,) = refusals(num_attention_heads=6, num_key_value_heads=3)
    assert "64" in message
    assert "6" in message


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_to_hf_reads_back_and_means_the_same_to_transformers(name: str) -> None:
    for config in (
        PRESETS[name],
        replace(
            PRESETS[name],
            rope_scaling=Llama3Scaling(8.0, 1.0, 4.0, 8192),
            attention_bias=True,
            eos_token_id=(1, 2),
            pad_token_id=0,
        ),
    ):
        raw = config.to_hf()
        assert read_config(Source("config.json", json.dumps(raw))) == config
        theirs = theirs_of(**raw)
        for key in ("head_dim", "num_key_value_heads", "rms_norm_eps", "attention_bias"):
            assert getattr(theirs, key) == getattr(config, key)
        assert torch.equal(
            torch.tensor(inverse_frequencies(config)), LlamaRotaryEmbedding(theirs).inv_freq
        )


def test_the_tiny_preset_has_about_three_million_parameters() -> None:
    units = build_model(PRESETS["llama-tiny"], 2, 128).units
    total = sum(unit.bytes for unit in units) // 4
    assert total == 2 * 256 * 256 + 256 + 4 * (
        256 * (256 + 128 + 128 + 256) + 3 * 256 * 704 + 2 * 256
    )
    assert round(total / 1e6, 1) == 3.1


def test_what_transformers_saves_is_read(tmp_path: Path) -> None:
    theirs = theirs_of(**BASE, rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    theirs.save_pretrained(tmp_path)
    config = load_config(str(tmp_path))
    assert config == load_config(str(tmp_path / "config.json"))
    assert config.rope_theta == 5e5
    assert config.bos_token_id == 1


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tie_word_embeddings": True}, "tie_word_embeddings = true"),
        ({"hidden_act": "gelu"}, 'hidden_act = "gelu"'),
        ({"model_type": "qwen2"}, "'qwen2'"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"num_hiden_layers": 3}, "unknown key num_hiden_layers"),
        ({"num_hidden_layers": None}, "lacks num_hidden_layers"),
        ({"num_hidden_layers": 0}, "num_hidden_layers = 0"),
        ({"hidden_size": "64"}, 'hidden_size = "64"'),
        ({"hidden_size": True}, "hidden_size = true"),
        ({"attention_bias": 1}, "attention_bias = 1"),
        ({"rms_norm_eps": -1e-5}, "rms_norm_eps"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        ({"pad_token_id": 128}, "pad_token_id 128"),
        ({"attention_dropout": 0.1}, "attention_dropout = 0.1"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, "'yarn'"),
        ({"rope_scaling": {"type": "llama3", "factor": 8.0}}, "lacks low_freq_factor"),
        ({"rope_scaling": {"type": "llama3", **LLAMA3, "low_freq_factor": 4.0}}, "not below"),
        ({"rope_scaling": [1]}, "no object"),
        ({"rope_theta": 1e4, "rope_parameters": {"rope_theta": 5e5}}, "10000.0 but"),
        (
            {
                "rope_scaling": {"type": "llama3", **LLAMA3},
                "rope_parameters": {"rope_type": "default"},
            },
            "contradict",
        ),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(changes: dict, says: str) -> None:
    assert any(says in message for message in refusals(**changes))


def test_refusals_come_together_and_point_into_the_file() -> None:
    text = json.dumps({**BASE, "hidden_act": "gelu", "tie_word_embeddings": True}, indent=1)
    with pytest.raises(DiagnosticError) as caught:
        read_config(Source("config.json", text))
    spans = [d.span for d in caught.value.diagnostics]
    assert [span.line for span in spans if span is not None] == [8, 9]


def test_a_missing_model_is_refused(tmp_path: Path) -> None:
    for model, says in (("lama-tiny", '"llama-tiny"?'), (str(tmp_path / "no"), "cannot read")):
        with pytest.raises(DiagnosticError) as caught:
            load_config(model)
        (diagnostic,) = caught.value.diagnostics
        assert diagnostic.code == "E806"
        assert says in f"{diagnostic.message} {diagnostic.help}"
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(DiagnosticError) as caught:
        load_config(str(tmp_path))
    assert caught.value.diagnostics[0].code == "E805"
