"""Plans of tied models, and plans that freeze: what gets compiled, predicted and refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from schedc.diagnostics import DiagnosticError, render
from schedc.driver.build import Build, compile_plan
from schedc.ir.trace import Trace
from schedc.model.config import PRESETS
from schedc.program.artifact import load_artifact, write_artifact
from schedc.program.text import print_program
from schedc.program.verify import verify_programs
from schedc.sema.library import load_file
from tests.driver.plans import plan_with

FIRST = '"model.embed_tokens.*", "model.layers.0.*", "model.layers.1.*"'


def build(folder: Path, tied: bool = False, settings: dict[str, str] | None = None, **keys: str):
    (folder / "m").mkdir(exist_ok=True)
    config = replace(PRESETS["llama-test"], num_hidden_layers=4, tie_word_embeddings=tied)
    (folder / "m" / "config.json").write_text(json.dumps(config.to_hf()))
    (folder / "p.sched").write_text(plan_with(model='"m"', layers='"E t t | t t H"', **keys))
    return compile_plan(load_file(folder / "p.sched"), "p", settings or {})


def refused(folder: Path, freeze: str, tied: bool = False) -> str:
    with pytest.raises(DiagnosticError) as caught:
        build(folder, tied, freeze=freeze)
    assert all(diagnostic.span is not None for diagnostic in caught.value.diagnostics)
    return render(caught.value.diagnostics)


def lines(build: Build, rank: int) -> list[str]:
    return print_program(build.programs[rank]).splitlines()


def test_a_tied_model_compiles_to_programs_that_tie(tmp_path: Path) -> None:
    tied = build(tmp_path, tied=True)
    for rank, unit in ((0, "embedding"), (1, "head")):
        stream = [" ".join(line.split()[1:]) for line in lines(tied, rank)]
        at = stream.index(f"tie {unit} <-> rank {1 - rank}")
        assert stream[at - 1].startswith("wait reduce")
        assert stream[at + 1 : at + 3] == ["wait tie", "norm"]
    names = [parameter.name for parameter in tied.model.parameters]
    assert "lm_head.weight" not in names
    write_artifact(tied.artifact, tmp_path / "out")
    again = load_artifact(tmp_path / "out")
    assert again.manifest.units == tied.artifact.manifest.units
    verify_programs(again.programs, again.model, 2)


def test_a_hand_that_drops_the_tie_is_refused(tmp_path: Path) -> None:
    tied = build(tmp_path, tied=True)
    write_artifact(tied.artifact, tmp_path / "out")
    path = tmp_path / "out" / "rank1.prog"
    kept = [line for line in path.read_text().splitlines() if " tie" not in line]
    path.write_text("\n".join(kept) + "\n")
    loaded = load_artifact(tmp_path / "out")
    with pytest.raises(DiagnosticError) as caught:
        verify_programs(loaded.programs, loaded.model, 2)
    assert {diagnostic.code for diagnostic in caught.value.diagnostics} == {"E504"}
    assert "rank 1 has `tie` 0 times, and must once" in str(caught.value)


def test_frozen_operations_cost_and_show_nothing(tmp_path: Path) -> None:
    """Rank 0 has only forwards, in the programs, in the timeline and in the drawing."""
    whole, frozen = build(tmp_path), build(tmp_path, freeze=FIRST)
    assert not any(line.startswith("body") and "F" not in line for line in lines(frozen, 0))
    trace = Trace.from_json(frozen.artifact.timeline_json or "")
    assert {task.op for task in trace.tasks if task.rank == 0} == {"F"}
    assert {task.op for task in trace.tasks if task.rank == 1} == {"F", "I", "W"}
    assert not [message for message in trace.messages if message.kind == "B"]
    before = Trace.from_json(whole.artifact.timeline_json or "")
    assert trace.figures["makespan"] <= before.figures["makespan"]
    assert trace.figures["busy"][0] < before.figures["busy"][0] / 2
    for less, more in zip(trace.figures["peak_bytes"], before.figures["peak_bytes"], strict=True):
        assert less < more
    # The claims of the schedule are of the schedule: they hold as before.
    assert [claim.text for claim in frozen.claims] == [claim.text for claim in whole.claims]
    assert all(claim.holds is not False for claim in frozen.claims)


def test_balancing_knows_what_is_frozen(tmp_path: Path) -> None:
    """Layers with nothing to do backwards are cheap, so the first stage takes more of them."""
    config = replace(PRESETS["llama-test"], num_hidden_layers=8)
    (tmp_path / "config.json").write_text(json.dumps(config.to_hf()))
    sizes = []
    for freeze in ({}, {"freeze": '"model.embed_tokens.*", "model.layers.[0-3].*"'}):
        (tmp_path / "p.sched").write_text(plan_with(model='"config.json"', **freeze))
        sizes.append(len(compile_plan(load_file(tmp_path / "p.sched"), "p", {}).stages[0]))
    assert sizes[1] > sizes[0]


def test_settings_freeze_too(tmp_path: Path) -> None:
    def frozen(build: Build) -> set[str]:
        return {p.name for p in build.model.parameters if p.frozen}

    set_ = build(tmp_path, settings={"freeze": FIRST})
    written = build(tmp_path, freeze=FIRST)
    assert frozen(set_) == frozen(written) != set()
    assert set_.programs[0].bodies == written.programs[0].bodies
    plain = build(tmp_path, settings={"freeze": "model.embed_tokens.weight"})
    assert frozen(plain) == {"model.embed_tokens.weight"}
    assert frozen(build(tmp_path, settings={"freeze": ""}, freeze=FIRST)) == set()


def test_patterns_that_name_nothing_are_refused_together(tmp_path: Path) -> None:
    said = refused(tmp_path, '"model.layers.7.*", "model.embed_tokns.*", "model.norm.*"')
    assert said.count("E815") == 2
    assert "the layers are model.layers.0 to model.layers.3" in said
    assert "did you mean `model.embed_tokens.*`?" in said


def test_a_tied_head_is_frozen_by_the_embeddings_name(tmp_path: Path) -> None:
    said = refused(tmp_path, '"lm_head.*"', tied=True)
    assert "the head is tied to the embedding: freeze `model.embed_tokens.weight`" in said
    frozen = build(tmp_path, tied=True, freeze='"model.embed_tokens.*"')
    assert not any(" tie" in line for rank in (0, 1) for line in lines(frozen, rank))


def test_nothing_to_train_is_refused(tmp_path: Path) -> None:
    assert "E816" in refused(tmp_path, '"*"')
    assert "E816" in refused(tmp_path, '"model.*", "lm_head.weight"')
    assert "E816" in refused(tmp_path, '"model.*"', tied=True)
