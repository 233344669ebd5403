"""The documents beside this file are the tests of the diagnostics.

A document has, once or more, a block of source and a block of what is printed for it::

    ```sched P=2 V=3
    schedule … { … }
    ```

    ```text
    error[E201]: …
    ```

What follows ``sched`` is what ``--set`` would say. Run with ``UPDATE_ERRORS=1`` to write what is
printed now into the documents; read the difference before committing it.
"""

import os
import re
from pathlib import Path

import pytest

from schedc.catalogue import CATALOGUE
from schedc.diagnostics import DiagnosticError, render
from schedc.ir.cost import Costs
from schedc.ir.verify import verify_order
from schedc.sema.claims import claims_to_diagnostics, evaluate_claims
from schedc.sema.library import load_file
from schedc.sema.plan import make_plan
from schedc.sema.schedule import instantiate
from schedc.simulate.figures import figures
from schedc.simulate.order import simulate_order

HERE = Path(__file__).parent
DOCUMENTS = sorted(HERE.glob("E*.md"))
CASE = re.compile(
    r"```sched(?P<settings>[^\n]*)\n(?P<source>.*?)```\n+```text\n(?P<printed>.*?)```", re.S
)

ELSEWHERE = {"E107", "E109"}
"""Codes whose input cannot stand in a document; tests/language has their tests."""
MINE = re.compile(r"E1\d\d|E20\d|E21\d|E220|E303|E305|E701|E803|E80[789]|E81[012]")


def printed_for(source: str, settings: dict[str, str]) -> str:
    """Everything that is wrong with a file, as a person would see it."""
    path = Path("example.sched")
    path.write_text(source, encoding="utf-8", newline="")
    try:
        library = load_file(path)
        for name in library.local_plans:
            make_plan(library, name, settings)
        if library.local_plans:
            return ""
        for name in library.local_schedules:
            arguments = dict(settings)
            P, M = int(arguments.pop("P", 4)), int(arguments.pop("M", 8))
            instance = instantiate(library, name, P, M, arguments)
            verify_order(instance.order)
            costs = Costs().of_stages(P, instance.order.stages)
            found = figures(simulate_order(instance.order, costs), costs)
            false = claims_to_diagnostics(evaluate_claims(instance, found, costs))
            if false:
                raise DiagnosticError(false)
    except DiagnosticError as error:
        return render(error.diagnostics)
    return ""


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_document(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = document.read_text(encoding="utf-8")
    cases = list(CASE.finditer(text))
    assert cases, "the document has no case"

    def replaced(match: re.Match[str]) -> str:
        settings = dict(word.split("=", 1) for word in match["settings"].split())
        printed = printed_for(match["source"], settings)
        return f"```sched{match['settings']}\n{match['source']}```\n\n```text\n{printed}\n```"

    now = CASE.sub(replaced, text)
    if os.environ.get("UPDATE_ERRORS"):
        document.write_text(now, encoding="utf-8")
    assert now == document.read_text(encoding="utf-8")
    code = document.stem.split("_")[0]
    assert all(f"error[{code}]" in match["printed"] for match in CASE.finditer(now))


def test_every_code_has_a_document() -> None:
    wanted = {code for code in CATALOGUE if MINE.fullmatch(code)} - ELSEWHERE
    assert wanted == {document.stem.split("_")[0] for document in DOCUMENTS}
