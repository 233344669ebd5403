"""Compiling plans: the manifest, the folder, and that nothing of this machine gets into it."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from schedc.diagnostics import DiagnosticError
from schedc.driver.build import Build, compile_plan
from schedc.ir.order import Task
from schedc.ir.precision import Precision
from schedc.ir.trace import Trace
from schedc.model.config import PRESETS
from schedc.program.artifact import load_artifact, write_artifact
from schedc.program.body import Reduce
from schedc.program.instructions import Run
from schedc.program.text import print_program
from schedc.program.verify import verify_programs
from schedc.sema.library import bundled, load_file
from tests.driver.plans import PLAN, build_of, files_in, plan_with, run_schedc

SCHEDULES = ("gpipe", "one_f_one_b", "zb_h1", "interleaved(V = 2)", "interleaved(V = 3)")


@pytest.fixture(scope="module")
def tiny() -> Build:
    return compile_plan(bundled(), "llama_tiny_zb", {})


def test_the_bundled_plan(tiny: Build) -> None:
    """The numbers of issue 1: pp 2 x dp 2, batch 32 in microbatches of 2, about 3 M parameters."""
    manifest = tiny.artifact.manifest
    assert (manifest.name, manifest.schedule) == ("llama_tiny_zb", "zb_h1")
    assert (manifest.mesh.dp, manifest.mesh.pp, manifest.mesh.size) == (2, 2, 4)
    assert (manifest.sequence, manifest.batch, manifest.microbatch) == (128, 32, 2)
    assert manifest.microbatches == 32 // (2 * 2)
    assert (manifest.precision, manifest.optimizer) == (Precision("fp32"), "adamw")
    # Vocabulary 256, hidden 256, MLP 704, kv width 128, 4 layers.
    layer = 2 * 256 * 256 + 2 * 128 * 256 + 3 * 704 * 256 + 2 * 256
    count = sum(p.bytes // 4 for unit in manifest.units for _, p in unit.parameters)
    assert count == 2 * 256 * 256 + 256 + 4 * layer == 3_082_496
    assert manifest.config == PRESETS["llama-tiny"].to_hf()
    assert all(claim.holds is not False for claim in tiny.claims)


@pytest.mark.parametrize("dp", [1, 2])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_bundled_schedule_compiles(schedule: str, dp: int, tmp_path: Path) -> None:
    V = int(schedule[-2]) if "V" in schedule else 1
    text = plan_with(schedule=schedule, mesh=f"dp = {dp}, pp = 2", model='"deep"')
    folder = tmp_path / "deep"
    folder.mkdir()
    config = replace(PRESETS["llama-test"], num_hidden_layers=7)
    (folder / "config.json").write_text(json.dumps(config.to_hf()))
    (tmp_path / "p.sched").write_text(text)
    build = compile_plan(load_file(tmp_path / "p.sched"), "p", {})
    manifest = build.artifact.manifest

    verify_programs(build.programs, build.model, replicas=dp)
    assert len(build.programs) == 2
    assert len(manifest.stages) == 2 * V
    assert manifest.rank_of == tuple(s % 2 for s in range(2 * V))
    every = ["embedding", *(f"layers.{i}" for i in range(7)), "head"]
    assert [unit for stage in manifest.stages for unit in stage] == every
    for program in build.programs:
        assert program.stages == tuple(
            (s, manifest.stages[s]) for s in range(2 * V) if s % 2 == program.rank
        )
    assert any("reduce" in print_program(p) for p in build.programs) == (dp > 1)


def test_the_folder_is_what_was_compiled(tiny: Build, tmp_path: Path) -> None:
    write_artifact(tiny.artifact, tmp_path / "out")
    loaded = load_artifact(tmp_path / "out")
    assert replace(loaded.manifest, hashes={}) == replace(tiny.artifact.manifest, hashes={})
    assert list(map(print_program, loaded.programs)) == list(map(print_program, tiny.programs))
    evaluation = list(map(print_program, tiny.artifact.evaluation))
    assert list(map(print_program, loaded.evaluation)) == evaluation
    assert loaded.graphs == tiny.model.sources
    assert sorted(files_in(tmp_path / "out")) == sorted(
        [
            "manifest.json",
            "rank0.prog",
            "rank1.prog",
            "rank0.eval.prog",
            "rank1.eval.prog",
            "timeline.json",
            *(f"graphs/{name}.{end}" for name in tiny.model.graphs for end in ("json", "py")),
        ]
    )


def test_the_timeline_is_the_prediction(tiny: Build) -> None:
    """Each operation once, and every duration the sum of its graphs' FLOPs at 50 GFLOP/s."""
    trace = Trace.from_json(tiny.artifact.timeline_json or "")
    assert (trace.origin, trace.unit, trace.memory_unit) == ("predicted", "s", "bytes")
    found = [(task.rank, task.op, task.stage, task.microbatch) for task in trace.tasks]
    order = tiny.timeline.order
    assert sorted(found) == sorted(
        (rank, t.op.name, t.stage, t.microbatch) for rank in range(2) for t in order.tasks(rank)
    )
    for task in trace.tasks:
        graphs = [f"{tiny.model.unit(n).graphs}.{task.op}" for n in tiny.stages[task.stage]]
        seconds = sum(tiny.model.graphs[graph].flops for graph in graphs) / 50e9
        assert task.end - task.start == pytest.approx(seconds, abs=1e-8)
    assert trace.figures["step_makespan"] >= trace.figures["makespan"] > 0
    assert len(trace.figures["peak_bytes"]) == 2


def test_places_point_to_source_lines(tiny: Build) -> None:
    """Every place in a program is a line that the manifest quotes, where the operation stands."""
    manifest = tiny.artifact.manifest
    source = bundled().schedule("zb_h1").span.source
    lines = source.text.splitlines()
    assert list(manifest.sources) == ["zb_h1.sched"]
    for number, line in manifest.sources["zb_h1.sched"].items():
        assert line == lines[number - 1]
    for program in tiny.programs:
        for instruction in program.stream:
            if instruction.place:
                file, _, number = instruction.place.rpartition(":")
                assert int(number) in manifest.sources[file]
            if isinstance(instruction, Run):
                line = lines[int(instruction.place.rpartition(":")[2]) - 1]
                letter = instruction.task.op.name
                assert f"{letter}(" in line or f"{letter}*(" in line


def test_places_of_a_file_name_it_without_its_folder(tmp_path: Path) -> None:
    here = tmp_path / "some where"
    here.mkdir()
    text = (
        "schedule mine { place stage s on rank s\norder on rank r {\n  for m in 0..M { F(r, m) }\n"
    )
    text += "  for m in 0..M { B(r, m) } } }\n"
    (here / "mine.sched").write_text(text)
    (here / "p.sched").write_text('import "mine.sched"\n' + plan_with(schedule="mine"))
    build = compile_plan(load_file(here / "p.sched"), "p", {})
    assert build.artifact.manifest.sources == {
        "mine.sched": {3: "  for m in 0..M { F(r, m) }", 4: "  for m in 0..M { B(r, m) } } }"}
    }
    places = {i.place for p in build.programs for i in p.stream if i.place}
    assert places == {"mine.sched:3", "mine.sched:4"}


# ---- hashes -------------------------------------------------------------------------------------


def hashes(text: str = PLAN, settings: dict[str, str] | None = None) -> dict[str, str]:
    found = build_of(text, settings).artifact.manifest.hashes
    assert set(found) == {"source", "model", "costs", "graphs"}
    return found


def changed(text: str = PLAN, settings: dict[str, str] | None = None) -> set[str]:
    """The hashes that differ from those of PLAN."""
    base, found = hashes(), hashes(text, settings)
    return {name for name in base if base[name] != found[name]}


def test_hashes_change_with_what_they_are_of() -> None:
    assert changed(PLAN) == set()
    assert changed(PLAN + "# a comment\n") == {"source"}
    assert changed(plan_with(schedule="gpipe")) == {"source"}
    assert changed(settings={"optimizer": "sgd"}) == {"source"}
    # Twice the tokens: other graphs, and so other costs.
    assert changed(plan_with(sequence="32")) == {"source", "graphs", "costs"}
    # The same stages and units, cut elsewhere: other costs of stages, the same graphs.
    assert changed(plan_with(layers='"E t | t*3 H"')) == {"source", "costs"}
    assert changed(plan_with(layers='"E t*2 | t*2 H"')) == {"source"}


def test_the_hash_of_the_model_is_of_its_configuration(tmp_path: Path) -> None:
    config = PRESETS["llama-test"].to_hf()
    found: list[dict[str, str]] = []
    for changes in ({}, {"initializer_range": 0.5}, {"bos_token_id": 1}):
        (tmp_path / "config.json").write_text(json.dumps(config | changes))
        (tmp_path / "p.sched").write_text(plan_with(model='"config.json"'))
        manifest = compile_plan(load_file(tmp_path / "p.sched"), "p", {}).artifact.manifest
        assert manifest.config == config | changes
        found.append(manifest.hashes)
    assert len({h["model"] for h in found}) == 3
    assert len({h["source"] for h in found}) == len({h["costs"] for h in found}) == 1
    assert found[0]["model"] == hashes()["model"], "a preset and its file are the same model"


# ---- the same bytes, from anywhere ---------------------------------------------------------------


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One plan compiled from three places, by three names, under three hash seeds."""
    root = tmp_path_factory.mktemp("root")
    plans, elsewhere = root / "my plans ü", root / "else where"
    plans.mkdir()
    elsewhere.mkdir()
    mine = "schedule zz { place stage s on rank s order on rank r {\n for m in 0..M { F(r, m) }\n"
    (plans / "mine é.sched").write_text(mine + "for m in 0..M { B(r, m) } } }", encoding="utf-8")
    plan = 'import "mine é.sched"\n' + plan_with(schedule="zz")
    (plans / "plan né.sched").write_text(plan, encoding="utf-8")
    settings = ["--set", "microbatch=1", "--set", "optimizer=sgd", "--set", "layers=even"]
    made: list[Path] = []
    for seed, (cwd, file) in enumerate(
        [
            (plans, Path("plan né.sched")),
            (elsewhere, Path("..", plans.name, "plan né.sched")),
            (root, plans / "plan né.sched"),
        ]
    ):
        out = root / f"out {seed} ö"
        run_schedc("compile", file, "-o", out, *settings, cwd=cwd, PYTHONHASHSEED=str(seed))
        made.append(out)
    return made


def test_same_input_same_bytes(folders: list[Path]) -> None:
    first, *others = map(files_in, folders)
    assert len(first) > 20
    for other in others:
        assert other == first


def test_the_folder_says_nothing_of_the_machine(folders: list[Path]) -> None:
    """No path but the files' own names, no time."""
    root = folders[0].parent
    secrets = (str(root), "else where", "my plans", root.name, str(Path(sys.prefix)))
    time = re.compile(r"20\d\d-\d\d-\d\d|\d\d:\d\d:\d\d|\b1[789]\d{8}\b")
    for folder in folders:
        for name, data in files_in(folder).items():
            text = data.decode()
            assert [secret for secret in secrets if secret in text] == [], name
            assert not time.search(text), name
    assert "mine é.sched:2" in (folders[0] / "rank0.prog").read_text(encoding="utf-8")
    assert load_artifact(folders[0]).manifest.sources == {
        "mine é.sched": {2: " for m in 0..M { F(r, m) }", 3: "for m in 0..M { B(r, m) } } }"}
    }


# ---- where the model is looked for ---------------------------------------------------------------


@pytest.mark.parametrize("written", ["../models/small", "../models/small/config.json", "absolute"])
def test_a_model_is_found_relative_to_the_plan(
    written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "models" / "small"
    folder.mkdir(parents=True)
    config = replace(PRESETS["llama-test"], num_hidden_layers=2).to_hf()
    (folder / "config.json").write_text(json.dumps(config))
    (tmp_path / "plans").mkdir()
    path = tmp_path / "plans" / "p.sched"
    path.write_text(plan_with(model=f'"{folder if written == "absolute" else written}"'))
    monkeypatch.chdir(Path(__file__).parent)
    manifest = compile_plan(load_file(path), "p", {}).artifact.manifest
    assert manifest.config == config
    assert manifest.stages == (("embedding", "layers.0"), ("layers.1", "head"))


def test_a_model_set_on_the_command_line_is_relative_to_where_one_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(PRESETS["llama-test"], num_hidden_layers=2).to_hf()
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    assert build_of(PLAN, {"model": "."}).artifact.manifest.config == config


def test_programs_run_the_order_of_the_plan() -> None:
    build = build_of(plan_with(schedule="one_f_one_b"), {"pp": "3", "batch": "8"})
    assert [len(program.stream.units) for program in build.programs] == [2, 2, 2]
    for rank, program in enumerate(build.programs):
        tasks: list[Task] = [i.task for i in program.stream if isinstance(i, Run)]
        assert tasks == list(build.plan.order.tasks(rank))


def test_what_a_precision_changes(tmp_path: Path) -> None:
    """bf16: the model's dtype, half-sized messages, rounded sums; masters cost what they save."""
    wide = build_of(plan_with(), {})
    narrow = build_of(plan_with(precision="bf16 { reduce bf16 }"), {})
    assert narrow.artifact.manifest.precision == Precision("bf16", "bf16")
    for program, other in zip(narrow.programs, wide.programs, strict=True):
        for name in ("x", "y", "dy", "dx"):
            for found, expected in zip(
                (b for b in program.buffers if b.name == name),
                (b for b in other.buffers if b.name == name),
                strict=True,
            ):
                assert (found.dtype, expected.dtype) == ("bf16", "fp32")
                assert 2 * found.bytes == expected.bytes
        reductions = [s for body in program.bodies for s in body.steps if isinstance(s, Reduce)]
        assert reductions
        assert {step.dtype for step in reductions} == {"bf16"}
        assert "over dp in bf16" in print_program(program)
    kept, before = (
        [cast("dict[str, int]", each) for each in build.trace.figures["peak_bytes_of"]]
        for build in (narrow, wide)
    )
    for found, expected in zip(kept, before, strict=True):
        assert 2 * found["parameters"] == expected["parameters"]
        assert found["gradients"] == expected["gradients"]  # fp32, whatever the model is
        assert 2 * found["optimizer"] == 3 * expected["optimizer"]  # moments, and masters
        assert 2 * found["rotary"] == expected["rotary"]
        assert 2 * found["received"] == expected["received"]
    write_artifact(narrow.artifact, tmp_path / "out")
    loaded = load_artifact(tmp_path / "out")
    assert loaded.manifest.precision == Precision("bf16", "bf16")
    assert [print_program(p) for p in loaded.programs] == [
        print_program(p) for p in narrow.programs
    ]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ('"model": "fp8"', "'fp8' is none of fp32 bf16 fp16"),
        ('"reduce": "int64"', "'int64' is none of fp32 bf16 fp16"),
        ('"scale": true', "`scale` must be a whole number"),
    ],
)
def test_a_damaged_precision_is_refused(tmp_path: Path, fields: str, message: str) -> None:
    write_artifact(build_of(plan_with(), {}).artifact, tmp_path / "out")
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    manifest["precision"] |= json.loads(f"{{{fields}}}")
    (tmp_path / "out" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DiagnosticError) as caught:
        load_artifact(tmp_path / "out")
    assert message in str(caught.value)
