"""However a batch is cut into microbatches and replicas, each valid label weighs the same.

Cases A02, A03, A04 and A20 of the public reports: gradients divided by the number of microbatches
once too often, means of means, microbatches whose gradients get lost.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.runtime.builds import SEQUENCE, Shape, write_data
from tests.runtime.parity import STEPS, assert_equal_to_oracle, trained, trained_on


@pytest.mark.parametrize("schedule", ["one_f_one_b", "interleaved", "zb_h1"])
def test_twelve_microbatches_are_one_batch(schedule: str, tmp_path: Path) -> None:
    """A02: three accumulations of M = 4 are M = 12 here, and a sum rather than an average."""
    assert_equal_to_oracle(*trained(Shape(schedule, 2, 12), tmp_path))


@pytest.mark.parametrize("counts", [(1, 16, 7, 0), (0, 7, 16, 1), (0, 0, 0, 1)], ids=str)
@pytest.mark.parametrize("schedule", ["one_f_one_b", "zb_h1"])
def test_replicas_and_microbatches_of_unequal_labels(
    schedule: str, counts: tuple[int, ...], tmp_path: Path
) -> None:
    """A03: valid labels of (dp, microbatch) (0, 0), (0, 1), (1, 0), (1, 1)."""
    shape = Shape(schedule, 2, 2, dp=2)
    rows = load_file(write_data(tmp_path / "all.safetensors", shape.batch, STEPS))
    for step in range(STEPS):
        for part, count in enumerate(counts):
            first = step * shape.batch + part * shape.microbatch
            _keep(rows, range(first, first + shape.microbatch), count)
    data = tmp_path / "data.safetensors"
    save_file(rows, data)
    result, oracle = trained_on(shape, (data,), rows)
    assert [record.valid_labels for record in result.records] == [sum(counts)] * STEPS
    # Ranks 2 and 3 hold the last stage, of one replica each.
    losses = [result.results[2 + part // 2][0].microbatch_losses[part % 2] for part in range(4)]
    assert [loss > 0 for loss in losses] == [count > 0 for count in counts]
    assert sum(losses) / sum(counts) == pytest.approx(oracle.losses[0], rel=1e-5)
    assert_equal_to_oracle(result, oracle)


def _keep(rows: dict[str, torch.Tensor], microbatch: range, count: int) -> None:
    """Leave ``count`` valid labels in a microbatch; the first id of a row is no label."""
    for row in microbatch:
        here = min(count, SEQUENCE - 1)
        rows["labels"][row] = rows["input_ids"][row]
        rows["labels"][row, 1 + here :] = -100
        count -= here
    assert count == 0


@pytest.mark.parametrize("schedule", ["gpipe", "one_f_one_b", "zb_h1"])
def test_the_norm_does_not_depend_on_the_number_of_microbatches(
    schedule: str, tmp_path: Path
) -> None:
    """A04: one batch of eight as M = 1, 2, 4 and 8."""
    shapes = [Shape(schedule, 2, M, microbatch=8 // M) for M in (1, 2, 4, 8)]
    assert {shape.batch for shape in shapes} == {8}
    runs = [trained(shape, tmp_path, clip=0.0) for shape in shapes]
    for result, oracle in runs:
        assert result.grad_norms == pytest.approx(runs[0][0].grad_norms, rel=1e-5)
        assert_equal_to_oracle(result, oracle)


@pytest.mark.parametrize("schedule", ["gpipe", "one_f_one_b", "interleaved", "zb_h1"])
def test_no_microbatch_but_the_first_gets_lost(schedule: str, tmp_path: Path) -> None:
    """A20: M = 8, and microbatch 0 has no valid label, so that all gradients come from others."""
    shape = Shape(schedule, 2, 8)
    rows = load_file(write_data(tmp_path / "all.safetensors", shape.batch, STEPS))
    rows = {key: value.roll(-2, 0).contiguous() for key, value in rows.items()}
    assert (rows["labels"][: shape.microbatch] == -100).all()
    data = tmp_path / "data.safetensors"
    save_file(rows, data)
    result, oracle = trained_on(shape, (data,), rows)
    assert result.results[1][0].microbatch_losses[0] == 0
    assert all(gradient.abs().max() > 0 for gradient in result.gradients.values())
    assert_equal_to_oracle(result, oracle)
