"""Which sequences a step reads: order, wrap-around, rows of a rank, resume."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from schedc.diagnostics import DiagnosticError
from schedc.ir.mesh import Mesh
from schedc.ir.precision import Precision
from schedc.program.manifest import Manifest
from schedc.runtime.data import Batches, microbatch_rows, open_data
from schedc.runtime.datasets.shuffle import shuffled


def token_file(path: Path, tokens: int) -> Path:
    """A file in which every token's value is its position, as nanoGPT writes one."""
    np.arange(tokens, dtype="<u2").tofile(path)
    return path


def positions(path: Path, batch: int, *, shuffle: bool | None = None, seed: int = 0) -> Batches:
    """Batches of sequences of 4: sequence i begins with token 4·i."""
    return open_data([path], sequence=4, vocabulary=2**16, batch=batch, seed=seed, shuffle=shuffle)


def sequences_of(batches: Batches, step: int) -> list[int]:
    return [int(first) // 4 for first in batches.batch(step)[0][:, 0]]


def manifest(dp: int, microbatch: int, microbatches: int) -> Manifest:
    return Manifest(
        "plan", "zb_h1", Mesh(dp=dp, pp=2), 4, dp * microbatch * microbatches, microbatch,
        microbatches, Precision("fp32"), "sgd", dp * microbatch, (0, 1), (), (), {}, {}, {}, {},
    )  # fmt: skip


def test_windows_in_file_order(tmp_path: Path) -> None:
    # 13 tokens: sequences at 0, 4, 8, each with its next token as last label.
    batches = positions(token_file(tmp_path / "t.bin", 13), 3, shuffle=False)
    ids, labels = batches.batch(0)
    assert ids.dtype == labels.dtype == torch.int64
    assert ids.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert labels.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]


def test_a_last_window_that_is_short_is_padded_with_ignored_labels(tmp_path: Path) -> None:
    batches = positions(token_file(tmp_path / "t.bin", 7), 2, shuffle=False)
    ids, labels = batches.batch(0)
    assert ids.tolist() == [[0, 1, 2, 3], [4, 5, 0, 0]]
    assert labels.tolist() == [[1, 2, 3, 4], [5, 6, -100, -100]]
    # Every token but the first is a label once: 6 of them.
    assert batches.valid(0, range(2)) == 6
    assert batches.valid(0, range(1, 2)) == 2


def test_wrap_around_reaches_over_the_end_and_never_ends(tmp_path: Path) -> None:
    # A29: 10 sequences, batch 8, 5 steps: 40 samples are four passes, nothing dropped.
    batches = positions(token_file(tmp_path / "t.bin", 41), 8, shuffle=False)
    assert batches.sequences == 10
    read = [index for step in range(5) for index in sequences_of(batches, step)]
    assert read == [*range(10)] * 4


def test_a_shuffled_pass_has_each_sequence_once_and_its_own_order(tmp_path: Path) -> None:
    batches = positions(token_file(tmp_path / "t.bin", 41), 5)
    passes = [sequences_of(batches, 2 * e) + sequences_of(batches, 2 * e + 1) for e in range(3)]
    assert all(sorted(order) == [*range(10)] for order in passes)
    assert len({tuple(order) for order in passes}) == 3
    assert [*range(10)] not in passes


def test_the_order_depends_on_the_seed_alone(tmp_path: Path) -> None:
    path = token_file(tmp_path / "t.bin", 401)
    first = sequences_of(positions(path, 20, seed=1), 0)
    assert sequences_of(positions(path, 20, seed=1), 0) == first
    assert sequences_of(positions(path, 20, seed=2), 0) != first


def test_data_smaller_than_a_batch_repeats_and_says_so(tmp_path: Path) -> None:
    batches = positions(token_file(tmp_path / "t.bin", 13), 8, shuffle=False)
    assert sequences_of(batches, 0) == [0, 1, 2, 0, 1, 2, 0, 1]
    assert sequences_of(batches, 1) == [2, 0, 1, 2, 0, 1, 2, 0]
    assert "fewer than a batch of 8: they repeat" in batches.summary


def test_resume_in_the_second_pass_is_exact(tmp_path: Path) -> None:
    # A34: a batch's rows follow from the step alone, in any order of asking, in a new process too.
    path = token_file(tmp_path / "t.bin", 41)
    whole = positions(path, 8, seed=7)
    uninterrupted = [whole.batch(step) for step in range(4)]
    resumed = positions(path, 8, seed=7)
    for step in (3, 2):
        for one, other in zip(resumed.batch(step), uninterrupted[step], strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize(("dp", "microbatch", "microbatches"), [(2, 2, 3), (1, 1, 8), (4, 3, 1)])
def test_microbatches_tile_the_batch(
    tmp_path: Path, dp: int, microbatch: int, microbatches: int
) -> None:
    # A19: rows by dp coordinate and microbatch, each row of the batch exactly once, the same ids
    # and labels whichever rank asks.
    plan = manifest(dp, microbatch, microbatches)
    batches = positions(token_file(tmp_path / "t.bin", 401), plan.batch)
    ids, labels = batches.batch(3)
    assert torch.equal(labels, ids + 1)
    seen: list[int] = []
    for d in range(dp):
        for m in range(microbatches):
            rows = microbatch_rows(plan, d, m)
            assert len(rows) == microbatch
            assert rows.start == (d * microbatches + m) * microbatch
            seen += rows
            first_stage, _ = batches.rows(3, rows.start, rows.stop)
            _, last_stage = batches.rows(3, rows.start, rows.stop)
            assert torch.equal(first_stage, ids[rows.start : rows.stop])
            assert torch.equal(last_stage, labels[rows.start : rows.stop])
    assert seen == [*range(plan.batch)]


@pytest.mark.parametrize("count", [*range(1, 70), 255, 256, 257, 1000, 65_537])
def test_the_shuffle_is_a_permutation(count: int) -> None:
    images = shuffled(np.arange(count), count, seed=3, epoch=1)
    assert sorted(images.tolist()) == list(range(count))
    # Any part of it is the part of the whole.
    assert shuffled(np.array([count - 1]), count, 3, 1)[0] == images[-1]


def test_the_shuffle_is_even() -> None:
    # Over 2000 passes of 8 elements, each goes to each place 250 times on average; the standard
    # deviation of a uniform shuffle is sqrt(2000 · 1/8 · 7/8) = 14.8: within five of them.
    counts = np.zeros((8, 8))
    for epoch in range(2000):
        counts[np.arange(8), shuffled(np.arange(8), 8, 0, epoch)] += 1
    assert np.abs(counts - 250).max() < 5 * 14.8


def test_the_shuffle_stays_the_same_for_ever() -> None:
    # What it gave when it was written: no change of a library or of the code may move the data of
    # a run that is resumed.
    order = shuffled(np.arange(10), 10, seed=0, epoch=0)
    assert order.tolist() == [4, 2, 9, 7, 5, 3, 1, 6, 8, 0]


def test_fingerprints_tell_different_data_apart(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    path = token_file(here / "t.bin", 41)
    fingerprint = positions(path, 8).fingerprint
    assert positions(token_file(there / "t.bin", 41), 8).fingerprint == fingerprint
    assert positions(path, 8, seed=1).fingerprint != fingerprint
    assert positions(token_file(there / "t.bin", 42), 8).fingerprint != fingerprint


def refusal_of(*paths: Path, **options: object) -> str:
    arguments: dict[str, object] = {"sequence": 4, "vocabulary": 256, "batch": 2, "seed": 0}
    with pytest.raises(DiagnosticError) as caught:
        open_data(paths, **(arguments | options))  # type: ignore[arg-type]
    assert {d.code for d in caught.value.diagnostics} == {"E902"}
    return str(caught.value)


def test_what_is_not_there_or_mixed_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("some text")
    tokens = token_file(tmp_path / "t.bin", 41)
    rows = tmp_path / "s.safetensors"
    save_file({"input_ids": np.zeros((2, 4), np.int64)}, rows)
    assert "no data given" in refusal_of()
    message = refusal_of(text, tmp_path / "b.txt", tmp_path / "c.txt")
    assert "b.txt" in message
    assert "c.txt" in message
    assert "cannot be mixed" in refusal_of(text, tokens)
    assert "cannot be shuffled" in refusal_of(rows, shuffle=True)
    assert "already tokens" in refusal_of(tokens, tokenizer=tmp_path / "tokenizer.json")
