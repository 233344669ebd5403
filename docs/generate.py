"""Produces every command output and figure in the documents, so that none of them can go stale.

    python docs/generate.py           rewrite them
    python docs/generate.py --check   exit 1 where one of them is out of date (a test runs this)

A document holds blocks of this form; everything between the two comments is generated::

    <!-- run: schedc check zb_h1 -->
    <!-- end -->

``run`` shows the command and its output, ``figure`` runs a command that writes the figure named by
its last argument and shows it.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")
BLOCK = re.compile(
    r"<!-- (?P<kind>run|figure): (?P<command>.+?) -->\n(?P<body>.*?)<!-- end -->", re.DOTALL
)


def run(command: str, folder: Path) -> str:
    """The output of a command as a newcomer in ``folder`` sees it; it must succeed or say why not.

    A command that is meant to fail ends with ``|| true``.
    """
    fails = command.endswith("|| true")
    words = shlex.split(command.removesuffix("|| true"))
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "100"}
    result = subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, env=environment, capture_output=True, text=True
    )
    if (result.returncode != 0) != fails:
        raise SystemExit(f"{command}: exit {result.returncode}\n{result.stdout}{result.stderr}")
    lines = (result.stdout + result.stderr).rstrip().splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)


def generated(document: str, written: dict[Path, bytes]) -> str:
    """``document`` with fresh blocks; the figures that they show are added to ``written``."""

    def fresh(block: re.Match[str]) -> str:
        kind, command = block["kind"], block["command"]
        shown = command.removesuffix("|| true").strip()
        head = f"<!-- {kind}: {command} -->\n"
        if kind == "run":
            return f"{head}```console\n$ {shown}\n{run(command, ROOT)}```\n<!-- end -->"
        target = shlex.split(shown)[-1]
        with tempfile.TemporaryDirectory() as folder:
            fresh_file = Path(folder) / Path(target).name
            run(f"{shown.removesuffix(target)}{shlex.quote(str(fresh_file))}", ROOT)
            written[ROOT / target] = fresh_file.read_bytes()
        return f"{head}![{Path(target).stem}]({target})\n<!-- end -->"

    return BLOCK.sub(fresh, document)


def main() -> int:
    parser = argparse.ArgumentParser(description="Regenerate outputs and figures in the documents.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if stale")
    check = parser.parse_args().check
    written: dict[Path, bytes] = {}
    for name in DOCUMENTS:
        text = (ROOT / name).read_text(encoding="utf-8")
        written[ROOT / name] = generated(text, written).encode()
    stale = [p for p, new in written.items() if not p.exists() or p.read_bytes() != new]
    for path in stale:
        print(f"{'stale' if check else 'written'}: {path.relative_to(ROOT)}")
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(written[path])
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
