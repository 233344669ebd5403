"""Checkpoints of bf16 and fp16 runs: read and written bit for bit, in the dtype that they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaForCausalLM

from schedc.ir.precision import Precision
from schedc.program.artifact import write_artifact
from schedc.runtime.config import RunConfig
from schedc.runtime.local import run_threads
from schedc.runtime.weights import DTYPES, initialise, write_checkpoint
from tests.runtime.builds import Shape, artifact_of, write_data
from tests.runtime.launching import launch


def one_rank(model: str) -> Shape:
    scale = 1024 if model == "fp16" else 0
    precision = Precision(model, scale=scale)
    return Shape("gpipe", 1, 2, layers=2, optimizer="adamw", precision=precision)


def fresh(shape: Shape) -> dict[str, Tensor]:
    units = artifact_of(shape).manifest.units
    return initialise([p for unit in units for _, p in unit.parameters], 0)


def exported(shape: Shape, folder: Path, *options: str | Path) -> dict[str, Tensor]:
    """What a run of its own process exports; its config names the dtype that it holds."""
    write_artifact(artifact_of(shape), folder / "build")
    done = launch(1, folder / "build", *options, "--export", folder / "out")
    assert done.code == 0, done.err
    found = load_file(folder / "out" / "model.safetensors")
    config = json.loads((folder / "out" / "config.json").read_text())
    assert "torch_dtype" not in config
    assert {str(tensor.dtype) for tensor in found.values()} == {f"torch.{config['dtype']}"}
    return found


@pytest.mark.parametrize("model", ["bf16", "fp16"])
def test_a_checkpoint_that_was_not_trained_is_bit_equal(model: str, tmp_path: Path) -> None:
    shape = one_rank(model)
    values = {name: tensor.to(DTYPES[model]) for name, tensor in fresh(shape).items()}
    write_checkpoint(tmp_path / "init", values, artifact_of(shape).manifest.config)
    found = exported(shape, tmp_path, "--steps", "0", "--init", tmp_path / "init")
    assert list(found) == sorted(values)
    assert all(torch.equal(found[name], values[name]) for name in values)
    loaded = LlamaForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert loaded.dtype == DTYPES[model]


def test_after_training_fp32_keeps_the_masters(tmp_path: Path) -> None:
    """bf16, as the plan says, for those who use the model; fp32 for those who train on."""
    shape = one_rank("bf16")
    data = write_data(tmp_path / "data.safetensors", shape.batch, 2)
    masters = run_threads(artifact_of(shape), RunConfig(steps=2, data=(data,))).parameters
    options = ("--steps", "2", "--data", data)
    narrow = exported(shape, tmp_path, *options)
    wide = exported(shape, tmp_path, *options, "--export-dtype", "fp32")
    for name, master in masters.items():
        assert torch.equal(wide[name], master)
        assert torch.equal(narrow[name], master.bfloat16())
    assert any(not torch.equal(wide[name], narrow[name].float()) for name in wide)
    # The masters that were written are those that a run begins with.
    again = exported(
        shape, tmp_path, "--steps", "0", "--init", tmp_path / "out", "--export-dtype", "fp32"
    )
    assert all(torch.equal(again[name], master) for name, master in masters.items())


def test_an_unknown_dtype_is_refused(tmp_path: Path) -> None:
    write_artifact(artifact_of(one_rank("bf16")), tmp_path / "build")
    done = launch(1, tmp_path / "build", "--steps", "0", "--export-dtype", "int8")
    assert done.code == 1
    assert "--export-dtype has to be one of fp32, bf16, fp16" in done.err
