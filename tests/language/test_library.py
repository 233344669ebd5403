"""Files, imports, and what a user names on the command line."""

from pathlib import Path

import pytest

from schedc.diagnostics import DiagnosticError
from schedc.sema.library import bundled, load_file, load_text, open_library
from schedc.sema.plan import make_plan
from schedc.sema.schedule import instantiate

MINE = "schedule %s { place stage s on rank s order on rank r { for m in 0..M { F(r, m) } } }\n"


def write(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def codes(path: Path) -> list[str]:
    with pytest.raises(DiagnosticError) as caught:
        load_file(path)
    return [diagnostic.code for diagnostic in caught.value.diagnostics]


def test_what_is_bundled() -> None:
    assert {"gpipe", "interleaved", "one_f_one_b", "zb_h1", "zb_v"} <= set(bundled().schedules)
    assert bundled().plans == ("llama_tiny_zb",)
    bundled().check()


def test_imports(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    write(tmp_path / "inner", "deep.sched", 'import "leaf.sched"\n' + MINE % "deep")
    write(tmp_path / "inner", "leaf.sched", MINE % "leaf")
    path = write(
        tmp_path,
        "main.sched",
        'import "inner/deep.sched" import "inner/leaf.sched" import "zb_h1.sched"\n'
        + MINE % "gpipe"
        + 'plan p { model "m" sequence 8 batch 4 in microbatches of 1 mesh pp = 2 '
        "schedule deep precision fp32 }",
    )
    library = load_file(path)
    assert library.local == ("gpipe", "p")
    assert (library.local_schedules, library.local_plans) == (("gpipe",), ("p",))
    assert library.schedules == ("leaf", "deep", "zb_h1", "gpipe")
    # The file's own `gpipe` comes before the bundled one, which has backwards.
    assert len(instantiate(library, "gpipe", 1, 4, {}).order) == 4
    assert len(instantiate(library, "one_f_one_b", 1, 4, {}).order) == 8
    assert make_plan(library, "p", {}).order.name == "deep"


def test_import_mistakes(tmp_path: Path) -> None:
    write(tmp_path, "a.sched", 'import "b.sched"\n' + MINE % "a")
    write(tmp_path, "b.sched", 'import "a.sched"\n' + MINE % "b")
    assert codes(tmp_path / "a.sched") == ["E213"]
    assert codes(write(tmp_path, "c.sched", 'import "c.sched"')) == ["E213"]
    assert codes(write(tmp_path, "d.sched", 'import "nowhere.sched"')) == ["E212"]
    write(tmp_path, "e.sched", MINE % "x")
    assert codes(write(tmp_path, "f.sched", 'import "e.sched"\n' + MINE % "x")) == ["E214"]
    assert codes(write(tmp_path, "g.sched", MINE % "x" + MINE % "x")) == ["E202"]
    write(tmp_path, "h.sched", "schedule {")
    assert codes(write(tmp_path, "i.sched", 'import "h.sched"')) == ["E102"]
    assert codes(tmp_path / "not there.sched") == ["E212"]
    assert codes(tmp_path) == ["E212"]


def test_spans_name_files_as_the_user_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "bad.sched", "schedule {")
    with pytest.raises(DiagnosticError) as caught:
        load_file(Path("bad.sched"))
    assert str(caught.value.diagnostics[0].span) == "bad.sched:1:10"


def test_what_the_command_line_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "two.sched", MINE % "one" + MINE % "two")
    assert open_library("gpipe") == (bundled(), "gpipe")
    assert open_library("llama_tiny_zb")[1] == "llama_tiny_zb"
    library, chosen = open_library("two.sched")
    assert (library.local, chosen) == (("one", "two"), None)
    assert open_library("two.sched:two")[1] == "two"
    for name, code in [
        ("two.sched:three", "E215"),
        ("gpip", "E215"),
        ("nothing.sched", "E212"),
        ("nothing.sched:x", "E212"),
    ]:
        with pytest.raises(DiagnosticError, match=code):
            open_library(name)


def test_several_mistakes_come_out_together() -> None:
    with pytest.raises(DiagnosticError) as caught:
        load_text(
            "a.sched",
            "schedule a { let x = y place stage s on rank q order on rank r { F(1) } }\n"
            "schedule b { solve { } }\n"
            "plan c { modle 3 }",
        )
    assert [diagnostic.code for diagnostic in caught.value.diagnostics] == [
        *("E201", "E201", "E203", "E110", "E809")
    ]
