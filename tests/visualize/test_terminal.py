"""The chart in characters: never wider than asked, readable without colour, true to the trace."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from schedc.ir.trace import Trace, TraceTask
from schedc.visualize.layout import layout
from schedc.visualize.scale import columns
from schedc.visualize.terminal import to_terminal
from tests.visualize import traces
from tests.visualize.test_layout import EMPTY, EXAMPLES, POINT, SINGLE

ANSI = re.compile("\x1b\\[[0-9;]*m")


def width_of(line: str) -> int:
    return sum(columns(char) for char in ANSI.sub("", line))


@pytest.mark.parametrize("color", [False, True], ids=["plain", "color"])
@pytest.mark.parametrize("width", [40, 41, 80, 200])
@pytest.mark.parametrize("name", EXAMPLES)
def test_lines_fit(name: str, width: int, color: bool) -> None:
    text = to_terminal(EXAMPLES[name](), width, color)
    assert max(map(width_of, text.splitlines())) <= width
    assert ("\x1b" in text) == color
    assert re.search(r"bubble = makespan − busiest\s+rank", " ".join(text.split()))


def lanes(text: str) -> list[str]:
    """The ranks' lines between name and utilisation."""
    found = [re.fullmatch(r" *r\d+ (.*?) +[\d.]+ %", line) for line in text.splitlines()]
    return [match[1] for match in found if match]


def test_one_f_one_b_as_on_paper() -> None:
    # P = 4, M = 8, F = 1, B = 2: two characters a unit of time; the last rank never waits inside.
    one, *_, last = lanes(to_terminal(traces.example_1f1b(), 80))
    steady = "".join(f"F{m + 4}B{m + 1}--" for m in range(4))
    assert one == "F0F1F2F3" + "··" * 6 + "B0--" + steady + "··B5--··B6--··B7--"
    assert last == "··" * 3 + "".join(f"F{m}B{m}--" for m in range(8)) + "··" * 6


def test_colour_shows_the_same_cells_as_plain_text() -> None:
    plain = to_terminal(traces.example_1f1b(), 80).splitlines()
    painted = ANSI.sub("", to_terminal(traces.example_1f1b(), 80, True)).splitlines()
    for one, two in zip(plain, painted, strict=True):
        if one.startswith(" r"):
            assert re.sub("[FB]([0-9])", r"\1 ", one).replace("-", " ") == two
    assert "38;2;255;255;255;48;2;57;122;242m0 \x1b" in to_terminal(traces.example_1f1b(), 80, True)


def test_stages_of_a_rank_alternate_in_case() -> None:
    text = to_terminal(traces.example_interleaved(), 80, memory=False)
    assert all({"F", "f", "B", "b"} <= set(lane) for lane in lanes(text))
    assert "upper, lower case" in text


def test_crowded_cells_show_shares_of_time() -> None:
    # In the steady state of 1F1B with B = 2 F, a third of the time is forward.
    for chart in (traces.example_1f1b(8, 2000), layout(traces.example_1f1b(8, 2000))):
        lane = lanes(to_terminal(chart, 120))[0]
        middle = lane[20:-20]
        assert set(middle) == {"F", "B"}
        assert middle.count("F") / len(middle) == pytest.approx(1 / 3, abs=0.05)


def test_a_layout_and_its_trace_read_the_same() -> None:
    trace = traces.example_measured()
    assert to_terminal(layout(trace), 90) == to_terminal(trace, 90)


def test_operations_that_overlap_take_a_second_line() -> None:
    tasks = (TraceTask(0, "B", 0, 0, 0.0, 3.0), TraceTask(0, "F", 0, 1, 0.0, 3.0))
    text = to_terminal(Trace("pair", "predicted", "", 1, 1, 2, (0,), tasks), 40)
    assert text.count("B0--") == text.count("F1--") == 1


def test_memory_is_a_bar_under_each_rank() -> None:
    text = to_terminal(traces.example_zb_h1(memory_limit=4.0), 80)
    bars = [line for line in text.splitlines() if line.startswith("mem ▂") or "▂" in line]
    assert [line.split()[-1] for line in bars] == ["4", "3.5", "3", "2.5"]
    assert "▇" in bars[0]
    assert "▇" not in bars[3]
    assert "mem limit 4 units" in text
    assert "▂" not in to_terminal(traces.example_zb_h1(), 80, memory=False)


def test_control_characters_do_not_reach_the_terminal() -> None:
    trace = replace(traces.example_1f1b(2, 2), title="\x1b[2Jα 日本\a\nx" + "y" * 90)
    text = to_terminal(trace, 40)
    assert not re.search("[\x00-\x09\x0b-\x1f]", text)
    assert max(map(width_of, text.splitlines())) <= 40
    assert "α 日本" in text


@pytest.mark.parametrize("trace", [EMPTY, POINT, SINGLE], ids=["empty", "point", "single"])
@pytest.mark.parametrize("width", [40, 200])
def test_small_traces(trace: Trace, width: int) -> None:
    text = to_terminal(trace, width)
    assert len(lanes(text)) == trace.ranks
    assert max(map(width_of, text.splitlines())) <= width


def test_too_narrow_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 40 wide, not 39"):
        to_terminal(SINGLE, 39)


def test_golden(golden: Callable[[str, str], None]) -> None:
    golden("measured.txt", to_terminal(traces.example_measured(), 100))
    golden("measured.ansi", to_terminal(traces.example_measured(), 100, True))
    golden("interleaved.txt", to_terminal(traces.example_interleaved(), 80))
