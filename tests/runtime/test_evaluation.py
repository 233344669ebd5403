"""Evaluations: the loss of one process on all of the data, and nothing of training changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from schedc.diagnostics import DiagnosticError
from schedc.program.artifact import write_artifact
from schedc.runtime.config import RunConfig, make_config
from schedc.runtime.local import RunResult, run_threads
from schedc.runtime.weights import initialise
from tests.runtime.builds import SEQUENCE, Shape, artifact_of, write_data
from tests.runtime.launching import launch

SEED = 3


def eval_data(folder: Path, rows: int) -> Path:
    """Sequences shorter than the plan's, of unequal numbers of valid labels."""
    generator = torch.Generator().manual_seed(11)
    ids = torch.randint(0, 128, (rows, SEQUENCE - 3), generator=generator)
    labels = ids.clone()
    for row in range(rows):
        labels[row, 2 + row % 9 :] = -100
    save_file({"input_ids": ids, "labels": labels}, folder / "eval.safetensors")
    return folder / "eval.safetensors"


def oracle_loss(shape: Shape, parameters: dict[str, Tensor], data: Path) -> tuple[float, int]:
    """The mean over all valid labels of the file, and their number."""
    model = LlamaForCausalLM(LlamaConfig(**artifact_of(shape).manifest.config))  # pyright: ignore
    model.load_state_dict(parameters, strict=not model.config.tie_word_embeddings)
    rows = load_file(data)
    with torch.no_grad():
        logits = model(input_ids=rows["input_ids"]).logits[:, :-1].flatten(0, 1)
    targets = rows["labels"][:, 1:].flatten()
    loss = torch.nn.functional.cross_entropy(logits, targets, ignore_index=-100)
    return loss.item(), int((targets != -100).sum())


def run(shape: Shape, folder: Path, evaluated: Path | None, every: int = 1) -> RunResult:
    data = write_data(folder / "data.safetensors", shape.batch, 3)
    options = {"eval_data": evaluated, "eval_every": every or None} if evaluated else {}
    config = make_config({"steps": 3, "data": data, "lr": 0.1, "seed": SEED, **options}, None)
    return run_threads(artifact_of(shape), config)


@pytest.mark.parametrize(
    ("shape", "rows"),
    [
        (Shape("one_f_one_b", 2, 3, evaluation_microbatches=2), 11),  # three passes, the last of 3
        (Shape("zb_h1", 2, 3, dp=2, evaluation_microbatches=4), 5),  # a replica without any data
        (Shape("interleaved", 2, 2, evaluation_microbatches=3), 6),
        (Shape("gpipe", 1, 2, microbatch=3, tail=1, evaluation_microbatches=1), 4),
        (Shape("zb_h1", 2, 3, tied=True, freeze=("model.layers.0.*",)), 6),
    ],
    ids=lambda value: value.schedule if isinstance(value, Shape) else str(value),
)
def test_an_evaluation_is_one_process_and_changes_nothing(
    shape: Shape, rows: int, tmp_path: Path
) -> None:
    """A27: before, between and after steps of training; numbers of rows that no pass divides."""
    data = eval_data(tmp_path, rows)
    result, without = run(shape, tmp_path, data), run(shape, tmp_path, None)
    assert [record.step for record in result.evaluations[0]] == [0, 1, 2, 3]
    for rank in result.evaluations:
        assert [record.eval_loss for record in rank] == [
            record.eval_loss for record in result.evaluations[0]
        ]
    before = initialise(artifact_of(shape).model.parameters, SEED)
    for record, parameters in (
        (result.evaluations[0][0], before),
        (result.evaluations[0][-1], result.parameters),
    ):
        loss, valid = oracle_loss(shape, parameters, data)
        assert record.eval_loss == pytest.approx(loss, rel=1e-5)
        assert record.eval_labels == valid
    assert result.losses == without.losses
    for name, gradient in without.gradients.items():
        assert torch.equal(result.gradients[name], gradient)
    for name, parameter in without.parameters.items():
        assert torch.equal(result.parameters[name], parameter)


def test_it_comes_first_then_every_so_often_and_last(tmp_path: Path) -> None:
    shape = Shape("gpipe", 1, 2)
    result = run(shape, tmp_path, eval_data(tmp_path, 4), every=2)
    assert [record.step for record in result.evaluations[0]] == [0, 2, 3]


def test_data_without_a_valid_label_is_refused(tmp_path: Path) -> None:
    data = eval_data(tmp_path, 4)
    rows = load_file(data)
    rows["labels"].fill_(-100)
    save_file(rows, data)
    with pytest.raises(DiagnosticError, match="no label of the evaluation data is valid"):
        run(Shape("gpipe", 1, 2), tmp_path, data)


def test_without_a_frequency_it_comes_first_and_last(tmp_path: Path) -> None:
    result = run(Shape("gpipe", 1, 2), tmp_path, eval_data(tmp_path, 4), every=0)
    assert [record.step for record in result.evaluations[0]] == [0, 3]


def test_a_frequency_needs_data() -> None:
    with pytest.raises(DiagnosticError, match="no data to evaluate on"):
        make_config({"data": "x", "eval_every": 3}, None)
    assert RunConfig().eval_data == ()


@pytest.mark.gloo
def test_a_checkpoint_is_evaluated_without_training(tmp_path: Path) -> None:
    shape = Shape("zb_h1", 2, 2)
    write_artifact(artifact_of(shape), tmp_path / "build")
    data = eval_data(tmp_path, 5)
    done = launch(
        2, tmp_path / "build", "--steps", "0", "--seed", str(SEED), "--eval-data", data,
        "--metrics", tmp_path / "metrics.jsonl",
    )  # fmt: skip
    assert done.code == 0, done.err
    parameters = initialise(artifact_of(shape).model.parameters, SEED)
    loss, valid = oracle_loss(shape, parameters, data)
    (line,) = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert (line["step"], line["eval_labels"]) == (0, valid)
    assert line["eval_loss"] == pytest.approx(loss, rel=1e-5)
    assert f"evaluation after 0 steps   loss {loss:.4f}   {valid} labels" in done.out
