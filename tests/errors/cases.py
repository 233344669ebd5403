"""What is printed for the inputs of the documents: sources, orders, programs, commands."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

from schedc.cli.main import main
from schedc.cli.options import read_costs
from schedc.diagnostics import DiagnosticError, render
from schedc.driver.check import abstract_programs, check_schedule, refuse_false_claims
from schedc.ir.cost import Costs
from schedc.ir.text import parse_order
from schedc.ir.verify import verify_order
from schedc.program.text import parse_program, print_program
from schedc.program.verify import verify_programs
from schedc.sema.library import bundled, load_file
from schedc.sema.plan import make_plan

EXEC = str(Path(__file__).parents[2] / "runtime" / "exec.py")


def printed_for(kind: str, words: list[str], text: str) -> str:
    """Everything that is wrong with an input, as a person would see it."""
    if kind == "sh":
        return _commands(text)
    try:
        match kind:
            case "sched":
                _source(words, text)
            case "order":
                verify_order(parse_order(text, "example.order"))
            case _:
                _programs(words, text)
    except DiagnosticError as error:
        return render(error.diagnostics)
    return ""


def _source(words: list[str], text: str) -> None:
    """Check all of a file. The words are what ``--set`` and, as ``cost:F=2``, ``--cost`` say."""
    path = Path("example.sched")
    path.write_text(text, encoding="utf-8", newline="")
    costs = read_costs(",".join(word[5:] for word in words if word.startswith("cost:")))
    settings = dict(word.split("=", 1) for word in words if not word.startswith("cost:"))
    library = load_file(path)
    for name in library.local_plans:
        make_plan(library, name, settings)
    if not library.local_plans:
        for name in library.local_schedules:
            refuse_false_claims(check_schedule(library, name, settings, costs))


def _programs(words: list[str], text: str) -> None:
    """Verify the programs of a bundled schedule after an edit of some ranks' texts.

    The words are the schedule and its settings. The text has ``rank N``, then lines of its program
    that follow one another: those behind ``-`` are taken out, those behind ``+`` put in. Numbers of
    rows and comments may be left out.
    """
    name, *settings = words
    given = dict(word.split("=", 1) for word in settings)
    report = check_schedule(bundled(), name, given, Costs())
    texts = [print_program(p).split("\n") for p in abstract_programs(report.timeline)]
    for part in re.split(r"(?m)^(?=rank \d)", text)[1:]:
        head, *edits = part.rstrip("\n").split("\n")
        rank = int(head.split()[1])
        texts[rank] = _edited(texts[rank], edits)
    parsed = [parse_program("\n".join(lines), f"rank{r}.prog") for r, lines in enumerate(texts)]
    verify_programs(tuple(parsed))


def _edited(lines: list[str], edits: list[str]) -> list[str]:
    """The lines after an edit; blank lines of it separate edits."""

    def bare(line: str) -> str:
        return " ".join(re.sub(r"^\s*\d+\s\s|\s#.*", "", line).split())

    for hunk in re.split(r"\n\s*\n", "\n".join(edits)):
        marked = hunk.split("\n")
        old = [bare(line[1:]) for line in marked if line[:1] != "+"]
        starts = range(len(lines) - len(old) + 1)
        (at,) = (i for i in starts if [bare(x) for x in lines[i : i + len(old)]] == old)
        new = [line[1:] for line in marked if line[:1] != "-"]
        lines = [*lines[:at], *new, *lines[at + len(old) :]]
    return lines


def _commands(text: str) -> str:
    """What the last of some commands complains about; the others must succeed."""
    *before, last = text.strip().split("\n")
    for line in before:
        code, complaint = _run(line)
        assert code == 0, f"{line}: {complaint}"
    code, complaint = _run(last)
    assert code == 1, f"{last} ends with status {code}: {complaint}"
    return complaint.rstrip("\n")


def _run(line: str) -> tuple[int, str]:
    """The exit status and the complaint of ``schedc``, ``runtime/exec.py`` or a shell's command."""
    program, *arguments = shlex.split(line)
    if program != "schedc":
        start = f"{shlex.quote(sys.executable)} {shlex.quote(EXEC)}"
        line = line.replace("runtime/exec.py", start, 1)
        done = subprocess.run(line, shell=True, capture_output=True, text=True)
        return done.returncode, done.stderr[max(0, done.stderr.find("error[")) :]  # torch may warn
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        try:
            main(arguments)
        except SystemExit as stop:
            return int(stop.code or 0), said.getvalue()
    return 0, said.getvalue()
