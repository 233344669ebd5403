"""What the training loop writes."""

from __future__ import annotations

import io
import json
import math

from schedc.runtime.machine import StepResult
from schedc.runtime.training import MetricsFile, StepRecord


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
