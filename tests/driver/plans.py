"""Plans for the driver's tests: texts in line, models traced once in the whole session."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from schedc.diagnostics import DiagnosticError, render
from schedc.driver.build import Build, compile_plan
from schedc.graph.build import build_model
from schedc.sema.library import load_text

traced_once = cache(build_model)
"""``build_model``, remembered: its arguments are values and models are not changed."""

PLAN = """\
plan p {
    model      "llama-test"
    sequence   16
    batch      16 in microbatches of 2
    mesh       dp = 2, pp = 2
    schedule   zb_h1
    precision  fp32
}
"""

BLOCKED = """\
schedule blocked {
    place stage s on rank s
    order on rank r {
        for m in 0..M { B(r, m)  F(r, m) }
    }
}
"""


def plan_with(**changes: str) -> str:
    """PLAN with other values of some keys; ``layers`` is added, ``before`` stands above."""
    before = changes.pop("before", "")
    lines = PLAN.splitlines()
    for key, value in changes.items():
        at = [i for i, line in enumerate(lines) if line.split()[0] == key]
        lines[at[0] if at else -1 :] = [f"    {key:<10} {value}"] + (
            lines[at[0] + 1 :] if at else ["}"]
        )
    return before + "\n".join(lines) + "\n"


def build_of(text: str, settings: Mapping[str, str] | None = None) -> Build:
    """The compiled only plan of ``text``, a file called p.sched."""
    library = load_text("p.sched", text)
    (name,) = library.local_plans
    return compile_plan(library, name, settings or {})


def refusal(text: str, settings: Mapping[str, str] | None = None) -> str:
    """What a person reads when the plan of ``text`` does not compile."""
    with pytest.raises(DiagnosticError) as caught:
        build_of(text, settings)
    return render(caught.value.diagnostics)


def files_in(folder: Path) -> dict[str, bytes]:
    """Every file below ``folder``, by its path in it."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def run_schedc(*arguments: str | Path, cwd: Path, **environment: str) -> str:
    """What the command prints, run in a process of its own; it must succeed."""
    done = subprocess.run(
        [sys.executable, "-m", "schedc", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
