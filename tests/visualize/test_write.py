"""Files: the suffix chooses the writer, and what goes wrong says so."""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import pytest

from schedc.visualize.layout import layout
from schedc.visualize.png import to_png
from schedc.visualize.svg import to_svg
from schedc.visualize.terminal import to_terminal
from schedc.visualize.write import write_chart
from tests.visualize import traces


def test_suffixes(tmp_path: Path) -> None:
    trace = traces.example_1f1b()
    for name in ("a.svg", "b.json", "c.txt", "d.SVG"):
        write_chart(trace, tmp_path / name, width=800, columns=90)
    svg = to_svg(layout(trace, width=800))
    assert (tmp_path / "a.svg").read_bytes().decode() == svg
    assert (tmp_path / "d.SVG").read_bytes().decode() == svg
    assert json.loads((tmp_path / "b.json").read_bytes())["width"] == 800
    assert (tmp_path / "c.txt").read_bytes().decode() == to_terminal(trace, 90)


def test_other_suffixes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'a\.pdf': the suffix is one of \.svg, \.png, \.json"):
        write_chart(traces.example_1f1b(), tmp_path / "a.pdf")
    assert not list(tmp_path.iterdir())


def test_png_has_the_size_asked_for(tmp_path: Path) -> None:
    pytest.importorskip("cairosvg")
    write_chart(traces.example_1f1b(), tmp_path / "a.png", width=600, scale=1.5)
    data = (tmp_path / "a.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">I", data[16:20])[0] == 900


def test_without_cairosvg_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cairosvg", None)
    with pytest.raises(RuntimeError, match=r"pip install 'schedc\[png\]'"):
        to_png("<svg/>")
    with pytest.raises(RuntimeError):
        write_chart(traces.example_1f1b(), tmp_path / "a.png")
    assert not list(tmp_path.iterdir())
