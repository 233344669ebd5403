"""What the training loop writes."""

from __future__ import annotations

import io
import itertools
import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from schedc.runtime import training
from schedc.runtime.config import RunConfig
from schedc.runtime.local import run_threads
from schedc.runtime.machine import StepResult
from schedc.runtime.training import MetricsFile, StepRecord
from tests.runtime.builds import SEQUENCE, Shape, artifact_of, write_data


def test_a_number_that_is_not_finite_is_null_in_the_metrics() -> None:
    file = io.StringIO()
    skipped = "the gradients are not finite"
    record = StepRecord(1, math.nan, math.inf, 1e-3, 10.0, 0.5, 7, skipped, 1.0)
    MetricsFile(file).step_ends(record, StepResult(math.nan, math.inf, 7, skipped, True, 1.0, {}))

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    line = json.loads(file.getvalue(), parse_constant=refuse)
    assert (line["loss"], line["grad_norm"], line["lr"]) == (None, None, 1e-3)
    assert (line["valid_labels"], line["skipped"]) == (7, skipped)


@pytest.mark.parametrize(
    "shape",
    [
        Shape("gpipe", 1, 2),
        Shape("zb_h1", 2, 3, dp=2),
        Shape("interleaved", 2, 2, dp=2),
        Shape("one_f_one_b", 2, 3, microbatch=3, tail=1),
    ],
    ids=lambda shape: f"{shape.schedule}-{shape.pp}x{shape.dp}",
)
def test_tokens_per_second_are_those_of_the_step(shape: Shape, tmp_path: Path) -> None:
    """A44: those of the whole batch, whatever its cut into replicas, stages and microbatches."""
    data = write_data(tmp_path / "data.safetensors", shape.batch, 3)
    result = run_threads(artifact_of(shape), RunConfig(steps=3, data=(data,)))
    assert [record.step for record in result.records] == [1, 2, 3]
    for record in result.records:
        tokens = shape.batch * SEQUENCE
        assert record.tokens_per_second * record.step_seconds == pytest.approx(tokens)


def test_a_step_takes_its_own_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A44: not the time since the start, by a clock that goes on by a second a look."""
    shape = Shape("gpipe", 1, 2)
    clock = SimpleNamespace(perf_counter=itertools.count().__next__)
    monkeypatch.setattr(training, "time", clock)
    data = write_data(tmp_path / "data.safetensors", shape.batch, 3)
    result = run_threads(artifact_of(shape), RunConfig(steps=3, data=(data,)))
    assert [record.step_seconds for record in result.records] == [1, 1, 1]
    assert [record.tokens_per_second for record in result.records] == [64, 64, 64]
