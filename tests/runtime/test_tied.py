"""Tied embeddings (A05): one parameter on one rank or two, its gradient the sum of both uses.

The oracle is transformers' tied Llama in one process: losses, gradients, the norm (A13: the tied
parameter counts once) and parameters after three SGD steps with clipping active, and five steps of
AdamW whose two copies never differ in a bit.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from schedc.program.instructions import CODE, Code
from schedc.runtime.config import RunConfig
from schedc.runtime.local import RunResult, run_threads
from schedc.runtime.transports.interface import Hang
from schedc.runtime.verdict import Describer, Report, Status
from schedc.runtime.weights import initialise, write_checkpoint
from tests.runtime.builds import Shape, artifact_of, run_oracle, write_data
from tests.runtime.parity import CLIP, LR, SEED, STEPS, assert_equal_to_oracle, trained

TABLE = "model.embed_tokens.weight"

ON_TWO_RANKS = [
    Shape("one_f_one_b", 2, 3, tied=True),
    Shape("gpipe", 2, 3, tied=True),
    Shape("zb_h1", 2, 3, tied=True),
    Shape("interleaved", 2, 3, tied=True),
    Shape("zb_h1", 4, 3, tied=True),
    Shape("zb_h1", 2, 3, dp=2, tied=True),
    Shape("mixed", 2, 2, dp=2, tied=True),
]
ON_ONE_RANK = [
    Shape("gpipe", 1, 3, tied=True),
    Shape("interleaved", 1, 3, dp=2, tied=True),
    Shape("mixed", 1, 3, dp=2, tied=True),
    Shape("v_shaped", 2, 3, tied=True),
    Shape("v_shaped", 2, 3, dp=2, tied=True),
]


def name_of(shape: Shape) -> str:
    return f"{shape.schedule} P={shape.pp} dp={shape.dp} {shape.optimizer}"


def ties(shape: Shape) -> list[int]:
    """How often each pipeline rank's program ties."""
    tables = [program.stream.table for program in artifact_of(shape).programs]
    return [int((table[:, CODE] == Code.TIE).sum()) for table in tables]


def copies(result: RunResult) -> list[torch.Tensor]:
    """The tied parameter in both places on every rank that holds one."""
    return [
        state.parameters[state.names[TABLE]]
        for rank in result.ranks
        for state in rank.states.values()
        if TABLE in state.names
    ]


@pytest.mark.parametrize("shape", [*ON_TWO_RANKS, *ON_ONE_RANK], ids=name_of)
def test_a_tied_model_equals_one_process(shape: Shape, tmp_path: Path) -> None:
    result, oracle = trained(shape, tmp_path)
    assert min(oracle.norms) > CLIP
    assert TABLE in oracle.gradients
    assert "lm_head.weight" not in result.parameters
    assert_equal_to_oracle(result, oracle)
    for step in range(STEPS):
        assert len({results[step].norm for results in result.results}) == 1
    first, *others = copies(result)
    assert len(others) == 2 * shape.dp - 1
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("shape", ON_TWO_RANKS, ids=name_of)
def test_two_ranks_tie_and_keep_their_own_copies(shape: Shape, tmp_path: Path) -> None:
    found = ties(shape)
    assert found[0] == found[-1] == 1
    assert sum(found) == 2


@pytest.mark.parametrize("shape", ON_ONE_RANK, ids=name_of)
def test_one_rank_has_one_storage_and_says_nothing(shape: Shape, tmp_path: Path) -> None:
    assert ties(shape) == [0] * shape.pp
    result, _ = trained(shape, tmp_path)
    for rank in result.ranks:
        places = [
            (state.parameters[inner], state.gradients[inner])
            for state in rank.states.values()
            if (inner := state.names.get(TABLE)) is not None
        ]
        for values in zip(*places, strict=True):
            assert len({tensor.data_ptr() for tensor in values}) == 1
    table = next(p for p in artifact_of(shape).model.parameters if p.name == TABLE)
    own = [s for s in result.ranks[0].states.values() if TABLE in s.names]
    sizes = [state.flat_parameters.numel() for state in own]
    assert sizes[0] == table.bytes // 4
    assert sizes[1] == 1024  # the final norm alone, in a row


@pytest.mark.parametrize(
    "shape",
    [
        Shape("one_f_one_b", 2, 3, tied=True, optimizer="adamw"),
        Shape("interleaved", 2, 2, dp=2, tied=True, optimizer="adamw"),
        Shape("v_shaped", 2, 3, tied=True, optimizer="adamw"),
    ],
    ids=name_of,
)
def test_copies_never_differ_under_adamw(shape: Shape, tmp_path: Path) -> None:
    """After each of five steps; the last parameters are the oracle's, as AdamW's noise allows."""
    artifact = artifact_of(shape)
    data = write_data(tmp_path / "data.safetensors", shape.batch, 5)
    for steps in range(1, 6):
        config = RunConfig(steps=steps, data=(data,), lr=1e-3, seed=SEED, weight_decay=0.1)
        result = run_threads(artifact, config)
        first, *others = copies(result)
        assert max(float((first - other).abs().max()) for other in others) == 0
    oracle = run_oracle(
        artifact.manifest.config,
        initialise(artifact.model.parameters, SEED),
        load_file(data),
        shape.batch,
        5,
        1e-3,
        1.0,
        optimizer=lambda p: torch.optim.AdamW(p, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1),
    )
    assert result.losses == pytest.approx(oracle.losses, rel=1e-5)
    assert result.grad_norms == pytest.approx(oracle.norms, rel=1e-5)
    table, expected = result.parameters[TABLE], oracle.parameters[TABLE]
    torch.testing.assert_close(table, expected, rtol=0, atol=1e-5)


def test_who_waits_for_a_tie_is_told_with_its_peer(tmp_path: Path) -> None:
    """A rank whose program lacks the tie leaves the other waiting: named, by threads and report."""
    artifact = artifact_of(Shape("one_f_one_b", 3, 2, dp=2, tied=True))
    first, middle, last = artifact.programs
    stream = last.stream
    keep = ~np.isin(stream.table[:, CODE], (Code.TIE, Code.WAIT_TIE))
    lacking = replace(last, stream=replace(stream, table=stream.table[keep]))
    data = write_data(tmp_path / "data.safetensors", 8, 1)
    config = RunConfig(steps=1, data=(data,))
    with pytest.raises(Hang) as caught:
        run_threads(replace(artifact, programs=(first, middle, lacking)), config, verify=False)
    assert "rank 0 waits for the tie of ranks (0, 4)" in str(caught.value)
    assert "rank 1 waits for the tie of ranks (1, 5)" in str(caught.value)

    row = int((first.stream.table[:, CODE] == Code.WAIT_TIE).nonzero()[0][0])
    status = Status("here", 0, "", 1, "trains", 3, row, 9.0, "")
    describer = Describer(artifact.programs, artifact.manifest.mesh)
    told = describer([Report(1, status, True, "there")], 0)
    assert "wait tie   with rank 5" in told


@pytest.mark.parametrize("with_head", [False, True])
@pytest.mark.parametrize("schedule", ["zb_h1", "v_shaped"])
def test_checkpoints_with_and_without_a_head(
    schedule: str, with_head: bool, tmp_path: Path
) -> None:
    """Either is read, on two ranks and on one; what is written is as transformers writes it."""
    shape = Shape(schedule, 2, 2, tied=True)
    artifact = artifact_of(shape)
    values = initialise(artifact.model.parameters, 11)
    write_checkpoint(tmp_path / "in", values, artifact.manifest.config)
    if with_head:
        head = {"lm_head.weight": values[TABLE].clone()}
        save_file(values | head, tmp_path / "in" / "model.safetensors", metadata={"format": "pt"})
    data = write_data(tmp_path / "data.safetensors", shape.batch, 1)
    untrained = run_threads(
        artifact, RunConfig(steps=1, data=(data,), lr=0.0, init=tmp_path / "in", seed=1)
    )
    assert list(untrained.parameters) == list(values)
    assert all(torch.equal(untrained.parameters[name], values[name]) for name in values)
    write_checkpoint(tmp_path / "out", untrained.parameters, artifact.manifest.config)
    assert "lm_head.weight" not in load_file(tmp_path / "out" / "model.safetensors")
    theirs = LlamaForCausalLM.from_pretrained(tmp_path / "out")
    assert theirs.lm_head.weight is theirs.model.embed_tokens.weight
    assert torch.equal(theirs.lm_head.weight, values[TABLE])


@pytest.mark.parametrize("schedule", ["one_f_one_b", "v_shaped"])
def test_a_frozen_tied_table_is_left_alone(schedule: str, tmp_path: Path) -> None:
    """No gradient of either use, nothing to tie, and both copies as they were."""
    shape = Shape(schedule, 2, 3, tied=True, freeze=("model.embed_tokens.*",))
    assert ties(shape) == [0, 0]
    result, oracle = trained(shape, tmp_path)
    assert_equal_to_oracle(result, oracle)
    assert TABLE not in result.gradients
    start = initialise(artifact_of(shape).model.parameters, SEED)[TABLE]
    assert all(torch.equal(copy, start) for copy in copies(result))
    assert LR > 0
