"""Our models are transformers': logits, loss and every gradient, to the bit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from schedc.graph.build import build_model
from schedc.graph.joint import DTYPES
from schedc.graph.llama import Llama
from schedc.model.config import (
    ARCHITECTURES,
    PRESETS,
    LinearScaling,
    Llama3Scaling,
    LlamaConfig,
    YarnScaling,
)
from tests.graph.support import batch, initialise, run_step

TEST = replace(PRESETS["llama-test"], num_hidden_layers=2)

CASES = {
    "plain": {},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "head_dim": {"head_dim": 32, "rope_theta": 5e5, "pad_token_id": 3},
    "one kv head": {"num_key_value_heads": 1},
    "as many kv heads": {"num_key_value_heads": 4},
    "tied": {"tie_word_embeddings": True, "pad_token_id": 3},
    "linear": {"rope_scaling": LinearScaling(4.0)},
    "llama3": {"rope_scaling": Llama3Scaling(8.0, 1.0, 4.0, 32)},
    "yarn": {"rope_scaling": YarnScaling(2.0, 32, 1.25)},
    "mistral": {"model_type": "mistral", "head_dim": 32},
    "mistral window": {"model_type": "mistral", "sliding_window": 17},
    "qwen2": {"model_type": "qwen2"},
    "qwen2 tied": {"model_type": "qwen2", "tie_word_embeddings": True, "rms_norm_eps": 1e-5},
    "qwen3": {"model_type": "qwen3", "head_dim": 32},
    "qwen3 biases, tied": {
        "model_type": "qwen3",
        "attention_bias": True,
        "tie_word_embeddings": True,
        "num_key_value_heads": 1,
    },
}


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("case", CASES)
def test_equal_to_transformers(case: str, dtype: str) -> None:
    """Both use the CPU's flash attention. The graphs' gradients are compared, not only the
    module's.

    One difference is not 0: the gradients of Qwen3's q_norm and k_norm in fp32. They are sums over
    all heads and positions, and transformers holds those heads-first in memory, we positions-first,
    which is the order of the sum. In bf16 and fp16 it vanishes in the rounding.
    """
    check(replace(TEST, **CASES[case]), dtype, 2, 16)


@pytest.mark.parametrize(("microbatch", "sequence"), [(1, 2), (3, 7), (1, 24), (5, 33)])
def test_any_shape_equals_transformers(microbatch: int, sequence: int) -> None:
    """A39: no size is one that the model happened to be traced with."""
    check(TEST, "fp32", microbatch, sequence)


def check(config: LlamaConfig, dtype: str, microbatch: int, sequence: int) -> None:
    ours = Llama(config, DTYPES[dtype])
    initialise(ours)
    raw = config.to_hf()
    theirs = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**raw), attn_implementation="sdpa", dtype=DTYPES[dtype]
    )
    assert type(theirs).__name__ == ARCHITECTURES[config.model_type]
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in theirs.named_parameters()]
    theirs.load_state_dict(ours.state_dict())
    tokens, shifted = batch(config, microbatch, sequence)
    labels = torch.cat((torch.full((microbatch, 1), -100), shifted), 1)[:, :-1]
    shifted[:, -1] = -100  # transformers shifts within the tokens: the last has no successor
    valid = int((shifted >= 0).sum())

    expected = theirs(input_ids=tokens, labels=labels, num_items_in_batch=torch.tensor(valid))
    expected.loss.backward()
    assert torch.equal(ours.logits(tokens, torch.arange(sequence)), expected.logits)

    tangent = torch.tensor(1.0) / valid
    model = build_model(config, microbatch, sequence, dtype)
    loss, gradients = run_step(model, ours, tokens, shifted, tangent)
    assert torch.equal(loss / valid, expected.loss.detach())
    for name, parameter in theirs.named_parameters():
        assert parameter.grad is not None
        if name.endswith(("q_norm.weight", "k_norm.weight")) and dtype == "fp32":
            torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-5, atol=1e-8)
        else:
            assert (gradients[name] - parameter.grad).abs().max().item() == 0.0, name


def test_a_window_matters_from_one_position_short_of_the_sequence() -> None:
    """That is what is refused. At the sequence itself transformers masks by other means, so that
    in bf16 and fp16 its backward takes another kernel; the numbers are the same."""
    difference = {}
    for window in (16, 15):
        config = replace(TEST, model_type="mistral", sliding_window=window)
        ours = Llama(config)
        initialise(ours)
        theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config.to_hf()))
        theirs.load_state_dict(ours.state_dict())
        tokens, _ = batch(config, 2, 16)
        with torch.no_grad():
            logits = ours.logits(tokens, torch.arange(16))
            difference[window] = (logits - theirs(input_ids=tokens).logits).abs()
    assert difference[16].max() == 0
    assert difference[15][:, :15].max() < 1e-5
    assert difference[15][:, 15].max() > 0.01
