"""The SVG: well-formed, the layout's own rectangles, the same bytes each time, small when large."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from schedc.ir.trace import Trace
from schedc.visualize.geometry import Box, Layout
from schedc.visualize.layout import layout
from schedc.visualize.svg import to_svg
from tests.visualize import traces
from tests.visualize.test_layout import EMPTY, EXAMPLES, POINT, SINGLE

SVG = "{http://www.w3.org/2000/svg}"


def rectangles(root: ElementTree.Element, kind: str) -> Iterator[tuple[float, ...]]:
    """(x, y, width, height) in the groups whose class begins with ``kind``."""
    for group in root.iter(f"{SVG}g"):
        if group.get("class", "").split(" ")[0] == kind:
            for rect in group.findall(f"{SVG}rect"):
                yield tuple(float(rect.get(k, "")) for k in ("x", "y", "width", "height"))


def places(boxes: Iterator[Box]) -> list[tuple[float, ...]]:
    return sorted((box.x, box.y, box.w, box.h) for box in boxes)


@pytest.mark.parametrize("name", EXAMPLES)
def test_rectangles_are_those_of_the_layout(name: str) -> None:
    chart = layout(EXAMPLES[name]())
    root = ElementTree.fromstring(to_svg(chart))
    rows = chart.rows
    assert sorted(rectangles(root, "op")) == places(op for row in rows for op in row.ops)
    assert sorted(rectangles(root, "idle")) == places(gap for row in rows for gap in row.gaps)
    assert sorted(rectangles(root, "messages")) == places(m for row in rows for m in row.messages)
    assert sorted(rectangles(root, "others")) == places(o for row in rows for o in row.others)
    area = sum(w * h for _, _, w, h in rectangles(root, "block"))
    assert area == pytest.approx(sum(b.w * b.h for row in rows for b in row.blocks))


def test_it_is_self_contained_and_accessible() -> None:
    chart = layout(traces.example_zb_h1())
    text = to_svg(chart)
    root = ElementTree.fromstring(text)
    assert root.get("role") == "img"
    assert [child.tag for child in root][:2] == [f"{SVG}title", f"{SVG}desc"]
    assert root[0].text == "zb_h1"
    assert chart.formula in (root[1].text or "")
    assert root.get("aria-labelledby") == f"{root[0].get('id')} {root[1].get('id')}"
    for foreign in ("href", "@import", "url(http", "<script", "<image", "font-face"):
        assert foreign not in text
    assert text.count("http") == 1  # the name space
    background = root.find(f"{SVG}rect")
    assert background is not None
    assert background.get("fill") == "#FFFFFF"


def test_tooltips_say_what_when_and_where() -> None:
    root = ElementTree.fromstring(to_svg(layout(traces.example_1f1b())))
    found = {title.text for title in root.iter(f"{SVG}title")}
    assert "F of stage 0, microbatch 0\n0 to 1\nexample.sched:3" in found
    assert len([t for t in found if t and t.startswith("B of stage")]) == 32


def test_special_characters_are_escaped() -> None:
    title = 'α & β <script>"x"</script> \x1b[31m \ud800 日本'
    trace = replace(traces.example_1f1b(2, 2), title=title, notes=("a < b & c", "]]>"))
    root = ElementTree.fromstring(to_svg(layout(trace)).encode())
    assert root[0].text == 'α & β <script>"x"</script> �[31m � 日本'
    texts = [element.text for element in root.iter(f"{SVG}text")]
    assert "a < b & c" in texts
    assert "]]>" in texts
    assert not list(root.iter(f"{SVG}script"))


@pytest.mark.parametrize("trace", [EMPTY, POINT, SINGLE], ids=["empty", "point", "single"])
def test_small_traces_are_well_formed(trace: Trace) -> None:
    text = to_svg(layout(trace))
    ElementTree.fromstring(text)
    assert "nan" not in text
    assert "inf" not in text


def test_a_large_trace_makes_a_small_file() -> None:
    trace = traces.example_1f1b(64, 512)
    assert len(trace.tasks) == 65_536
    chart = layout(trace)
    text = to_svg(chart)
    assert len(text) < 2_000_000
    assert len(chart.to_json()) < 5_000_000
    assert any("shares of the time" in t.text for t in chart.texts)
    ElementTree.fromstring(text)


def test_the_same_bytes_under_any_hash_seed() -> None:
    program = (
        "from tests.visualize import traces; from schedc.visualize.layout import layout;"
        "from schedc.visualize.svg import to_svg; from schedc.visualize.terminal import *;"
        "t = traces.example_measured(); c = layout(t);"
        "print(to_svg(c), c.to_json(), to_terminal(t, 80, True))"
    )
    root = Path(__file__).parents[2]
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"},
            cwd=root,
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "42")
    }
    assert len(outputs) == 1


def test_golden(golden: Callable[[str, str], None]) -> None:
    trace = traces.run(
        traces.zb_h1(2, 3), lambda op, s, m: 1.0, title="zb_h1", comm=0.25, memory_limit=2.0
    )
    chart: Layout = layout(trace, width=640, critical=(("F", 0, 0), ("F", 1, 0)))
    golden("zb_h1.svg", to_svg(chart))


def test_critical_blocks_that_touch_share_an_outline() -> None:
    trace = traces.example_1f1b(2, 3000)
    path = tuple((task.op, task.stage, task.microbatch) for task in trace.tasks if task.rank == 0)
    chart = layout(trace, critical=path)
    assert sum(block.critical for row in chart.rows for block in row.blocks) > 10
    outlines = list(rectangles(ElementTree.fromstring(to_svg(chart)), "critical"))
    assert len(outlines) < 5
