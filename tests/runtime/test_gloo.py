"""Runs under torchrun over gloo: the same numbers as one process of transformers' Llama."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

from schedc.ir.trace import Trace
from schedc.program.artifact import write_artifact
from schedc.runtime.weights import initialise
from tests.runtime.builds import Shape, artifact_of, run_oracle, write_data
from tests.runtime.launching import EXEC, launch

pytestmark = pytest.mark.gloo

NCCL = Path(__file__).with_name("nccl_over_gloo.py")
RUNS = [
    (Shape("zb_h1", 2, 3, dp=2, layers=7), EXEC),
    (Shape("interleaved", 2, 3, tail=1), EXEC),
    (Shape("one_f_one_b", 4, 3), EXEC),
    (Shape("zb_v", 2, 5), EXEC),
    (Shape("v_half", 3, 4), EXEC),
    (Shape("zb_1p", 2, 3, dp=2), EXEC),
    (Shape("zb_h1", 2, 3, dp=2, tied=True), EXEC),
    (Shape("one_f_one_b", 3, 3, tied=True, freeze=("model.layers.0.*",)), EXEC),
    (Shape("zb_h1", 2, 3, freeze=("model.embed_tokens.*", "model.layers.[01].*")), EXEC),
    (Shape("zb_h1", 2, 3, dp=2, layers=7), NCCL),
    (Shape("one_f_one_b", 3, 3, tied=True), NCCL),
]


def name_of(run: Shape | Path) -> str:
    if isinstance(run, Path):
        return run.stem
    more = f"{'-tied' * run.tied}{'-frozen' * bool(run.freeze)}{'-tail' * bool(run.tail)}"
    return f"{run.schedule}-{run.pp}x{run.dp}{more}"


@pytest.mark.parametrize(("shape", "script"), RUNS, ids=name_of)
def test_a_run_equals_one_process(shape: Shape, script: Path, tmp_path: Path) -> None:
    artifact = artifact_of(shape)
    build = tmp_path / "a build"
    write_artifact(artifact, build)
    data = write_data(tmp_path / "data.safetensors", shape.batch, 3)
    files = {
        name: tmp_path / "new folder" / name
        for name in ("gradients.safetensors", "metrics.jsonl", "trace.json", "export")
    }
    done = launch(
        shape.pp * shape.dp, build, "--data", data, "--steps", "3", "--lr", "0.1", "--clip", "0.5",
        "--seed", "3", "--dump-gradients", files["gradients.safetensors"],
        "--metrics", files["metrics.jsonl"], "--trace-out", files["trace.json"],
        "--export", files["export"], script=script,
    )  # fmt: skip
    assert done.code == 0, done.err
    parameters = artifact.model.parameters
    oracle = run_oracle(
        artifact.manifest.config, initialise(parameters, 3), load_file(data), shape.batch, 3,
        0.1, 0.5, frozen=frozenset(p.name for p in parameters if p.frozen),
    )  # fmt: skip

    def close(found: torch.Tensor, expected: torch.Tensor) -> None:
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)

    gradients = load_file(files["gradients.safetensors"])
    exported = LlamaForCausalLM.from_pretrained(files["export"]).state_dict()
    assert set(gradients) == set(oracle.gradients)
    assert set(load_file(files["export"] / "model.safetensors")) == {p.name for p in parameters}
    for name, expected in oracle.gradients.items():
        close(gradients[name], expected)
    for name, expected in oracle.parameters.items():
        close(exported[name], expected)
    lines = [json.loads(line) for line in files["metrics.jsonl"].read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3]
    close(torch.tensor([line["loss"] for line in lines]), torch.tensor(oracle.losses))
    close(torch.tensor([line["grad_norm"] for line in lines]), torch.tensor(oracle.norms))
    for line in lines:
        assert line["lr"] == 0.1
        tokens = shape.batch * artifact.manifest.sequence
        assert line["tokens_per_second"] == pytest.approx(tokens / line["step_seconds"])
    trace = Trace.from_json(files["trace.json"].read_text())
    assert ("tie" in {other.name for other in trace.others}) == shape.tied
    if not shape.freeze:
        _check_trace(trace, shape)


def _check_trace(trace: Trace, shape: Shape) -> None:
    """Every operation once, on its rank, in an order that its inputs allow."""
    stages = len(trace.rank_of)
    backward = 2 if shape.schedule in ("zb_h1", "zb_1p", "zb_v", "v_half") else 1
    assert len(trace.tasks) == stages * shape.microbatches * (1 + backward)
    assert trace.origin == "measured"
    ends = {(t.op, t.stage, t.microbatch): t.end for t in trace.tasks}
    for task in trace.tasks:
        assert task.start < task.end
        assert task.place.startswith(f"{shape.schedule}.sched:")
        if task.op == "F" and task.stage > 0:
            assert ends["F", task.stage - 1, task.microbatch] <= task.start
    crossing = sum(a != b for a, b in zip(trace.rank_of, trace.rank_of[1:], strict=False))
    assert len(trace.messages) == 2 * crossing * shape.microbatches
    assert all(m.start <= m.end for m in trace.messages)
    assert {"norm", "step", "report"} <= {other.name for other in trace.others}
    assert 0 <= trace.figures["bubble_rate"] < 1
    assert len(trace.figures["peak_bytes"]) == shape.pp
