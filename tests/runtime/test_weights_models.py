"""Checkpoints of every architecture: transformers' in, ours out, and what does not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from schedc.diagnostics import DiagnosticError
from schedc.graph.build import build_model
from schedc.model.config import ARCHITECTURES, PRESETS, Llama3Scaling, LlamaConfig, YarnScaling
from schedc.program.signature import Model
from schedc.runtime.weights import initialise, read_checkpoint, write_checkpoint

TEST = PRESETS["llama-test"]
CONFIGS = {
    "llama": replace(TEST, rope_scaling=Llama3Scaling(8.0, 1.0, 4.0, 32), pad_token_id=3),
    "llama tied": replace(TEST, tie_word_embeddings=True, pad_token_id=3),
    "mistral": replace(TEST, model_type="mistral", sliding_window=32, head_dim=32),
    "qwen2": replace(TEST, model_type="qwen2", rope_theta=1e6),
    "qwen2 tied": replace(TEST, model_type="qwen2", tie_word_embeddings=True),
    "qwen3": replace(TEST, model_type="qwen3", rope_scaling=YarnScaling(2.0, 32, 1.25)),
    "qwen3 tied": replace(TEST, model_type="qwen3", tie_word_embeddings=True, head_dim=32),
}


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    return {name: build_model(config, 1, 8) for name, config in CONFIGS.items()}


def theirs_of(config: LlamaConfig) -> torch.nn.Module:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(**config.to_hf()))


def refusal_of(call: Callable[[], object]) -> str:
    with pytest.raises(DiagnosticError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize("name", CONFIGS)
def test_in_and_out_again(name: str, models: dict[str, Model], tmp_path: Path) -> None:
    """Shards that transformers wrote are read; what is written equals what it writes, tensor for
    tensor, and it loads that as the same architecture with the same numbers (A35)."""
    config, model = CONFIGS[name], models[name]
    theirs = theirs_of(config)
    theirs.save_pretrained(tmp_path / "in", max_shard_size="60KB")
    assert len(list((tmp_path / "in").glob("*.safetensors"))) > 1
    values = read_checkpoint(tmp_path / "in", model.parameters, model.config)
    state = theirs.state_dict()
    assert list(values) == [name for name, _ in theirs.named_parameters()]
    assert all(torch.equal(values[n], state[n]) for n in values)

    write_checkpoint(tmp_path / "out", values, model.config)
    theirs.save_pretrained(tmp_path / "single")
    found, wanted = (load_file(tmp_path / at / "model.safetensors") for at in ("out", "single"))
    assert found.keys() == wanted.keys()
    assert ("lm_head.weight" in found) == (not config.tie_word_embeddings)
    assert all(torch.equal(found[n], wanted[n]) for n in wanted)

    again, report = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert type(again).__name__ == ARCHITECTURES[config.model_type]
    tokens = torch.arange(8).unsqueeze(0)
    with torch.no_grad():
        assert torch.equal(again(tokens).logits, theirs(tokens).logits)


@pytest.mark.parametrize("name", CONFIGS)
def test_initial_values_are_spread_as_transformers_are(name: str, models: dict[str, Model]) -> None:
    """The same parameters are zero, one, or normal with the same deviation; and so are rows."""
    theirs = dict(theirs_of(CONFIGS[name]).named_parameters())
    ours = initialise(models[name].parameters, 0)
    assert ours.keys() == theirs.keys()
    for parameter, tensor in ours.items():
        other = theirs[parameter].detach()
        if other.std() == 0:
            assert torch.equal(tensor, other), parameter
        else:
            assert tensor.std().item() == pytest.approx(other.std().item(), rel=0.1)
            assert torch.equal(tensor.any(-1), other.any(-1)), parameter


@pytest.mark.parametrize("name", CONFIGS)
def test_missing_and_unexpected_parameters_are_errors(
    name: str, models: dict[str, Model], tmp_path: Path
) -> None:
    model = models[name]
    values = initialise(model.parameters, 0)
    lacking = f"model.layers.2.self_attn.{'q_norm' if 'qwen3' in name else 'q_proj'}.weight"
    extra = f"model.layers.2.self_attn.{'q_norm.weight' if name == 'llama' else 'o_proj.bias'}"
    stored: dict[str, Tensor] = {n: t for n, t in values.items() if n != lacking}
    write_checkpoint(tmp_path, stored, model.config)
    message = refusal_of(lambda: read_checkpoint(tmp_path, model.parameters, model.config))
    assert f"missing parameters (1): {lacking}" in message
    write_checkpoint(tmp_path, values | {extra: torch.ones(16)}, model.config)
    message = refusal_of(lambda: read_checkpoint(tmp_path, model.parameters, model.config))
    assert f"parameters that the model has not (1): {extra}" in message


@pytest.mark.parametrize("name", ["llama tied", "qwen2 tied"])
def test_tied_files_with_and_without_a_head(
    name: str, models: dict[str, Model], tmp_path: Path
) -> None:
    model = models[name]
    untied = build_model(replace(CONFIGS[name], tie_word_embeddings=False), 1, 8)
    values = initialise(model.parameters, 0)
    write_checkpoint(tmp_path, values, model.config)
    assert "missing parameters (1): lm_head.weight" in refusal_of(
        lambda: read_checkpoint(tmp_path, untied.parameters, untied.config)
    )
    head = {"lm_head.weight": values["model.embed_tokens.weight"].clone()}
    save_file(values | head, tmp_path / "model.safetensors", metadata={"format": "pt"})
    found = read_checkpoint(tmp_path, model.parameters, model.config)
    assert found.keys() == values.keys()
    assert all(torch.equal(found[n], values[n]) for n in values)
    # The head's unit asks for the embedding by its name.
    head_names = {p.name for _, p in model.unit("head").parameters}
    own = read_checkpoint(tmp_path, model.parameters, model.config, head_names)
    assert set(own) == {"model.norm.weight", "model.embed_tokens.weight"}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rope_theta": 5e5}, "rope_theta is 1000000.0, the plan's 500000.0"),
        ({"rms_norm_eps": 1e-5}, "rms_norm_eps is 1e-06, the plan's 1e-05"),
        # Equal shapes, other heads.
        ({"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}, "head_dim is 16"),
        ({"rope_scaling": YarnScaling(2.0, 32, 1.25)}, "rope_type is default, the plan's yarn"),
    ],
)
def test_another_models_numbers_are_refused(
    changes: dict, says: str, models: dict[str, Model], tmp_path: Path
) -> None:
    model = models["qwen2"]
    write_checkpoint(tmp_path, initialise(model.parameters, 0), model.config)
    plan = replace(CONFIGS["qwen2"], **changes)
    message = refusal_of(lambda: read_checkpoint(tmp_path, model.parameters, plan.to_hf()))
    assert message.startswith("E903")
    assert says in message


def test_what_does_not_change_the_numbers_is_not_compared(
    models: dict[str, Model], tmp_path: Path
) -> None:
    """Both spellings, another context, other tokens; and a folder of tensors alone."""
    model = models["llama"]
    values = initialise(model.parameters, 0)
    write_checkpoint(tmp_path, values, model.config)
    written = json.loads((tmp_path / "config.json").read_text())
    for spelling in ("rope_parameters", "rope_scaling"):
        raw = {k: v for k, v in written.items() if k != spelling}
        raw |= {"max_position_embeddings": 999, "eos_token_id": 9, "use_cache": False}
        (tmp_path / "config.json").write_text(json.dumps(raw))
        read_checkpoint(tmp_path, model.parameters, model.config)
    (tmp_path / "config.json").unlink()
    read_checkpoint(tmp_path, model.parameters, model.config)
    (tmp_path / "config.json").write_text('{"model_type": "gemma"}')
    assert "E805" in refusal_of(lambda: read_checkpoint(tmp_path, model.parameters, model.config))
