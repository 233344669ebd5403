"""What a name on the command line means: a file's only plan or schedule, or one of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from schedc.diagnostics import DiagnosticError
from schedc.driver.target import all_targets, choose_target
from tests.driver.plans import BLOCKED, PLAN, plan_with


def refused(text: str) -> tuple[str, str]:
    with pytest.raises(DiagnosticError) as caught:
        choose_target(text)
    (diagnostic,) = caught.value.diagnostics
    return diagnostic.code, f"{diagnostic.message}; {diagnostic.help}"


def write(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_bundled_names() -> None:
    assert choose_target("gpipe").name == "gpipe"
    assert not choose_target("gpipe").is_plan
    assert choose_target("llama_tiny_zb").is_plan


def test_the_only_plan_comes_before_schedules(tmp_path: Path) -> None:
    path = write(tmp_path, "one.sched", BLOCKED + plan_with(schedule="blocked"))
    assert choose_target(path).name == "p"
    assert choose_target(f"{path}:blocked").name == "blocked"
    assert not choose_target(f"{path}:blocked").is_plan
    assert [target.name for target in all_targets(path)] == ["blocked", "p"]
    assert [target.name for target in all_targets(f"{path}:p")] == ["p"]


def test_the_only_schedule(tmp_path: Path) -> None:
    assert choose_target(write(tmp_path, "one.sched", BLOCKED)).name == "blocked"


def test_several_are_listed(tmp_path: Path) -> None:
    two = write(tmp_path, "two.sched", BLOCKED + BLOCKED.replace("blocked", "other"))
    code, message = refused(two)
    assert code == "E221"
    assert "several schedules: `blocked`, `other`" in message
    assert f"{two}:blocked" in message
    plans = write(tmp_path, "plans.sched", PLAN + PLAN.replace("plan p", "plan q") + BLOCKED)
    assert "several plans: `p`, `q`" in refused(plans)[1]


def test_a_file_of_imports_only(tmp_path: Path) -> None:
    path = write(tmp_path, "imports.sched", 'import "gpipe.sched"')
    assert refused(path)[0] == "E221"
    with pytest.raises(DiagnosticError, match="defines no schedule and no plan"):
        all_targets(path)


def test_unknown_names(tmp_path: Path) -> None:
    code, message = refused("gpip")
    assert code == "E215"
    assert "did you mean `gpipe`?" in message
    path = write(tmp_path, "one.sched", BLOCKED)
    code, message = refused(f"{path}:blokced")
    assert code == "E215"
    assert "did you mean `blocked`?" in message
    assert refused(str(tmp_path / "none.sched"))[0] == "E212"
    assert refused(str(tmp_path))[0] == "E212"


def test_a_colon_in_a_folder_s_name(tmp_path: Path) -> None:
    (tmp_path / "a:b").mkdir()
    path = write(tmp_path / "a:b", "one.sched", BLOCKED)
    assert choose_target(path).name == "blocked"
    assert choose_target(f"{path}:blocked").name == "blocked"
