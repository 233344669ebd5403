"""A step whose numbers are not finite is skipped by all ranks, changes nothing, and says where."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from schedc.ops.generated import Graph
from schedc.program.artifact import Artifact, write_artifact
from schedc.program.program import RankProgram
from schedc.runtime import rank as rank_module
from schedc.runtime.config import RunConfig
from schedc.runtime.local import RunResult, run_threads
from schedc.runtime.machine import TensorMachine
from schedc.runtime.weights import initialise, write_checkpoint
from tests.runtime.builds import SEQUENCE, Shape, artifact_of
from tests.runtime.launching import launch

SHAPE = Shape("zb_h1", 2, 3, dp=2, layers=2, optimizer="adamw")
"""Each rank holds one layer; two replicas of three microbatches of two rows."""

POISON = 99
"""A token that only one row of one step has."""

ROW = 10
"""That row of the batch: of replica 1, microbatch 2."""


def write_rows(path: Path, steps: int, poisoned: int | None, skip: int | None = None) -> Path:
    """Batches of random tokens; the ``poisoned`` step has POISON. ``skip`` leaves a step out."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(0, POISON, (steps, SHAPE.batch, SEQUENCE), generator=generator)
    if poisoned is not None:
        ids[poisoned, ROW, 7] = POISON
    kept = [step for step in range(steps) if step != skip]
    save_file({"input_ids": ids[kept].flatten(0, 1)}, path)
    return path


def checkpoint_with_a_bad_row(folder: Path) -> Path:
    """Fresh parameters, but POISON's embedding is infinite."""
    manifest = artifact_of(SHAPE).manifest
    values = initialise([p for unit in manifest.units for _, p in unit.parameters], 0)
    values["model.embed_tokens.weight"][POISON, 3] = math.inf
    write_checkpoint(folder, values, manifest.config)
    return folder


def run(data: Path, steps: int, init: Path | None = None, shape: Shape = SHAPE) -> RunResult:
    config = RunConfig(steps=steps, data=(data,), init=init, lr=1e-3, warmup=5)
    return run_threads(artifact_of(shape), config)


def assert_equal_but_for_a_skipped_step(found: RunResult, other: RunResult, skipped: int) -> None:
    """``found`` is ``other`` with one more step, which changed nothing."""
    kept = [record for at, record in enumerate(found.records) if at != skipped]
    assert [r.loss for r in kept] == [r.loss for r in other.records]
    assert [r.grad_norm for r in kept] == [r.grad_norm for r in other.records]
    assert [r.lr for r in kept] == [r.lr for r in other.records]
    for name, expected in other.parameters.items():
        assert torch.equal(found.parameters[name], expected), name
    for mine, theirs in zip(found.ranks, other.ranks, strict=True):
        assert mine.optimizer.updates == theirs.optimizer.updates
        for moment, expected in zip(mine.optimizer.state(), theirs.optimizer.state(), strict=True):
            assert torch.equal(moment, expected)  # moments, and AdamW's own count of steps


def reason(result: RunResult, step: int) -> str:
    """Why all ranks skipped ``step``, and no other."""
    texts = {tuple(each.skipped for each in results) for results in result.results}
    (text,) = texts
    assert [at for at, each in enumerate(text) if each is not None] == [step]
    found = text[step]
    assert found is not None
    assert result.records[step].skipped == found
    return found


def test_one_bad_row_of_one_batch(tmp_path: Path) -> None:
    """A loss that is not finite on one rank; the third step is as if the second had not been."""
    init = checkpoint_with_a_bad_row(tmp_path / "init")
    data = write_rows(tmp_path / "data.safetensors", 4, poisoned=1)
    result = run(data, 4, init)
    assert reason(result, 1) == (
        "the loss is not finite, first in the output of embedding (F of stage 0, microbatch 2, "
        "replica 1); the parameter model.embed_tokens.weight is not finite"
    )
    assert math.isnan(result.records[1].loss)
    without = write_rows(tmp_path / "other.safetensors", 4, poisoned=1, skip=1)
    assert_equal_but_for_a_skipped_step(result, run(without, 3, init), 1)


def test_fp16_overflows_in_the_forward(tmp_path: Path) -> None:
    """No parameter is wrong, and no loss scale helps: it stays."""
    shape = replace(SHAPE, precision=replace(SHAPE.precision, model="fp16", scale=1024))
    manifest = artifact_of(shape).manifest
    values = initialise([p for unit in manifest.units for _, p in unit.parameters], 0)
    values["model.embed_tokens.weight"][POISON, :2] = 60000.0
    values["model.layers.1.mlp.down_proj.weight"][0] = 30000.0
    values["model.layers.0.self_attn.o_proj.weight"][0] = 30000.0
    write_checkpoint(tmp_path / "init", values, manifest.config)
    data = write_rows(tmp_path / "data.safetensors", 2, poisoned=1)
    result = run(data, 2, tmp_path / "init", shape)
    texts = [record.skipped for record in result.records]
    assert texts[1] is not None
    assert "first in the output of layers." in texts[1]
    assert "parameter" not in texts[1]
    assert [record.loss_scale for record in result.records] == [1024, 1024]


# A graph that returns what it should not, on one rank, for one microbatch


Poison = Callable[[list[Tensor]], None]


def poison(
    monkeypatch: pytest.MonkeyPatch, rank: int, graph: str, step: int, microbatch: int, how: Poison
) -> None:
    """Let ``how`` change what ``graph`` returns on global rank ``rank``."""
    machines: dict[str, TensorMachine] = {}
    begin, load_right = TensorMachine.begin, rank_module.load_graphs

    def noted(self: TensorMachine, step: int, rate: float) -> None:
        machines[threading.current_thread().name] = self
        begin(self, step, rate)

    def load(artifact: Artifact, program: RankProgram) -> dict[str, Graph]:
        graphs = load_right(artifact, program)
        thread = threading.current_thread().name
        if thread == f"rank {rank}":
            right = graphs[graph]

            def wrong(arguments: list[Tensor]) -> tuple[Tensor, ...]:
                outputs = list(right(arguments))
                machine = machines[thread]
                if (machine._step, machine.inspector.microbatch) == (step, microbatch):
                    how(outputs)
                return tuple(outputs)

            graphs[graph] = wrong
        return graphs

    monkeypatch.setattr(TensorMachine, "begin", noted)
    monkeypatch.setattr(rank_module, "load_graphs", load)


def infinite(index: int) -> Poison:
    def change(outputs: list[Tensor]) -> None:
        outputs[index] = torch.full_like(outputs[index], math.inf)

    return change


def one_number(index: int) -> Poison:
    def change(outputs: list[Tensor]) -> None:
        outputs[index] = outputs[index].clone()
        outputs[index].view(-1)[5] = math.nan

    return change


# Ranks of the mesh dp = 2, pp = 2: dp is faster. Rank 1 is replica 1 of stage 0, 2 and 3 stage 1.
# Of a layer's gradients, W's first is that of q_proj, and the first of I, after dx, that of a norm.
CASES = {
    "the loss alone": (
        (3, "head.F", 1, infinite(0)),
        "the loss is not finite, first in the loss (F of stage 1, microbatch 1, replica 1)",
    ),
    "hidden states": (
        (2, "layer.F", 2, one_number(0)),
        "the loss is not finite, first in the output of layers.1 (F of stage 1, microbatch 2, "
        "replica 0)",
    ),
    "a gradient between ranks": (
        (2, "layer.I", 0, one_number(0)),
        "the gradients are not finite, first in the gradient of the input of layers.1 "
        "(I of stage 1, microbatch 0, replica 0)",
    ),
    "a small gradient": (
        (1, "layer.I", 1, one_number(1)),
        "the gradients are not finite, first in the gradient of "
        "model.layers.0.input_layernorm.weight (I of stage 0, microbatch 1, replica 1)",
    ),
    "a gradient of weights": (
        (0, "layer.W", 2, one_number(0)),
        "the gradients are not finite, first in the gradient of "
        "model.layers.0.self_attn.q_proj.weight (W of stage 0, microbatch 2, replica 0)",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_place_is_named_and_the_step_left_out(
    case: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (rank, graph, microbatch, how), expected = CASES[case]
    without = write_rows(tmp_path / "other.safetensors", 4, poisoned=None, skip=2)
    other = run(without, 3)
    poison(monkeypatch, rank, graph, 2, microbatch, how)
    result = run(write_rows(tmp_path / "data.safetensors", 4, poisoned=None), 4)
    assert reason(result, 2) == expected
    assert_equal_but_for_a_skipped_step(result, other, 2)


def test_the_first_of_several_is_that_of_one_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """zb_h1 runs F of the next microbatch on stage 0 long before I of this one on stage 1."""

    poison(monkeypatch, 2, "layer.I", 0, 0, infinite(0))
    poison(monkeypatch, 0, "layer.F", 0, 1, infinite(0))
    result = run(write_rows(tmp_path / "data.safetensors", 1, poisoned=None), 1)
    assert result.records[0].skipped == (
        "the loss is not finite, first in the gradient of the input of layers.1 "
        "(I of stage 1, microbatch 0, replica 0)"
    )


def test_sums_that_overflow_though_no_gradient_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def huge(outputs: list[Tensor]) -> None:
        outputs[0] = torch.full_like(outputs[0], 3e38)

    for microbatch in (0, 1):
        poison(monkeypatch, 1, "layer.W", 0, microbatch, huge)
    result = run(write_rows(tmp_path / "data.safetensors", 1, poisoned=None), 1)
    assert result.records[0].skipped == (
        "the gradients are not finite, first in the sum of the gradients of layers.0 (stage 0)"
    )


def test_a_step_that_repeats_as_finite_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As where a kernel does not repeat bit for bit: the step was skipped, and stays so."""
    times: list[int] = []

    def once(outputs: list[Tensor]) -> None:
        times.append(1)
        if len(times) == 1:
            outputs[0] = torch.full_like(outputs[0], math.nan)

    poison(monkeypatch, 1, "layer.W", 0, 0, once)
    result = run(write_rows(tmp_path / "data.safetensors", 1, poisoned=None), 1)
    assert result.records[0].skipped == (
        "the gradients are not finite, but they were when the step was repeated"
    )
    assert [rank.optimizer.updates for rank in result.ranks] == [0] * 4


@pytest.mark.gloo
def test_it_is_told_once_and_training_goes_on(tmp_path: Path) -> None:
    init = checkpoint_with_a_bad_row(tmp_path / "init")
    data = write_rows(tmp_path / "data.safetensors", 3, poisoned=1)
    write_artifact(artifact_of(SHAPE), tmp_path / "build")
    metrics = tmp_path / "metrics.jsonl"
    options = ("--data", data, "--init", init, "--steps", "3", "--warmup", "5")
    outputs = ("--metrics", metrics, "--trace-out", tmp_path / "trace.json")
    done = launch(4, tmp_path / "build", *options, *outputs)
    assert done.code == 0, done.err
    where = "first in the output of embedding (F of stage 0, microbatch 2, replica 1)"
    assert done.err.count("warning: step 2 is skipped: the loss is not finite, " + where) == 1
    assert (done.out + done.err).count("not finite, first") == 1
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [line["loss"] is None for line in lines] == [False, True, False]
    assert where in lines[1]["skipped"]
    assert [line["skipped"] for line in lines if line["step"] != 2] == [None, None]
    assert [line["lr"] for line in lines] == pytest.approx([2e-4, 4e-4, 4e-4])
    assert [line["loss_scale"] for line in lines] == [1, 1, 1]
