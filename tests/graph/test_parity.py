"""Our Llama is transformers' LlamaForCausalLM: logits, loss and every gradient, to the bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig as HFConfig
from transformers import LlamaForCausalLM

from schedc.graph.build import build_model
from schedc.graph.joint import DTYPES
from schedc.graph.llama import Llama
from schedc.model.config import PRESETS, Llama3Scaling
from tests.graph.support import batch, initialise, run_step

TEST = PRESETS["llama-test"]


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="plain"),
        pytest.param({"attention_bias": True, "mlp_bias": True}, id="biases"),
        pytest.param({"head_dim": 32, "rope_theta": 5e5, "pad_token_id": 3}, id="head_dim"),
        pytest.param({"rope_scaling": Llama3Scaling(8.0, 1.0, 4.0, 32)}, id="llama3"),
    ],
)
def test_equal_to_transformers(dtype: str, changes: dict) -> None:
    """Both use the CPU's flash attention. The graphs' gradients are compared, not only the
    module's."""
    config = replace(TEST, **changes)
    ours = Llama(config, DTYPES[dtype])
    initialise(ours)
    theirs = LlamaForCausalLM._from_config(
        HFConfig.from_dict(config.to_hf()), attn_implementation="sdpa", dtype=DTYPES[dtype]
    )
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in theirs.named_parameters()]
    theirs.load_state_dict(ours.state_dict())
    tokens, shifted = batch(config, 2, 16)
    labels = torch.cat((torch.full((2, 1), -100), shifted), 1)[:, :-1]
    shifted[:, -1] = -100  # transformers shifts within the 16 tokens: the last has no successor
    valid = int((shifted >= 0).sum())

    expected = theirs(input_ids=tokens, labels=labels, num_items_in_batch=torch.tensor(valid))
    expected.loss.backward()
    assert torch.equal(ours.logits(tokens, torch.arange(16)), expected.logits)

    tangent = torch.tensor(1.0) / valid
    loss, gradients = run_step(build_model(config, 2, 16, dtype), ours, tokens, shifted, tangent)
    assert torch.equal(loss / valid, expected.loss.detach())
    for name, parameter in theirs.named_parameters():
        assert parameter.grad is not None
        assert (gradients[name] - parameter.grad).abs().max().item() == 0.0, name
