"""bf16 and fp16: fp32 masters and accumulation, reductions in two dtypes, the loss scale."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig as OracleConfig
from transformers import LlamaForCausalLM

from schedc.ir.precision import SCALE, Precision
from schedc.program.artifact import write_artifact
from schedc.runtime.config import RunConfig
from schedc.runtime.local import RunResult, run_threads
from schedc.runtime.loss_scale import GROW_AFTER, LossScale
from schedc.runtime.weights import initialise
from schedc.simulate.program_memory import memory_of
from tests.runtime.builds import MICROBATCH, SEQUENCE, Shape, artifact_of, write_data
from tests.runtime.launching import launch

BF16, FP16 = Precision("bf16"), Precision("fp16", scale=SCALE)


def shape_of(precision: Precision, dp: int = 2, pp: int = 2, optimizer: str = "adamw") -> Shape:
    return Shape("zb_h1", pp, 4 // dp, dp=dp, layers=2, optimizer=optimizer, precision=precision)


def trained(precision: Precision, data: Path, steps: int, **more: float) -> RunResult:
    return run_threads(
        artifact_of(shape_of(precision)),
        RunConfig(steps=steps, data=(data,), **{"lr": 1e-3, **more}),  # type: ignore[arg-type]
    )


@pytest.fixture
def one_batch(tmp_path: Path) -> Path:
    """Data of one batch: every step sees it again, so the loss falls."""
    return write_data(tmp_path / "data.safetensors", 8, 1)


STEPS = 50


@pytest.mark.parametrize("precision", [BF16, Precision("bf16", "bf16"), FP16], ids=str)
def test_the_loss_falls_as_in_fp32(precision: Precision, one_batch: Path) -> None:
    """50 steps of AdamW."""
    wide = trained(Precision("fp32"), one_batch, STEPS).losses
    narrow = trained(precision, one_batch, STEPS).losses
    assert wide[-1] < 0.8 * wide[0]
    assert narrow != wide
    assert narrow == pytest.approx(wide, rel=0.02)


def plain_bf16(data: Path, steps: int, lr: float) -> dict[str, Tensor]:
    """Transformers' Llama trained in bf16 alone: no master copy."""
    config = artifact_of(shape_of(BF16)).manifest.config
    model = LlamaForCausalLM(OracleConfig(**config)).bfloat16()  # pyright: ignore
    model.load_state_dict(initial())
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
    batch = load_file(data)
    for _ in range(steps):
        optimizer.zero_grad()
        model(input_ids=batch["input_ids"], labels=batch["labels"]).loss.backward()
        optimizer.step()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def initial() -> dict[str, Tensor]:
    units = artifact_of(shape_of(BF16)).manifest.units
    return initialise([p for unit in units for _, p in unit.parameters], 0)


def moved(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> float:
    """The share of numbers that changed."""
    changed = sum(int((after[name] != before[name]).sum()) for name in before)
    return changed / sum(tensor.numel() for tensor in before.values())


def test_masters_move_where_plain_bf16_would_not(one_batch: Path) -> None:
    """A15. An update of 1e-5 is less than half a step of most bf16 weights, and so is every one."""
    lr = 1e-5
    masters = trained(BF16, one_batch, STEPS, lr=lr).parameters
    assert all(tensor.dtype == torch.float32 for tensor in masters.values())
    assert moved(initial(), masters) > 0.75
    rounded = {name: tensor.bfloat16() for name, tensor in initial().items()}
    assert moved(rounded, plain_bf16(one_batch, STEPS, lr)) < 0.25


def test_a_pipeline_equals_one_rank_bit_for_bit(tmp_path: Path) -> None:
    """The graphs are the same, and so is the order in which microbatches are added up."""
    data = write_data(tmp_path / "data.safetensors", 8, 3)
    config = RunConfig(steps=3, data=(data,), lr=0.1, clip=0.0)
    one, two = (
        run_threads(artifact_of(shape_of(BF16, dp=1, pp=pp, optimizer="sgd")), config)
        for pp in (1, 2)
    )
    assert one.losses == two.losses
    for found, expected in ((two.gradients, one.gradients), (two.parameters, one.parameters)):
        assert list(found) == list(expected)
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def accumulated_by_transformers(data: Path, shape: Shape) -> dict[str, Tensor]:
    """Gradients of a batch: bf16 autograd for each microbatch, added up in fp32."""
    config = artifact_of(shape).manifest.config
    model = LlamaForCausalLM(OracleConfig(**config, attn_implementation="sdpa"))  # pyright: ignore
    model.load_state_dict(initial())
    frequencies = model.model.rotary_emb.inv_freq.clone()
    model = model.bfloat16()
    # They stay fp32, as from_pretrained leaves them.
    model.model.rotary_emb.register_buffer("inv_freq", frequencies)
    batch = load_file(data)
    ids, labels = batch["input_ids"], batch["labels"]
    valid = int((labels[:, 1:] != -100).sum())
    totals = {name: torch.zeros(p.shape) for name, p in model.named_parameters()}
    for row in range(0, shape.batch, MICROBATCH):
        part = slice(row, row + MICROBATCH)
        model.zero_grad()
        logits = model(input_ids=ids[part]).logits
        shifted = torch.nn.functional.pad(labels[part, 1:], (0, 1), value=-100)
        loss = torch.nn.functional.cross_entropy(
            logits.float().flatten(0, 1), shifted.flatten(), ignore_index=-100, reduction="sum"
        )
        loss.backward(torch.tensor(1 / valid))
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            assert parameter.grad.dtype == torch.bfloat16
            totals[name] += parameter.grad
    return totals


def test_gradients_are_those_of_bf16_autograd_added_up_in_fp32(one_batch: Path) -> None:
    shape = shape_of(BF16, dp=1)
    found = run_threads(artifact_of(shape), RunConfig(steps=1, data=(one_batch,), clip=0.0))
    expected = accumulated_by_transformers(one_batch, shape)
    assert list(found.gradients) == list(expected)
    for name, gradient in expected.items():
        assert torch.equal(found.gradients[name], gradient), name


def test_summing_in_bf16_rounds_what_is_summed(one_batch: Path) -> None:
    """Two replicas: each one's gradient is rounded, and their sum."""
    wide, narrow = (
        trained(precision, one_batch, 1).gradients
        for precision in (BF16, Precision("bf16", "bf16"))
    )
    assert any(not torch.equal(wide[name], narrow[name]) for name in wide)
    for name, gradient in narrow.items():
        assert gradient.dtype == torch.float32
        assert torch.equal(gradient, gradient.bfloat16().float())
        spread = wide[name].abs().max()
        torch.testing.assert_close(gradient, wide[name], rtol=0.01, atol=float(spread) / 100)


# fp16


def test_an_overflowing_scale_is_halved_until_it_fits(one_batch: Path) -> None:
    """Skipped steps change nothing: the run is that which began with the lower scale."""
    high = Precision("fp16", scale=2**22)
    result = trained(high, one_batch, 8, warmup=4)
    skipped = [record.skipped is not None for record in result.records]
    count = skipped.index(False)
    assert 0 < count < 5
    assert skipped == [True] * count + [False] * (8 - count)
    scales = [record.loss_scale for record in result.records]
    assert scales == [2.0 ** (22 - min(step, count)) for step in range(8)]
    for steps in result.results:  # of every rank
        assert [step.skipped for step in steps] == [r.skipped for r in result.records]
        assert [step.loss_scale for step in steps] == scales
    first = result.records[0]
    assert first.skipped is not None
    assert f"the gradients are not finite at loss scale {2**22}, first in " in first.skipped

    lower = Precision("fp16", scale=2 ** (22 - count))
    other = trained(lower, one_batch, 8 - count, warmup=4)
    assert other.losses == result.losses[count:]
    assert other.grad_norms == result.grad_norms[count:]
    assert [r.lr for r in other.records] == [r.lr for r in result.records[count:]]
    for name, expected in other.parameters.items():
        assert torch.equal(result.parameters[name], expected)


def test_the_scale_rescues_small_gradients_and_changes_no_others(one_batch: Path) -> None:
    """It is taken out again before the norm and clipping."""
    small, large = (
        trained(Precision("fp16", scale=scale), one_batch, 2) for scale in (2**8, 2**12)
    )
    assert small.grad_norms == pytest.approx(large.grad_norms, rel=1e-3)
    assert small.losses == pytest.approx(large.losses, rel=1e-4)
    plain = trained(Precision("fp16", scale=1), one_batch, 1).gradients
    vanished = [(plain[name] == 0) & (large.gradients[name] != 0) for name in plain]
    assert sum(int(each.sum()) for each in vanished) > 0


def test_the_scale_grows_after_many_updates_in_a_row() -> None:
    scale = LossScale(1024)
    for _ in range(GROW_AFTER - 1):
        scale.updated()
    scale.overflowed()
    assert scale.value == 512
    for _ in range(GROW_AFTER - 1):
        scale.updated()
    assert scale.value == 512
    scale.updated()
    assert scale.value == 1024
    for _ in range(20):
        scale.overflowed()
    assert scale.value == 1


def test_without_a_scale_nothing_changes_it() -> None:
    scale = LossScale(0)
    for _ in range(GROW_AFTER):
        scale.updated()
    assert scale.value == 1
    scale.overflowed()
    assert scale.value == 1


def test_unequal_labels_weigh_alike_in_fp16(tmp_path: Path) -> None:
    """The scale multiplies 1 / number of valid labels, and nothing else."""
    ids = torch.randint(0, 128, (8, SEQUENCE), generator=torch.Generator().manual_seed(1))
    labels = ids.clone()
    labels[1:, 3:] = -100
    path = tmp_path / "data.safetensors"
    save_file({"input_ids": ids, "labels": labels}, path)
    wide, narrow = (trained(precision, path, 1) for precision in (Precision("fp32"), FP16))
    assert narrow.records[0].valid_labels == wide.records[0].valid_labels == 15 + 7 * 2
    assert narrow.grad_norms == pytest.approx(wide.grad_norms, rel=1e-3)


@pytest.mark.gloo
@pytest.mark.parametrize(
    "precision", [Precision("bf16", "bf16"), Precision("fp16", "fp16", 1024)], ids=str
)
def test_a_run_over_gloo_equals_the_threads_bit_for_bit(
    precision: Precision, tmp_path: Path
) -> None:
    """Messages and sums in two bytes; graph times are measured before, in the same dtypes."""
    shape = shape_of(precision)
    data = write_data(tmp_path / "data.safetensors", shape.batch, 2)
    expected = run_threads(artifact_of(shape), RunConfig(steps=2, data=(data,), clip=0.5))
    write_artifact(artifact_of(shape), tmp_path / "build")
    names = ("metrics", "times", "gradients", "export", "memory")
    metrics, times, gradients, export, memory = (tmp_path / name for name in names)
    done = launch(
        4, tmp_path / "build", "--data", data, "--steps", "2", "--clip", "0.5",
        "--metrics", metrics, "--times-out", times, "--dump-gradients", gradients,
        "--export", export, "--export-dtype", "fp32", "--memory-out", memory,
    )  # fmt: skip
    assert done.code == 0, done.err
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [line["loss"] for line in lines] == expected.losses
    assert [line["grad_norm"] for line in lines] == expected.grad_norms
    assert [line["loss_scale"] for line in lines] == [precision.scale or 1] * 2
    assert done.out.count("scale 1024") == (2 if precision.scale else 0)
    files = (gradients, export / "model.safetensors")
    for file, right in zip(files, (expected.gradients, expected.parameters), strict=True):
        found = load_file(file)
        assert all(torch.equal(found[name], right[name]) for name in right)
    assert set(json.loads(times.read_text())["reduce"]) == set(expected.ranks[0].states) | set(
        expected.ranks[2].states
    )
    profiles = memory_of(
        artifact_of(shape).programs,
        artifact_of(shape).manifest.signatures,
        artifact_of(shape).manifest.units,
        "adamw",
    )
    measured = [rank["peak_bytes"] for rank in json.loads(memory.read_text())["ranks"]]
    assert [profile.peak for profile in profiles] == pytest.approx(measured, rel=0.02)


# Tied and frozen parameters


@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.parametrize("precision", [Precision("bf16", "bf16"), FP16], ids=str)
def test_tied_masters_stay_equal_bit_for_bit(
    precision: Precision, pp: int, one_batch: Path
) -> None:
    """On one rank they are one tensor, on two each has a master of its own."""
    shape = replace(shape_of(precision, pp=pp), tied=True)
    config = RunConfig(steps=3, data=(one_batch,), lr=1e-3)
    found = run_threads(artifact_of(shape), config)
    wide = run_threads(artifact_of(replace(shape, precision=Precision("fp32"))), config)
    assert found.losses == pytest.approx(wide.losses, rel=0.02)
    assert found.grad_norms == pytest.approx(wide.grad_norms, rel=0.02)
    assert [record.skipped for record in found.records] == [None] * 3
    table = found.parameters["model.embed_tokens.weight"]
    for rank in found.ranks:
        held = rank.parameters()
        if "model.embed_tokens.weight" in held:
            assert torch.equal(held["model.embed_tokens.weight"], table)


def test_frozen_parameters_have_no_master(one_batch: Path) -> None:
    shape = replace(shape_of(BF16), freeze=("model.embed_tokens.*", "model.layers.0.*"))
    found = run_threads(artifact_of(shape), RunConfig(steps=2, data=(one_batch,), lr=1e-3))
    first, last = found.ranks[0], found.ranks[2]
    persistent = first.persistent()
    assert sum(tensor.numel() for tensor in persistent["optimizer"]) == 0
    assert {tensor.dtype for tensor in persistent["parameters"]} == {torch.bfloat16}
    before = initial()
    for name, value in found.parameters.items():
        frozen = name.startswith(("model.embed_tokens.", "model.layers.0."))
        assert torch.equal(value, before[name].bfloat16().float()) == frozen, name
    assert [rank.optimizer.updates for rank in (first, last)] == [2, 2]
