"""``compile simulate viz list explain``: what they write and print, and what they refuse."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

from schedc.catalogue import CATALOGUE
from schedc.driver.build import compile_plan
from schedc.ir.trace import Trace
from schedc.program.artifact import load_artifact, write_artifact
from schedc.sema.library import bundled, load_text
from tests.cli.terminal import Terminal, schedc
from tests.driver.plans import BLOCKED, PLAN, files_in, plan_with

__all__ = ["schedc"]


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "p.sched"
    path.write_text(PLAN)
    return path


# ---- compile ------------------------------------------------------------------------------------


def test_compile(
    schedc: Terminal, plan: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = schedc("compile", plan)
    assert found.code == 0
    assert re.match(r"build/p: 2 programs, \d+ instructions, 10 graphs, mesh dp=2 pp=2", found.out)
    torchrun = "torchrun --nproc-per-node 4 -m schedc.runtime.exec"
    assert f"run it: {torchrun} build/p --data TEXT" in found.out
    first = files_in(tmp_path / "build" / "p")
    assert load_artifact(tmp_path / "build" / "p").manifest.name == "p"
    other = tmp_path / "an other"
    assert f"{torchrun} '{other}' --data" in schedc("compile", plan, "-o", other).out
    assert files_in(other) == first
    monkeypatch.chdir(Path(__file__).parents[2])  # where runtime/exec.py lies
    found = schedc("compile", plan, "-o", other)
    assert f"torchrun --nproc-per-node 4 runtime/exec.py '{other}'" in found.out


def test_compiling_again_replaces_what_is_ours_and_keeps_the_rest(
    schedc: Terminal, plan: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert schedc("compile", plan, "-o", out).code == 0
    (out / "metrics.jsonl").write_text("mine")
    (out / "rank7.prog").write_text("left over")
    assert schedc("compile", plan, "-o", out, "--set", "optimizer=sgd").code == 0
    assert (out / "metrics.jsonl").read_text() == "mine"
    assert not (out / "rank7.prog").exists()
    assert load_artifact(out).manifest.optimizer == "sgd"


def test_compile_does_not_replace_what_is_not_ours(
    schedc: Terminal, plan: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("mine")
    found = schedc("compile", plan, "-o", out)
    assert found.code == 1
    assert "error[E901]" in found.err
    assert files_in(out) == {"thesis.tex": b"mine"}
    found = schedc("compile", plan, "-o", out / "thesis.tex")
    assert found.code == 1
    assert files_in(out) == {"thesis.tex": b"mine"}
    found = schedc("compile", plan, "-o", out / "thesis.tex" / "deeper")
    assert found.code == 2
    assert "cannot write" in found.err


def test_compile_needs_a_plan(schedc: Terminal, tmp_path: Path) -> None:
    found = schedc("compile", "gpipe", "-o", tmp_path / "out")
    assert found.code == 1
    assert "error[E813]" in found.err
    assert "plan NAME" in found.err
    assert not (tmp_path / "out").exists()


def test_emit(schedc: Terminal, plan: Path, tmp_path: Path) -> None:
    found = schedc("compile", "gpipe", "--emit", "source")
    assert (found.code, found.out) == (0, bundled().schedule("gpipe").span.source.text)
    assert schedc("compile", plan, "--emit", "plan").out.startswith("plan p {\n")
    assert schedc("compile", "zb_h1", "--emit", "order", "--set", "P=2").code == 0
    assert schedc("compile", plan, "--emit", "order", "-o", tmp_path / "out").code == 2
    assert schedc("compile", plan, "--emit", "soup").code == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.sched"]


@pytest.mark.parametrize("command", ["compile", "viz", "simulate"])
def test_one_of_several_must_be_chosen(schedc: Terminal, command: str, tmp_path: Path) -> None:
    path = tmp_path / "two.sched"
    path.write_text(PLAN + PLAN.replace("plan p", "plan q"))
    found = schedc(command, path)
    assert found.code == 1
    assert "error[E221]" in found.err
    assert "`p`, `q`" in found.err
    assert f"{path}:p" in found.err
    chosen = ["-o", tmp_path / "out"] if command == "compile" else []
    found = schedc(command, f"{path}:q", *chosen)
    assert found.code == 0
    if command == "compile":
        assert load_artifact(tmp_path / "out").manifest.name == "q"
    else:
        assert "q: zb_h1" in found.out
    found = schedc(command, f"{path}:pp")
    assert found.code == 1
    assert "error[E215]" in found.err
    assert "it has `p`, `q`" in found.err


# ---- simulate -----------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """GPipe on two stages of two layers each, four microbatches, one replica."""
    text = plan_with(
        schedule="gpipe", mesh="pp = 2", batch="8 in microbatches of 2", layers='"E t*2 | t*2 H"'
    )
    out = tmp_path / "built"
    write_artifact(compile_plan(load_text("p.sched", text), "p", {}).artifact, out)
    return out


def times(folder: Path, **changes: object) -> Path:
    """Measured times: a layer's F, I and W take a second each, embedding and head nothing."""
    graphs = {
        f"{unit}.{op}": 1.0 if unit == "layer" else 0.0
        for unit in ("embedding", "layer", "head")
        for op in "FIW"
    }
    manifest = load_artifact(folder).manifest
    data: dict[str, object] = {
        "schema": "schedc times 1", "build": manifest.hashes["graphs"], "mesh": str(manifest.mesh),
        "graphs": graphs, "message": 0.5, "reduce": {}, "count": 0.0, "tie": 0.0,
        "norm": 0.25, "report": 0.125, "step": [3.0, 5.0], "note": "made by hand", **changes,
    }  # fmt: skip
    path = folder.parent / "times.json"
    path.write_text(json.dumps({k: v for k, v in data.items() if v is not None}))
    return path


def test_simulate_a_schedule(schedc: Terminal, tmp_path: Path) -> None:
    found = schedc("simulate", "gpipe", "--json", "--set", "M=4", "-o", tmp_path / "t.json")
    assert found.code == 0
    figures = json.loads(found.out)
    assert (figures["makespan"], figures["bubble"]) == (21, 9)
    trace = Trace.from_json((tmp_path / "t.json").read_text())
    assert (trace.title, len(trace.tasks)) == ("gpipe", 4 * 4 * 2)
    found = schedc("simulate", "gpipe")
    assert found.code == 0
    assert "bubble = makespan − busiest rank = 33 − 24 = 9" in found.out


def test_simulate_a_folder_predicts_what_compiling_did(schedc: Terminal, folder: Path) -> None:
    before = files_in(folder)
    found = schedc("simulate", folder)
    assert found.code == 0
    assert f"timeline written to {folder}/timeline.json" in found.out
    assert files_in(folder) == before


def test_simulate_a_folder_from_measured_times(schedc: Terminal, folder: Path) -> None:
    """By hand: F takes 2 and B 4 on each stage, a message 0.5.

    Rank 1 forwards from 2.5 to 10.5 and ends its first B at 14.5; from 15 on rank 0 has a gradient
    each time it wants one: 15 + 4 * 4 = 31. Norm then takes 0.25; rank 1's step, the longer, 5.
    """
    before = files_in(folder)
    found = schedc("simulate", folder, "--times", times(folder), "--json")
    assert found.code == 0, found.shown
    figures = json.loads(found.out)
    assert figures["makespan"] == 31
    assert figures["busy"] == [24, 24]
    assert figures["bubble"] == 7
    assert figures["step_makespan"] == 31 + 0.25 + 5
    after = files_in(folder)
    assert {name for name in after if after[name] != before[name]} == {"timeline.json"}
    trace = Trace.from_json(after["timeline.json"].decode())
    assert trace.notes == ("made by hand",)
    assert trace.figures == figures
    elsewhere = folder.parent / "elsewhere.json"
    assert schedc("simulate", folder, "-o", elsewhere).code == 0
    assert files_in(folder) == after
    assert elsewhere.read_bytes() == before["timeline.json"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"graphs": {"layer.F": 1.0}}, ["no time for", "embedding.F", "layer.I"]),
        ({"graphs": None}, ["no entry 'graphs'"]),
        ({"graphs": [1]}, ["damaged"]),
        ({"graphs": {"layer.F": "fast"}}, ["'fast' is no time in seconds"]),
        ({"message": -1.0}, ["-1.0 is no time in seconds"]),
        ({"message": float("nan")}, ["nan is no time in seconds"]),
        ({"norm": float("inf")}, ["inf is no time in seconds"]),
        ({"norm": None}, ["no entry 'norm'"]),
        ({"reduce": 3}, ["damaged"]),
        ({"step": [1.0]}, ["step of 1 pipeline ranks", "has 2"]),
        ({"step": 1.0}, ["damaged"]),
        ({"build": "0123"}, ["other graphs than those of this build"]),
        ({"mesh": "dp=1 pp=4 cp=1 tp=1"}, ["on mesh dp=1 pp=4", "this build's is dp=1 pp=2"]),
        ({"schema": "schedc times 9"}, ["no file of measured times", "schedc times 1"]),
    ],
    ids=str,
)
def test_times_that_cannot_be_used(
    schedc: Terminal, folder: Path, changes: dict[str, object], words: list[str]
) -> None:
    before = files_in(folder)
    path = times(folder, **changes)
    found = schedc("simulate", folder, "--times", path)
    assert found.code == 1, found.shown
    assert "error[E907]" in found.err
    assert str(path) in found.err
    for word in words:
        assert word in found.err
    assert files_in(folder) == before


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff\xfe", b"null", b"3"])
def test_times_that_are_none(schedc: Terminal, folder: Path, data: bytes) -> None:
    path = folder.parent / "times.json"
    path.write_bytes(data)
    found = schedc("simulate", folder, "--times", path)
    assert found.code == 1
    assert "error[E907]" in found.err


def test_options_that_do_not_go_together(schedc: Terminal, folder: Path) -> None:
    for arguments, word in (
        ([folder, "--set", "dp=2"], "compile again"),
        ([folder, "--cost", "F=2"], "--cost prices a bare schedule"),
        (["gpipe", "--times", times(folder)], "--times goes with a compiled folder"),
        ([folder, "--times", folder / "nothing.json"], "does not exist"),
        (["gpipe", "-o", folder / "no" / "such" / "folder.json"], "cannot write"),
    ):
        found = schedc("simulate", *arguments)
        assert found.code == 2
        assert word in found.err


@pytest.mark.parametrize("name", ["manifest.json", "rank1.prog", "graphs/layer.F.py"])
def test_a_damaged_folder(schedc: Terminal, folder: Path, name: str) -> None:
    (folder / name).unlink()
    found = schedc("simulate", folder)
    assert found.code == 1
    assert "error[E901]" in found.err
    assert name in found.err


# ---- viz ----------------------------------------------------------------------------------------


def test_viz_to_the_terminal(schedc: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "70")
    found = schedc("viz", "zb_h1")
    assert found.code == 0
    assert "bubble = makespan − busiest rank = 27 − 24 = 3" in found.out
    assert [f" r{rank} " in found.out for rank in range(5)] == [True] * 4 + [False]
    assert max(map(len, found.out.splitlines())) <= 70
    assert schedc("viz", "zb_h1", "--width", 120).out != found.out


@pytest.mark.parametrize("suffix", ["svg", "txt", "json", "png", "SVG"])
def test_viz_to_a_file(schedc: Terminal, suffix: str, tmp_path: Path) -> None:
    if suffix == "png":
        pytest.importorskip("cairosvg")
    path = tmp_path / f"a chart.{suffix}"
    found = schedc("viz", "gpipe", "-o", path)
    assert (found.code, found.out) == (0, f"written to {path}\n"), found.err
    data = path.read_bytes()
    match suffix.lower():
        case "svg":
            assert xml.fromstring(data).tag.endswith("svg")
        case "png":
            assert data.startswith(b"\x89PNG\r\n")
        case "json":
            assert isinstance(json.loads(data), dict)
        case _:
            assert b" r3 " in data
            assert b"\x1b" not in data
    assert schedc("viz", "gpipe", "-o", path).code == 0
    assert path.read_bytes() == data, "the same chart has the same bytes"


def test_viz_of_a_plan_a_folder_and_a_timeline_is_the_same(
    schedc: Terminal, plan: Path, tmp_path: Path
) -> None:
    assert schedc("compile", plan, "-o", tmp_path / "out").code == 0
    charts: list[str] = []
    for target in (plan, tmp_path / "out", tmp_path / "out" / "timeline.json"):
        found = schedc("viz", target, "--width", "90")
        assert found.code == 0
        charts.append(found.out)
    assert charts[0] == charts[1] == charts[2]


def test_the_critical_path_is_drawn_on_demand(schedc: Terminal, plan: Path, tmp_path: Path) -> None:
    for name, more in (("plain.svg", []), ("path.svg", ["--critical-path"])):
        assert schedc("viz", "gpipe", "-o", tmp_path / name, *more).code == 0
    assert (tmp_path / "plain.svg").read_bytes() != (tmp_path / "path.svg").read_bytes()
    for arguments in (
        ["gpipe"],
        ["gpipe", "-o", tmp_path / "a.txt"],
        [plan, "-o", tmp_path / "b.svg"],
    ):
        found = schedc("viz", *arguments, "--critical-path")
        assert found.code == 2
        assert "--critical-path" in found.err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["-o", "chart.pdf"], ".svg, .png, .json, .txt"),
        (["-o", "chart"], ".svg, .png, .json, .txt"),
        (["-o", "no/such/folder.svg"], "cannot write"),
        (["-o", "."], "is a directory"),
        (["--width", "0"], "x>=40"),
        (["--width", "-1"], "x>=40"),
        (["--width", "wide"], "not a valid integer"),
        (["--width", "60", "-o", "chart.svg"], "320 pixels"),
    ],
    ids=str,
)
def test_viz_refuses(
    schedc: Terminal, arguments: list[str], word: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    found = schedc("viz", "gpipe", *arguments)
    assert found.code == 2
    assert word in found.err
    assert not list(tmp_path.iterdir())


def broken_timelines() -> list[str]:
    """Timelines that are none: not JSON, another schema, and one wrong value at a time."""
    from schedc.driver.check import check_schedule
    from schedc.ir.cost import Costs

    good = check_schedule(bundled(), "gpipe", {"P": "2", "M": "1"}, Costs()).trace().to_json()
    texts = ["", "[]", "{", "nonsense", good.replace("timeline 1", "timeline 9")]
    for key, value in {
        "tasks": [[0, "F", 0, 0, "soon", 1.0, ""]],
        "messages": [["F", 0, 9, 0, 0, 0.0, 1.0]],
        "others": [[0, 3, 0.0, 1.0]],
        "memory": [[["a", 1.0]]] * 2,
        "ranks": "two",
        "notes": 3,
        "figures": 4,
        "title": None,
    }.items():
        texts.append(json.dumps(json.loads(good) | {key: value}))
    for task in ([7, "F", 0, 0, 0.0, 1.0, ""], [0, "F", 0, 0, 5.0, 1.0, ""], [0, "F"]):
        texts.append(json.dumps(json.loads(good) | {"tasks": [task]}))
    texts.append(json.dumps({k: v for k, v in json.loads(good).items() if k != "rank_of"}))
    return texts


@pytest.mark.parametrize("number", range(17))
def test_a_broken_timeline(schedc: Terminal, number: int, tmp_path: Path) -> None:
    texts = broken_timelines()
    assert len(texts) == 17
    path = tmp_path / "t.json"
    path.write_text(texts[number])
    for more in ([], ["-o", tmp_path / "t.svg"]):
        found = schedc("viz", path, *more)
        assert found.code == 1, found.shown
        assert "error[E908]" in found.err
        assert str(path) in found.err
    assert schedc("viz", tmp_path / "none.json").code == 1
    assert schedc("viz", tmp_path).code == 1, "a folder without a timeline"


# ---- list, explain -------------------------------------------------------------------------------


def test_list(schedc: Terminal) -> None:
    found = schedc("list")
    assert found.code == 0
    lines = [line.split() for line in found.out.splitlines()]
    assert [(line[0], line[1].partition("(")[0]) for line in lines] == [
        *(("schedule", name) for name in bundled().schedules),
        *(("plan", name) for name in bundled().plans),
    ]
    assert "interleaved(V = 2)" in found.out
    assert "arXiv:1811.06965" in found.out
    rows = json.loads(schedc("list", "--json").out)
    assert {row["name"]: row["use"] for row in rows}["interleaved"] == "interleaved(V = 2)"
    assert {row["kind"] for row in rows} == {"schedule", "plan"}


def test_explain(schedc: Terminal) -> None:
    found = schedc("explain", "E401")
    assert found.code == 0
    assert found.out.startswith("E401: the order deadlocks\n\n")
    assert CATALOGUE["E401"].example in found.out
    assert schedc("explain", "e401").out == found.out
    found = schedc("explain")
    assert found.code == 0
    assert [line.split()[0] for line in found.out.splitlines()] == sorted(CATALOGUE)
    found = schedc("explain", "E4O1")
    assert found.code == 2
    assert "Did you mean E401?" in found.err
    assert schedc("explain", "soup").code == 2


def test_every_page_can_be_printed(schedc: Terminal) -> None:
    for code, page in CATALOGUE.items():
        assert f"{code}: {page.title}" in schedc("explain", code).out


def test_a_schedule_that_deadlocks(schedc: Terminal, tmp_path: Path) -> None:
    path = tmp_path / "b.sched"
    path.write_text(BLOCKED)
    for command in ("check", "viz", "simulate"):
        found = schedc(command, path)
        assert found.code == 1
        assert "error[E401]" in found.err
        assert f"{path}:4:25" in found.err


def test_simulate_verifies_a_folder_that_was_edited(schedc: Terminal, folder: Path) -> None:
    program = folder / "rank0.prog"
    lines = program.read_text().splitlines(keepends=True)
    sends = [index for index, line in enumerate(lines) if " send " in line]
    program.write_text("".join(lines[: sends[0]] + lines[sends[0] + 1 :]))
    before = files_in(folder)
    found = schedc("simulate", folder)
    assert found.code == 1
    assert "E50" in found.err
    assert files_in(folder) == before
