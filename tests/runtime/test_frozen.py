"""Frozen parameters (A30): no gradient, no state, no W, and none of the messages they would cause.

The oracle is one process of transformers with ``requires_grad`` False for the same parameters.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from schedc.ir.order import Op
from schedc.program.instructions import CODE, OP, STAGE, Code
from schedc.program.work import work_of
from schedc.runtime.config import RunConfig
from schedc.runtime.local import run_threads
from schedc.runtime.weights import initialise
from schedc.simulate.program_memory import memory_of
from tests.runtime.builds import Shape, artifact_of, write_data
from tests.runtime.parity import SEED, assert_equal_to_oracle, trained

FIRST = ("model.embed_tokens.*", "model.layers.0.*", "model.layers.1.*")
ALL_BUT_HEAD = ("model.*",)
EMBEDDING = ("model.embed_tokens.*",)
MIDDLE = ("model.layers.1.*", "model.layers.2.*")
MATRICES = ("*_proj.weight", "model.embed_tokens.*", "lm_head.*")
LAST = ("model.layers.2.*", "model.layers.3.*", "model.norm.*", "lm_head.*")
KINDS = {
    "first": FIRST,
    "all but the head": ALL_BUT_HEAD,
    "embedding": EMBEDDING,
    "middle": MIDDLE,
    "matrices": MATRICES,
    "last": LAST,
}
SCHEDULES = ("gpipe", "one_f_one_b", "interleaved", "zb_h1")


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_rest_trains_as_in_one_process(kind: str, schedule: str, tmp_path: Path) -> None:
    check(Shape(schedule, 2, 3, freeze=KINDS[kind]), tmp_path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("schedule", "pp"), [("zb_h1", 2), ("mixed", 2), ("interleaved", 1)])
def test_replicas_reduce_what_is_trained(kind: str, schedule: str, pp: int, tmp_path: Path) -> None:
    check(Shape(schedule, pp, 2, dp=2, freeze=KINDS[kind]), tmp_path)


def check(shape: Shape, folder: Path) -> None:
    result, oracle = trained(shape, folder)
    assert_equal_to_oracle(result, oracle)
    model = artifact_of(shape).model
    frozen = {p.name for p in model.parameters if p.frozen}
    before = initialise(model.parameters, SEED)
    assert frozen
    assert not frozen & set(result.gradients)
    for name, value in before.items():
        assert torch.equal(result.parameters[name], value) == (name in frozen), name


def counts(shape: Shape) -> dict[str, list[int]]:
    """By what it is, how many instructions of it each rank has."""
    found: dict[str, list[int]] = {}
    for program in artifact_of(shape).programs:
        table = program.stream.table
        code = table[:, CODE]
        for op in (Op.F, Op.B, Op.I, Op.W):
            runs = (code == Code.RUN) & (table[:, OP] == op)
            found.setdefault(op.name, []).append(int(runs.sum()))
        backward = (code == Code.SEND) & (table[:, OP] != Op.F)
        found.setdefault("gradients sent", []).append(int(backward.sum()))
        forward = (code == Code.SEND) & (table[:, OP] == Op.F)
        found.setdefault("activations sent", []).append(int(forward.sum()))
        found.setdefault("received", []).append(int((code == Code.RECV).sum()))
    return found


def test_what_nobody_needs_is_not_there() -> None:
    """Rank 0 holds the embedding and layers 0 and 1, rank 1 the rest; four microbatches."""
    whole = counts(Shape("zb_h1", 2, 4))
    assert whole["I"] == whole["W"] == [4, 4]
    assert whole["gradients sent"] == [0, 4]
    first = counts(Shape("zb_h1", 2, 4, freeze=FIRST))
    assert first == whole | {
        "I": [0, 4], "W": [0, 4], "gradients sent": [0, 0], "received": [0, 4]
    }  # fmt: skip
    # The embedding alone: its stage has layers to train, and so everything else.
    assert counts(Shape("zb_h1", 2, 4, freeze=EMBEDDING)) == whole
    # Frozen behind what is trained: gradients pass through, W goes.
    assert counts(Shape("zb_h1", 2, 4, freeze=LAST)) == whole | {"W": [4, 0]}
    assert counts(Shape("zb_h1", 2, 4, freeze=MATRICES)) == whole | {"W": [0, 0]}
    # B is both, and stays where either has something to do.
    assert counts(Shape("one_f_one_b", 2, 4, freeze=LAST))["B"] == [4, 4]
    assert counts(Shape("one_f_one_b", 2, 4, freeze=ALL_BUT_HEAD))["B"] == [0, 4]


def test_stages_in_between_are_dropped_one_by_one() -> None:
    """Stages E t, t, t, t H on two ranks; stage 2 is the first with anything to train."""
    shape = Shape("interleaved", 2, 4, layers=4, freeze=FIRST)
    artifact = artifact_of(shape)
    works = [work_of(artifact.model, units) for units in artifact.manifest.stages]
    assert artifact.manifest.stages[2] == ("layers.2",)
    assert [(w.I, w.W, w.dx) for w in works] == [
        (False, False, False), (False, False, False), (True, True, False), (True, True, True)
    ]  # fmt: skip
    for program in artifact.programs:
        table = program.stream.table
        backward = (table[:, CODE] == Code.RUN) & (table[:, OP] == Op.B)
        assert set(table[backward, STAGE].tolist()) == {s for s, _ in program.stages if s >= 2}


def test_only_what_is_trained_has_state(tmp_path: Path) -> None:
    """AdamW's moments, gradients; and a rank with nothing to train has none at all."""
    shape = Shape("one_f_one_b", 2, 2, freeze=FIRST, optimizer="adamw")
    artifact = artifact_of(shape)
    data = write_data(tmp_path / "data.safetensors", shape.batch, 2)
    result = run_threads(artifact, RunConfig(steps=2, data=(data,), lr=1e-3, seed=SEED))
    idle, busy = (rank.persistent() for rank in result.ranks)
    assert idle["optimizer"] == []
    assert sum(t.numel() for t in idle["gradients"]) == 0
    trained_ = sum(state.flat_parameters.numel() for state in result.ranks[1].states.values())
    moments = [t for t in busy["optimizer"] if t.numel() > 1]
    assert sum(t.numel() for t in moments) == 2 * trained_
    profiles = memory_of(
        artifact.programs, artifact.manifest.signatures, artifact.manifest.units, "adamw"
    )
    assert profiles[0].at_peak["gradients"] == profiles[0].at_peak["optimizer"] == 0
    assert profiles[0].at_peak["saved"] == 0
    assert profiles[1].at_peak["optimizer"] == 8 * trained_


@pytest.mark.parametrize("kind", KINDS)
def test_less_is_kept_and_computed(kind: str) -> None:
    """Freezing never costs memory, and what is frozen first saves nothing at all."""
    frozen, whole = (artifact_of(Shape("gpipe", 2, 3, freeze=f)) for f in (KINDS[kind], ()))
    profiles = [
        memory_of(a.programs, a.manifest.signatures, a.manifest.units, "adamw")
        for a in (frozen, whole)
    ]
    for less, more in zip(*profiles, strict=True):
        assert less.peak <= more.peak
    assert sum(p.peak for p in profiles[0]) < sum(p.peak for p in profiles[1])
