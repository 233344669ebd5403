"""F, I and W composed equal eager autograd, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from schedc.graph.build import build_model
from schedc.graph.joint import DTYPES
from schedc.graph.llama import Llama
from schedc.model.config import PRESETS
from tests.graph.support import batch, initialise, run_step

TEST = PRESETS["llama-test"]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="plain"),
        pytest.param({"attention_bias": True, "mlp_bias": True}, id="biases"),
        pytest.param({"head_dim": 32, "num_key_value_heads": 1}, id="head_dim"),
        pytest.param({"num_key_value_heads": 4, "pad_token_id": 3}, id="pad"),
    ],
)
def test_a_step_equals_eager_autograd(dtype: str, changes: dict) -> None:
    config = replace(TEST, num_hidden_layers=2, **changes)
    model = Llama(config, DTYPES[dtype])
    initialise(model)
    tokens, labels = batch(config, 2, 16)
    tangent = torch.tensor(1 / 26)

    loss = model(tokens, labels, torch.arange(16))
    loss.backward(tangent)
    got, gradients = run_step(build_model(config, 2, 16, dtype), model, tokens, labels, tangent)

    assert torch.equal(got, loss.detach())
    assert got.dtype == torch.float32
    expected = {name: p.grad for name, p in model.named_parameters()}
    assert gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        assert gradient is not None
        assert torch.equal(gradients[name], gradient), name


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
