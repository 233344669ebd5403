"""A training run equals one process of transformers' Llama: losses, gradients, norms, parameters.

On threads, for every bundled schedule. Labels are unequal per microbatch and one microbatch has
none; SGD, because Adam hides errors of scale; clipping is active.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from schedc.runtime.config import RunConfig
from schedc.runtime.local import run_threads
from schedc.runtime.weights import initialise
from schedc.sema.library import bundled
from tests.runtime.builds import Shape, artifact_of, run_oracle, write_data
from tests.runtime.parity import CLIP, LR, SEED, STEPS, assert_equal_to_oracle, trained


@pytest.fixture(scope="module", autouse=True)
def _one_thread_a_rank():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


LAYERS = {"interleaved": {1: 4, 2: 4, 4: 7}}
"""Two stages a rank: four ranks need eight units."""


@pytest.mark.parametrize("microbatches", [1, 2, 3, 8])
@pytest.mark.parametrize("pp", [1, 2, 4])
@pytest.mark.parametrize("schedule", ["gpipe", "one_f_one_b", "interleaved", "zb_h1"])
def test_every_schedule_equals_one_process(
    schedule: str, pp: int, microbatches: int, tmp_path: Path
) -> None:
    """A01 (and :func:`test_without_clipping`), A13; A08 where there are fewer microbatches than
    ranks."""
    layers = LAYERS.get(schedule, {}).get(pp, 4)
    result, oracle = trained(Shape(schedule, pp, microbatches, layers=layers), tmp_path)
    assert min(oracle.norms) > CLIP
    assert_equal_to_oracle(result, oracle)


LATER = {
    "straight": ("eager_1f1b", "zb_h2", "zb_1p"),
    "two stages a rank": ("breadth_first", "interleaved_zb", "hanayo", "zb_v", "v_half", "v_min"),
}


@pytest.mark.parametrize("microbatches", [2, 3, 8])
@pytest.mark.parametrize(
    ("schedule", "pp"),
    [
        *((schedule, 4) for schedule in LATER["straight"]),
        *((schedule, 2) for schedule in LATER["two stages a rank"]),
        ("zb_v", 3),
    ],
)
def test_bundled_policies_and_patterns_equal_one_process(
    schedule: str, pp: int, microbatches: int, tmp_path: Path
) -> None:
    result, oracle = trained(Shape(schedule, pp, microbatches, layers=4), tmp_path)
    assert min(oracle.norms) > CLIP
    assert_equal_to_oracle(result, oracle)


@pytest.mark.parametrize("microbatches", [4, 5, 8])
def test_slots_of_two_equal_one_process(microbatches: int, tmp_path: Path) -> None:
    """DualPipeV needs two microbatches a rank at least."""
    shape = Shape("dualpipev", 2, microbatches, layers=4, evaluation_microbatches=4)
    result, oracle = trained(shape, tmp_path)
    assert min(oracle.norms) > CLIP
    assert_equal_to_oracle(result, oracle)


def test_every_bundled_schedule_is_run() -> None:
    first = {"gpipe", "one_f_one_b", "interleaved", "zb_h1", "dualpipev"}
    assert set(bundled().schedules) == first | {name for names in LATER.values() for name in names}


@pytest.mark.parametrize(
    "shape",
    [
        Shape("zb_h1", 2, 3, dp=2, layers=7),
        Shape("one_f_one_b", 2, 1, dp=2),
        Shape("interleaved", 2, 2, dp=2),
        Shape("gpipe", 1, 2, dp=4),
        Shape("one_f_one_b", 3, 4, layers=5),
        Shape("one_f_one_b", 2, 3, layers=7),
        Shape("mixed", 2, 3, dp=2),
    ],
    ids=lambda s: f"{s.schedule} P={s.pp} M={s.microbatches} dp={s.dp} layers={s.layers}",
)
def test_replicas_and_uneven_layers_equal_one_process(shape: Shape, tmp_path: Path) -> None:
    """A06: 7 layers on two ranks, 5 on three. With dp = 2 and M = 1 the second replica has no
    valid label at all."""
    assert_equal_to_oracle(*trained(shape, tmp_path))


@pytest.mark.parametrize(
    "shape",
    [
        Shape("one_f_one_b", 2, 3, microbatch=3, tail=2),  # a batch of 8
        Shape("zb_h1", 2, 3, microbatch=3, tail=1, layers=7, dp=2),
        Shape("gpipe", 3, 3, tail=1, layers=5),  # a batch of 5, of which chunk(4) makes 3 parts
        Shape("interleaved", 2, 4, tail=1),
        Shape("mixed", 2, 4, tail=1, dp=2),
        Shape("mixed", 1, 2, microbatch=5, tail=4),
        Shape("zb_h1", 2, 3, microbatch=3, tail=1, tied=True),
    ],
    ids=lambda s: f"{s.schedule} P={s.pp} M={s.microbatches} dp={s.dp} {s.microbatch} and {s.tail}",
)
def test_a_smaller_last_microbatch_counts_by_its_tokens(shape: Shape, tmp_path: Path) -> None:
    """A07."""
    assert_equal_to_oracle(*trained(shape, tmp_path))


def test_without_clipping(tmp_path: Path) -> None:
    assert_equal_to_oracle(*trained(Shape("zb_h1", 2, 4), tmp_path, clip=0.0))


def test_every_rank_reports_the_same_loss_and_norm(tmp_path: Path) -> None:
    result, _ = trained(Shape("zb_h1", 2, 3, dp=2), tmp_path)
    for step in range(STEPS):
        seen = {(r[step].loss, r[step].norm, r[step].valid) for r in result.results}
        assert len(seen) == 1


def test_replicas_stay_equal_bit_for_bit(tmp_path: Path) -> None:
    result, _ = trained(Shape("one_f_one_b", 2, 3, dp=2), tmp_path)
    for first, second in ((0, 1), (2, 3)):
        mine, other = result.ranks[first].parameters(), result.ranks[second].parameters()
        assert all(torch.equal(mine[name], other[name]) for name in mine)


def test_the_losses_of_gpipe_microbatches_are_all_kept(tmp_path: Path) -> None:
    """A18: a single loss variable, right only where backwards follow forwards."""
    shape = Shape("gpipe", 2, 4)
    artifact = artifact_of(shape)
    data = write_data(tmp_path / "data.safetensors", shape.batch, 1)
    result = run_threads(artifact, RunConfig(steps=1, data=(data,), seed=SEED))
    losses = result.results[1][0].microbatch_losses
    assert sorted(losses) == [0, 1, 2, 3]
    assert losses[1] == 0.0
    parameters = [p for unit in artifact.manifest.units for _, p in unit.parameters]
    for m, loss in losses.items():
        rows = {key: value[2 * m : 2 * m + 2] for key, value in load_file(data).items()}
        valid = int((rows["labels"][:, 1:] != -100).sum())
        if valid:
            oracle = run_oracle(
                artifact.manifest.config, initialise(parameters, SEED), rows, 2, 1, LR, 0.0
            )
            assert loss == pytest.approx(oracle.losses[0] * valid, rel=1e-5)


def test_a_step_without_valid_labels_is_skipped_by_all(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    shape = Shape("zb_h1", 2, 2, dp=2)
    data = load_file(write_data(tmp_path / "data.safetensors", shape.batch, 2))
    data["labels"][: shape.batch] = -100
    save_file(data, tmp_path / "none.safetensors")
    config = RunConfig(steps=2, data=(tmp_path / "none.safetensors",), lr=LR, seed=SEED)
    result = run_threads(artifact_of(shape), config)
    for steps in result.results:
        assert [s.skipped for s in steps] == ["no valid labels", None]
        assert steps[0].loss == 0.0
    assert result.losses[1] > 0
    assert all(torch.isfinite(p).all() for p in result.parameters.values())


def test_adamw_equals_one_process(tmp_path: Path) -> None:
    """Losses, and parameters after three steps that move each by up to 3e-3.

    The largest difference is 1.9e-6, where the gradient is 1.6e-8: Adam divides by sqrt(v) + 1e-8,
    so the rounding of a gradient near zero becomes a visible part of lr.
    """
    shape = Shape("zb_h1", 2, 3, optimizer="adamw")
    artifact = artifact_of(shape)
    data = write_data(tmp_path / "data.safetensors", shape.batch, STEPS)
    config = RunConfig(steps=STEPS, data=(data,), lr=1e-3, seed=SEED, weight_decay=0.1)
    result = run_threads(artifact, config)
    parameters = [p for unit in artifact.manifest.units for _, p in unit.parameters]
    oracle = run_oracle(
        artifact.manifest.config,
        initialise(parameters, SEED),
        load_file(data),
        shape.batch,
        STEPS,
        1e-3,
        1.0,
        optimizer=lambda p: torch.optim.AdamW(p, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1),
    )
    for name, expected in oracle.parameters.items():
        torch.testing.assert_close(result.parameters[name], expected, rtol=0, atol=4e-6)
    assert result.losses == pytest.approx(oracle.losses, rel=1e-5)


def test_a_run_starts_from_a_checkpoint_of_transformers(tmp_path: Path) -> None:
    shape = Shape("interleaved", 2, 2)
    artifact = artifact_of(shape)
    torch.manual_seed(5)
    model = LlamaForCausalLM(LlamaConfig(**artifact.manifest.config))
    model.save_pretrained(tmp_path / "checkpoint")
    data = write_data(tmp_path / "data.safetensors", shape.batch, STEPS)
    config = RunConfig(
        steps=STEPS, data=(data,), lr=LR, clip=CLIP, init=tmp_path / "checkpoint", seed=99
    )
    result = run_threads(artifact, config)
    parameters = {name: p.detach().clone() for name, p in model.named_parameters()}
    oracle = run_oracle(
        artifact.manifest.config, parameters, load_file(data), shape.batch, STEPS, LR, CLIP
    )
    assert_equal_to_oracle(result, oracle)


def test_a_step_that_overflows_is_skipped_by_all(tmp_path: Path) -> None:
    """The first update is absurdly large, so that the second step overflows."""
    shape = Shape("one_f_one_b", 2, 2, dp=2)
    data = write_data(tmp_path / "data.safetensors", shape.batch, 2)
    config = RunConfig(steps=2, data=(data,), lr=1e30, clip=0.0, seed=SEED)
    result = run_threads(artifact_of(shape), config)
    for steps in result.results:
        assert [s.skipped for s in steps] == [
            None,
            "the loss is not finite, first in the output of layers.0 (F of stage 0, "
            "microbatch 0, replica 0)",
        ]
    assert all(torch.isfinite(p).all() for p in result.parameters.values())
