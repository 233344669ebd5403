"""F, I and W composed equal eager autograd, bit for bit."""

from __future__ import annotations

import fnmatch
from dataclasses import replace

import pytest
import torch

from schedc.graph.build import build_model, parameter_names
from schedc.graph.joint import DTYPES
from schedc.graph.llama import Llama
from schedc.model.config import PRESETS, LlamaConfig
from schedc.program.signature import Model
from tests.graph.support import batch, initialise, run_step

TEST = replace(PRESETS["llama-test"], num_hidden_layers=2)


def assert_a_step_is_eagers(
    config: LlamaConfig, dtype: str, frozen: frozenset[str] = frozenset()
) -> Model:
    """Loss and gradients of a step, by the graphs and by eager autograd: the same bits."""
    module = Llama(config, DTYPES[dtype])
    initialise(module)
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name not in frozen)
    tokens, labels = batch(config, 2, 16)
    tangent = torch.tensor(1 / 26)

    loss = module(tokens, labels, torch.arange(16))
    if loss.requires_grad:
        loss.backward(tangent)
    model = build_model(config, 2, 16, dtype, frozen=frozen)
    got, gradients = run_step(model, module, tokens, labels, tangent)

    assert torch.equal(got, loss.detach())
    assert got.dtype == torch.float32
    expected = {name: p.grad for name, p in module.named_parameters() if p.requires_grad}
    assert gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        assert gradient is not None
        assert gradients[name].dtype == DTYPES[dtype]
        assert torch.equal(gradients[name], gradient), name
    return model


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="plain"),
        pytest.param({"attention_bias": True, "mlp_bias": True}, id="biases"),
        pytest.param({"head_dim": 32, "num_key_value_heads": 1}, id="head_dim"),
        pytest.param({"num_key_value_heads": 4, "pad_token_id": 3}, id="pad"),
        pytest.param({"tie_word_embeddings": True, "pad_token_id": 3}, id="tied"),
        pytest.param({"model_type": "qwen2", "tie_word_embeddings": True}, id="qwen2"),
        pytest.param({"model_type": "qwen3", "head_dim": 32}, id="qwen3"),
    ],
)
def test_a_step_equals_eager_autograd(dtype: str, changes: dict) -> None:
    assert_a_step_is_eagers(replace(TEST, **changes), dtype)


FROZEN = {
    "embedding": ["model.embed_tokens.weight"],
    "first layers": ["model.embed_tokens.weight", "model.layers.0.*"],
    "all but the head": ["model.embed_tokens.weight", "model.layers.*"],
    "all but the norms": ["*_proj.*", "*embed*", "lm_head.*"],
    "norms": ["*norm.weight"],
    "the last layer": ["model.layers.1.*"],
    "attention": ["*.self_attn.*"],
    "all but a matrix a layer": ["*embed*", "*norm*", "*.bias", "*[!n]_proj.weight", "lm_head.*"],
    "head": ["model.norm.weight", "lm_head.weight"],
    "all but the embedding": ["model.layers.*", "model.norm.weight", "lm_head.weight"],
    "everything": ["*"],
}


def chosen(config: LlamaConfig, patterns: list[str]) -> frozenset[str]:
    names = parameter_names(config)
    return frozenset(n for p in patterns for n in fnmatch.filter(names, p))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("which", FROZEN)
def test_frozen_parameters_leave_the_other_gradients_alone(which: str, dtype: str) -> None:
    config = replace(TEST, model_type="qwen2")
    frozen = chosen(config, FROZEN[which])
    assert frozen
    model = assert_a_step_is_eagers(config, dtype, frozen)
    parameters = model.parameters
    assert {p.name for p in parameters if p.frozen} == frozen
    assert [p.name for p in parameters] == list(parameter_names(config))


def test_freezing_tied_embeddings_freezes_both() -> None:
    config = replace(TEST, tie_word_embeddings=True)
    model = assert_a_step_is_eagers(config, "fp32", frozenset({"model.embed_tokens.weight"}))
    ((_, weight),) = [p for p in model.unit("head").parameters if p[0] == "lm_head.weight"]
    assert weight.frozen
    assert weight.tied


def test_a_microbatch_without_valid_labels_is_worth_nothing() -> None:
    config = replace(TEST, num_hidden_layers=1)
    model = Llama(config)
    initialise(model)
    tokens, labels = batch(config, 2, 16)
    labels.fill_(-100)
    loss, gradients = run_step(
        build_model(config, 2, 16), model, tokens, labels, torch.tensor(0.25)
    )
    assert loss.item() == 0
    assert all(not gradient.any() for gradient in gradients.values())
