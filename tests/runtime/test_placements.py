"""Whatever the placement, a model is the same: its weights, its names, its rotary tables."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from schedc.diagnostics import DiagnosticError
from schedc.program.instructions import Recv, Send
from schedc.runtime.config import RunConfig
from schedc.runtime.local import run_threads
from schedc.runtime.weights import write_checkpoint
from tests.runtime.builds import Shape, artifact_of, write_data
from tests.runtime.parity import assert_equal_to_oracle, trained


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("schedule", "pp"), [("interleaved", 2), ("v_shaped", 2), ("zb_h1", 4)])
def test_weights_pass_through_unchanged(schedule: str, pp: int, tied: bool, tmp_path: Path) -> None:
    """A35: several stages a rank; every tensor bit for bit, layers in their order."""
    shape = Shape(schedule, pp, 2, layers=7, tied=tied)
    artifact = artifact_of(shape)
    torch.manual_seed(1)
    theirs = LlamaForCausalLM(LlamaConfig(**artifact.manifest.config))
    theirs.save_pretrained(tmp_path / "in", max_shard_size="100KB")
    assert len(list((tmp_path / "in").glob("*.safetensors"))) > 2
    data = write_data(tmp_path / "data.safetensors", shape.batch, 1)
    config = RunConfig(steps=1, data=(data,), lr=0.0, init=tmp_path / "in", seed=5)
    result = run_threads(artifact, config)
    write_checkpoint(tmp_path / "out", result.parameters, artifact.manifest.config)
    found = load_file(tmp_path / "out" / "model.safetensors")
    expected = dict(theirs.named_parameters())
    assert list(result.parameters) == list(expected)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("layers", [6, 8])
def test_a_checkpoint_of_another_depth_is_refused(layers: int, tmp_path: Path) -> None:
    """A35: never a layer at random numbers, on any rank."""
    other = artifact_of(Shape("interleaved", 2, 2, layers=layers))
    theirs = LlamaForCausalLM(LlamaConfig(**other.manifest.config))
    theirs.save_pretrained(tmp_path / "in")
    (tmp_path / "in" / "config.json").unlink()  # else that would be refused first
    artifact = artifact_of(Shape("interleaved", 2, 2, layers=7))
    data = write_data(tmp_path / "data.safetensors", 4, 1)
    with pytest.raises(DiagnosticError) as caught:
        run_threads(artifact, RunConfig(steps=1, data=(data,), init=tmp_path / "in"))
    kind = "missing parameters (9)" if layers < 7 else "parameters that the model has not (9)"
    assert kind in str(caught.value)
    assert f"model.layers.{min(layers, 7)}.self_attn.q_proj.weight" in str(caught.value)


def test_every_rank_makes_its_own_rotary_tables(tmp_path: Path) -> None:
    """A40: what several stages use is made on each, and messages carry hidden states alone."""
    shape = Shape("one_f_one_b", 4, 2, layers=7)
    artifact = artifact_of(shape)
    hidden = artifact.manifest.config["hidden_size"]
    for program in artifact.programs:
        for instruction in program.stream:
            if isinstance(instruction, Send | Recv):
                send = isinstance(instruction, Send)
                operand = instruction.read if send else instruction.write
                shape_ = program.buffer(operand.buffer).shape
                assert shape_ == (artifact.manifest.microbatch, artifact.manifest.sequence, hidden)
    result, oracle = trained(shape, tmp_path)
    assert_equal_to_oracle(result, oracle)
    tables = [rank.rotary for rank in result.ranks]
    assert len(tables) == 4
    first = tables[0]
    assert first is not None
    for other in tables[1:]:
        assert other is not None
        for mine, its in zip(first, other, strict=True):
            assert torch.equal(mine, its)
            assert mine.data_ptr() != its.data_ptr()
    assert list(result.parameters) == list(oracle.parameters)


@pytest.mark.parametrize(
    "shape",
    [
        Shape("zb_h1", 2, 3, model="biased"),
        Shape("interleaved", 2, 2, dp=2, model="biased", tied=True),
        Shape("zb_h1", 2, 3, model="biased", freeze=("*.weight", "model.layers.0.*")),
    ],
    ids=["zb_h1", "tied", "biases alone"],
)
def test_biases_and_an_explicit_head_dim(shape: Shape, tmp_path: Path) -> None:
    """A42: q is heads x head_dim = 128 by 64; biases of attention and MLP are trained."""
    artifact = artifact_of(shape)
    sizes = {p.name: p.shape for p in artifact.model.parameters}
    assert sizes["model.layers.0.self_attn.q_proj.weight"] == (128, 64)
    assert sizes["model.layers.0.self_attn.o_proj.weight"] == (64, 128)
    assert sizes["model.layers.0.mlp.up_proj.bias"] == (96,)
    result, oracle = trained(shape, tmp_path)
    assert any(name.endswith(".bias") for name in oracle.gradients)
    assert_equal_to_oracle(result, oracle)
