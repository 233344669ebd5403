"""However the same text is encoded and laid out, it compiles to the same (case A36)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from schedc.program.artifact import write_artifact
from schedc.program.text import print_program
from tests.driver.plans import build_of, files_in, plan_with

OWN = """\
schedule own {
    place stage s on rank s
    order on rank r {
        for m in 0..M { F(r, m) }

        for m in 0..M { B(r, m) }
    }
}
"""
TEXT = plan_with(schedule="own", before=OWN)
ENCODED = {
    "crlf": TEXT.replace("\n", "\r\n"),
    "cr": TEXT.replace("\n", "\r"),
    "mixed": TEXT.replace("\n", "\r\n", 5),
    "byte-order mark": "\ufeff" + TEXT,
    "no final line end": TEXT.removesuffix("\n"),
}
WRITTEN = {
    "tabs": TEXT.replace("    ", "\t"),
    "a last comment": TEXT + "# the end",
    "a blank line of spaces": TEXT.replace("\n\n", "\n  \t \n"),
}


@pytest.mark.parametrize("text", ENCODED.values(), ids=ENCODED)
def test_the_encoding_changes_not_a_byte(text: str, tmp_path: Path) -> None:
    """The manifest with all its hashes, the programs, the graphs and the timeline."""
    assert text != TEXT
    for name, written in (("found", text), ("expected", TEXT)):
        write_artifact(build_of(written).artifact, tmp_path / name)
    assert files_in(tmp_path / "found") == files_in(tmp_path / "expected")


@pytest.mark.parametrize("text", WRITTEN.values(), ids=WRITTEN)
def test_white_space_and_comments_change_the_source_alone(text: str) -> None:
    """Its hash and the lines that the manifest quotes."""
    found, expected = build_of(text).artifact, build_of(TEXT).artifact
    assert list(map(print_program, found.programs)) == list(map(print_program, expected.programs))
    assert found.graphs == expected.graphs
    source = found.manifest.hashes["source"]
    assert source != expected.manifest.hashes["source"]
    quoting = replace(
        expected.manifest,
        sources=found.manifest.sources,
        hashes=expected.manifest.hashes | {"source": source},
    )
    assert found.manifest == quoting
