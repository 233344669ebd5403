"""What ranks read while they train: the same rows at both ends, all lengths, over the data's end.

Cases A19, A28 and A29 of the public reports. tests/runtime/test_data.py asks the batches
themselves.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from schedc.diagnostics import DiagnosticError
from schedc.runtime.config import RunConfig
from schedc.runtime.local import run_threads
from schedc.runtime.share import Share
from tests.runtime.builds import SEQUENCE, Shape, artifact_of, write_data
from tests.runtime.parity import assert_equal_to_oracle, trained_on

Read = dict[tuple[int, int, int], Tensor]
"""By first row of the replica, step and microbatch."""


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> tuple[Read, Read]:
    """What stages load of ids and of labels."""
    ids: Read = {}
    labels: Read = {}

    def recording(into: Read, load: object) -> object:
        def loaded(share: Share, step: int, microbatch: int) -> Tensor:
            found: Tensor = load(share, step, microbatch)  # type: ignore[operator]
            key = (share.rows[0].start, step, microbatch)
            assert key not in into, f"{key} is loaded twice"
            into[key] = found.clone()
            return found

        return loaded

    monkeypatch.setattr(Share, "tokens", recording(ids, Share.tokens))
    monkeypatch.setattr(Share, "labels", recording(labels, Share.labels))
    return ids, labels


@pytest.mark.parametrize("schedule", ["one_f_one_b", "interleaved", "zb_h1"])
def test_both_ends_of_the_pipeline_read_the_same_shuffled_rows(
    schedule: str, read: tuple[Read, Read], tmp_path: Path
) -> None:
    """A19: dp = 2, pp = 2. Any two sequences of the data differ, so that equal means the same."""
    shape, steps = Shape(schedule, 2, 3, dp=2), 3
    tokens = np.random.default_rng(5).integers(0, 128, shape.batch * steps * SEQUENCE + 1)
    tokens.astype("<u2").tofile(tmp_path / "t.bin")
    config = RunConfig(steps=steps, data=(tmp_path / "t.bin",), shuffle=True)
    run_threads(artifact_of(shape), config)
    ids, labels = read
    assert len(ids) == shape.dp * steps * shape.microbatches
    assert ids.keys() == labels.keys()
    for key, found in ids.items():
        assert torch.equal(found[:, 1:], labels[key][:, :-1]), key
    rows = [tuple(row) for found in ids.values() for row in found.tolist()]
    windows = [tuple(row) for row in tokens[:-1].reshape(-1, SEQUENCE).tolist()]
    assert len(set(windows)) == len(windows)
    assert sorted(rows) == sorted(windows)  # one pass: each sequence once, over both replicas
    assert rows != windows


def test_sequences_of_several_lengths(tmp_path: Path) -> None:
    """A28: a batch of 16 tokens, one of 8, then microbatches of both; padding counts for nothing.

    The oracle's sequences are filled up with another id.
    """
    shape = Shape("zb_h1", 2, 2)
    whole = load_file(write_data(tmp_path / "all.safetensors", shape.batch, 3))
    lengths = (16, 8, 16, 8)
    counts = (4, 4, 2, 2)
    files = []
    expected = {key: value.clone() for key, value in whole.items()}
    first = 0
    for number, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        part = slice(first, first + count)
        path = tmp_path / f"{number}.safetensors"
        save_file({key: value[part, :length].contiguous() for key, value in whole.items()}, path)
        files.append(path)
        expected["input_ids"][part, length:] = 77
        expected["labels"][part, length:] = -100
        first += count
    result, oracle = trained_on(shape, tuple(files), expected)
    assert_equal_to_oracle(result, oracle)


def test_longer_sequences_are_refused_before_the_first_step(tmp_path: Path) -> None:
    """A28: with both numbers, and never cut off."""
    ids = torch.zeros(4, SEQUENCE + 8, dtype=torch.int64)
    save_file({"input_ids": ids}, tmp_path / "long.safetensors")
    config = RunConfig(steps=1, data=(tmp_path / "long.safetensors",))
    with pytest.raises(DiagnosticError, match="sequences of 24, the plan is compiled for 16"):
        run_threads(artifact_of(Shape("zb_h1", 2, 2)), config)


@pytest.mark.parametrize("schedule", ["gpipe", "one_f_one_b", "zb_h1"])
def test_all_stages_go_on_over_the_end_of_the_data(schedule: str, tmp_path: Path) -> None:
    """A29: ten sequences, a batch of 8, five steps: the data four times, on three ranks."""
    shape = Shape(schedule, 3, 4)
    assert shape.batch == 8
    data = write_data(tmp_path / "data.safetensors", 10, 1)
    repeated = {key: value.repeat(4, 1) for key, value in load_file(data).items()}
    result, oracle = trained_on(shape, (data,), repeated, steps=5)
    assert [len(steps) for steps in result.results] == [5, 5, 5]
    assert_equal_to_oracle(result, oracle)
