"""The documents beside this file are the tests of the diagnostics.

A document is named after its code and has, once or more, a block of input and a block of what is
printed for it::

    ```sched P=2 V=3
    schedule … { … }
    ```

    ```text
    error[E201]: …
    ```

The first word says what the input is (see ``cases.py``): `sched` a source, `order` the text of an
order, `program` an edit of compiled programs, `sh` commands. Blocks ```` ```file NAME ```` before
an input are files beside it. Run with ``UPDATE_ERRORS=1`` to write what is printed now into the
documents; read the difference before committing it.
"""

import os
import re
from pathlib import Path

import pytest

from schedc.catalogue import CATALOGUE
from tests.driver.conftest import trace_each_model_once
from tests.errors.cases import printed_for

__all__ = ["trace_each_model_once"]

HERE = Path(__file__).parent
DOCUMENTS = sorted(HERE.glob("E*.md"))
CASE = re.compile(
    r"(?P<files>(?:```file [^\n]+\n(?:(?!```).*\n)*```\n+)*)"
    r"```(?P<kind>sched|order|program|sh)(?P<words>[^\n]*)\n(?P<input>(?:(?!```).*\n)*)```\n+"
    r"```text\n(?P<printed>(?:(?!```).*\n)*)```"
)
FILE = re.compile(r"```file ([^\n]+)\n((?:(?!```).*\n)*)```")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_document(document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = document.read_text(encoding="utf-8")
    cases = list(CASE.finditer(text))
    assert cases, "the document has no case"
    assert text.count("```text\n") == len(cases), "a block of output belongs to no input"

    def replaced(match: re.Match[str]) -> str:
        for name, content in FILE.findall(match["files"]):
            Path(name).write_text(content, encoding="utf-8")
        printed = printed_for(match["kind"], match["words"].split(), match["input"])
        head = match.group()[: match.start("printed") - match.start()]
        return f"{head}{printed}\n```"

    now = CASE.sub(replaced, text)
    if os.environ.get("UPDATE_ERRORS"):
        document.write_text(now, encoding="utf-8")
    assert now == document.read_text(encoding="utf-8")
    code = document.stem
    assert text.startswith(f"# {code}: {CATALOGUE[code].title}\n")
    assert all(f"error[{code}]" in match["printed"] for match in CASE.finditer(now))


def test_every_code_has_a_document() -> None:
    written = {document.stem for document in DOCUMENTS}
    assert written == CATALOGUE.keys()
