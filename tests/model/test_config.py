"""Configurations: four architectures, both spellings, what is left out, what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig
from transformers import LlamaConfig as HFConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from schedc.diagnostics import DiagnosticError, Source, render
from schedc.graph.build import build_model
from schedc.graph.rotary import inverse_frequencies
from schedc.model.compare import differences
from schedc.model.config import (
    PRESETS,
    LinearScaling,
    Llama3Scaling,
    LlamaConfig,
    ModelType,
    YarnScaling,
)
from schedc.model.keys import SIZES
from schedc.model.limits import check_sequence
from schedc.model.load import load_config, parse_config, read_config

TEST = PRESETS["llama-test"]

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


def test_head_dim_is_honoured() -> None:
    """Case A42: head_dim 32, heads 4, kv 2, hidden 64. Hidden need not
    be a multiple of heads then."""
    assert read(head_dim=32).head_dim == 32
    assert read(head_dim=32, num_attention_heads=6, num_key_value_heads=3).head_dim == 32
    (message,) = refusals(num_attention_heads=6, num_key_value_heads=3)
    assert "64" in message
    assert "6" in message


CONFIGS = {
    "llama": replace(
        TEST,
        rope_scaling=Llama3Scaling(8.0, 1.0, 4.0, 8192),
        attention_bias=True,
        mlp_bias=True,
        eos_token_id=(1, 2),
        pad_token_id=0,
        tie_word_embeddings=True,
    ),
    "linear": replace(TEST, rope_scaling=LinearScaling(4.0), head_dim=32),
    "yarn": replace(TEST, rope_scaling=YarnScaling(2.0, 32, 1.25, 16.0, 2.0, False)),
    "mistral": replace(TEST, model_type="mistral"),
    "mistral window": replace(TEST, model_type="mistral", sliding_window=48),
    "qwen2": replace(TEST, model_type="qwen2", tie_word_embeddings=True),
    "qwen2 window": replace(TEST, model_type="qwen2", sliding_window=48),
    "qwen3": replace(TEST, model_type="qwen3", attention_bias=True, head_dim=32),
    "qwen3 window": replace(
        TEST,
        model_type="qwen3",
        sliding_window=48,
        layer_types=("sliding_attention", "full_attention") * 2,
    ),
    **PRESETS,
}


@pytest.mark.parametrize("name", CONFIGS)
def test_to_hf_reads_back_and_means_the_same_to_transformers(name: str, tmp_path: Path) -> None:
    config = CONFIGS[name]
    raw = config.to_hf()
    assert read_config(Source("config.json", json.dumps(raw))) == config
    assert parse_config("the plan", raw) == config
    (tmp_path / "config.json").write_text(json.dumps(raw))
    theirs = AutoConfig.from_pretrained(tmp_path)
    assert theirs.model_type == config.model_type
    assert theirs.architectures == raw["architectures"]
    for key in (*SIZES[:-1], "rms_norm_eps", "tie_word_embeddings", "pad_token_id"):
        assert getattr(theirs, key) == getattr(config, key), key
    window = getattr(theirs, "sliding_window", None)
    assert window == config.sliding_window
    if theirs.model_type.startswith("qwen"):
        full = ("full_attention" if window is None else "sliding_attention",) * 4
        assert tuple(theirs.layer_types) == (config.layer_types or full)
    assert torch.equal(
        torch.tensor(inverse_frequencies(config)), LlamaRotaryEmbedding(theirs).inv_freq
    )
    # What transformers makes of it and writes is read as the same.
    theirs.save_pretrained(tmp_path / "again")
    assert load_config(str(tmp_path / "again")) == config


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
def test_what_is_left_out_is_what_transformers_takes(kind: str) -> None:
    raw = {**BASE, "num_attention_heads": 32, "hidden_size": 512}
    del raw["num_key_value_heads"]
    config = read_config(Source("config.json", json.dumps({"model_type": kind, **raw})))
    theirs = AutoConfig.for_model(kind, **raw)
    head_dim = getattr(theirs, "head_dim", None) or 512 // 32
    assert (config.num_key_value_heads, config.head_dim) == (theirs.num_key_value_heads, head_dim)
    for key in ("rms_norm_eps", "initializer_range", "max_position_embeddings"):
        assert getattr(config, key) == getattr(theirs, key)
    assert config.sliding_window == getattr(theirs, "sliding_window", None)
    assert config.rope_theta == theirs.rope_parameters["rope_theta"]
    assert config.tie_word_embeddings == theirs.tie_word_embeddings


PUBLISHED = {
    # Keys as they stand in the published files, with smaller sizes.
    "Mistral-7B-v0.1": {
        "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
        "hidden_act": "silu", "initializer_range": 0.02, "max_position_embeddings": 32768,
        "model_type": "mistral", "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
        "sliding_window": 4096, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "transformers_version": "4.34.0.dev0", "use_cache": True,
    },
    "Qwen2.5-7B": {
        "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643,
        "eos_token_id": 151643, "hidden_act": "silu", "initializer_range": 0.02,
        "max_position_embeddings": 131072, "max_window_layers": 28, "model_type": "qwen2",
        "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 131072,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "transformers_version": "4.40.1",
        "use_cache": True, "use_mrope": False, "use_sliding_window": False,
    },
    "Qwen3-8B": {
        "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu",
        "initializer_range": 0.02, "max_position_embeddings": 40960, "max_window_layers": 36,
        "model_type": "qwen3", "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000,
        "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "transformers_version": "4.51.0", "use_cache": True, "use_sliding_window": False,
    },
    "Llama-3.2-1B": {
        "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "bos_token_id": 128000, "eos_token_id": 128001, "head_dim": 64, "hidden_act": "silu",
        "initializer_range": 0.02, "max_position_embeddings": 131072, "mlp_bias": False,
        "model_type": "llama", "pretraining_tp": 1, "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3",
        },
        "rope_theta": 500000.0, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "transformers_version": "4.45.0.dev0", "use_cache": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations_are_read(name: str) -> None:
    raw = PUBLISHED[name]
    config = read(**raw)
    assert config.model_type == raw["model_type"]
    assert config.rope_theta == raw["rope_theta"]
    assert config.sliding_window == (4096 if config.model_type == "mistral" else None)
    assert config.qkv_bias == (config.model_type == "qwen2")
    assert not config.output_bias
    assert config.qk_norm == (config.model_type == "qwen3")
    assert config.tie_word_embeddings == (config.model_type == "llama")


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
        ({"tie_word_embeddings": 1}, "tie_word_embeddings = 1"),
        ({"hidden_act": "gelu"}, 'hidden_act = "gelu"'),
        ({"model_type": "gemma"}, "'gemma'"),
        ({"model_type": "mistral", "attention_bias": True}, "attention_bias = true of a mistral"),
        ({"model_type": "qwen2", "attention_bias": True}, "attention_bias = true of a qwen2"),
        ({"model_type": "qwen3", "mlp_bias": True}, "mlp_bias = true of a qwen3"),
        ({"sliding_window": 4096}, "sliding_window = 4096 of a llama"),
        ({"model_type": "qwen3", "layer_types": ["full_attention"]}, "for each layer"),
        ({"model_type": "qwen2", "layer_types": ["sliding_attention"] * 4}, "no window"),
        ({"model_type": "qwen2", "use_mrope": True}, "use_mrope = true"),
        ({"per_layer_config": {}}, "unknown key per_layer_config"),
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
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, '"dynamic" is not supported'),
        ({"rope_scaling": {"type": "longrope", "long_factor": [1.0]}}, '"longrope"'),
        ({"rope_scaling": {"type": "yarn"}}, "yarn lacks factor"),
        ({"rope_scaling": {"type": "llama3", **LLAMA3, "factor": True}}, "factor = true"),
        (
            {
                "rope_scaling": {
                    "type": "yarn",
                    "factor": 2,
                    "original_max_position_embeddings": 9.5,
                }
            },
            "no whole number",
        ),
        ({"rope_theta": float("inf")}, "rope_theta = Infinity"),
        ({"rope_theta": float("nan")}, "rope_theta = NaN"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0, "truncate": 1}}, "truncate = 1"),
        ({"rope_scaling": {"type": "linear", "factor": -2.0}}, "factor = -2.0"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "beta_fast": 1}}, "beta_fast"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "full_attention"),
        ({"pad_token_id": [1]}, "not one token"),
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
    text = json.dumps({**BASE, "hidden_act": "gelu", "tie_word_embeddings": 1}, indent=1)
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


def test_sequences_stay_within_window_and_context() -> None:
    window = replace(TEST, model_type="mistral", sliding_window=48)
    check_sequence(window, 48)
    check_sequence(TEST, 64)
    for config, sequence, says in (
        (window, 49, "sequence 49 is longer than the model's sliding_window 48"),
        (TEST, 65, "sequence 65 is longer than the model's max_position_embeddings 64"),
    ):
        with pytest.raises(DiagnosticError) as caught:
            build_model(config, 2, sequence)
        (diagnostic,) = caught.value.diagnostics
        assert (diagnostic.code, diagnostic.message) == ("E805", says)


def test_configurations_are_compared_by_what_they_mean() -> None:
    old = read(rope_theta=5e5, rope_scaling={"type": "llama3", **LLAMA3}, num_key_value_heads=4)
    new = {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}
    assert not differences(old, read(rope_parameters=new, num_key_value_heads=4, head_dim=16))
    assert not differences(read(), read(model_type="mistral", sliding_window=None))
    assert not differences(read(), read(eos_token_id=7, initializer_range=0.1, use_cache=False))
    assert differences(read(), read(rope_theta=5e5, rms_norm_eps=1e-5)) == (
        ("rms_norm_eps", 1e-6, 1e-5),
        ("rope_theta", 1e4, 5e5),
    )
    assert differences(read(), read(rope_scaling={"type": "linear", "factor": 2.0})) == (
        ("rope_scaling.rope_type", "default", "linear"),
        ("rope_scaling.factor", None, 2.0),
    )
    kinds: tuple[ModelType, ...] = ("qwen2", "qwen3")
    for kind in kinds:
        assert differences(TEST, replace(TEST, model_type=kind))
