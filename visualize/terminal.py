"""The chart in characters, for a terminal or a text file.

An operation begins with its letter (in colour: its background) and its microbatch where that fits;
``-`` fills the rest. With several stages a rank, letters alternate between upper and lower case.
Idle time is ``·``. A cell shows what takes most of its time; where cells hold several operations
each, letters appear in proportion to time. Operations that overlap on a rank take a second line.
Messages are left out: most have no length.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from schedc.ir.trace import Trace
from schedc.visualize import palette, scale
from schedc.visualize.geometry import Curve, Layout, OpBox, Row
from schedc.visualize.layout import layout

LEAST_WIDTH = 40
IDLE = "·"
BARS = " ▁▂▃▄▅▆▇"
CROWD = 2
"""A cell with more operations than this shows none of them, but its share of each kind."""
SNAP = 0.7
"""The share of the room that cells of whole units must fill; else they fill it, uneven."""
RESET = "\x1b[0m"
MANY = 16
"""With more ranks than this, there are no memory lines."""


@dataclass(frozen=True, slots=True)
class Grid:
    """``columns`` cells that share the span; ``color`` is whether to paint them."""

    start: float
    step: float
    columns: int
    color: bool

    def cells(self, start: float, end: float) -> Iterable[tuple[int, float]]:
        """The cells that a stretch of time touches, with the time in each."""
        first = min(self.columns - 1, max(0, math.floor((start - self.start) / self.step)))
        for cell in range(first, self.columns):
            left = self.start + cell * self.step
            inside = min(end, left + self.step) - max(start, left)
            if inside > 1e-9 * self.step:
                yield cell, inside
            if left + self.step >= end:
                return


def to_terminal(
    chart: Layout | Trace, width: int = 80, color: bool = False, *, memory: bool = True
) -> str:
    """The chart in lines of at most ``width`` characters. Raises ValueError for less than 40.

    ``color`` writes 24-bit ANSI colours; without it the text is plain. ``memory`` asks for a line
    of memory under each of up to 16 ranks.
    """
    if width < LEAST_WIDTH:
        raise ValueError(f"a chart in characters is at least {LEAST_WIDTH} wide, not {width}")
    if isinstance(chart, Trace):
        chart = layout(chart, merge=False)
    names = [f"r{row.rank}" for row in chart.rows]
    curves = memory and len(chart.rows) <= MANY and any(row.memory for row in chart.rows)
    left = max([len(name) for name in names] + ([3] if curves else []), default=2) + 1
    figures = [scale.percent(row.utilisation) for row in chart.rows]
    figures += [_peak(chart, row.memory) for row in chart.rows if curves]
    right = max(map(len, figures), default=0) + 1
    grid = _grid(chart, width - left - right, color)
    letters = _letters(chart)
    lines = [*_heading(chart, width, color), ""]
    for name, row in zip(names, chart.rows, strict=True):
        bar = _operations(chart, row, grid, 0)
        lines.append(f"{name:>{left - 1}} {bar} {scale.percent(row.utilisation):>{right - 1}}")
        for lane in range(1, 1 + max((_lane(row, op) for op in row.ops), default=0)):
            lines.append(f"{'':{left}}{_operations(chart, row, grid, lane)}".rstrip())
        if row.others:
            lines.append(f"{'':{left}}{_others(row, grid, letters)}".rstrip())
        if curves and row.memory:
            bar = _paint(_bars(chart, row.memory, grid), palette.MEMORY_LINE, "", color)
            peak = _peak(chart, row.memory)
            lines.append(f"{'mem':>{left - 1}} {bar} {peak:>{right - 1}}")
    lines += [*_axis(chart, grid, left, width), "", *_legend(chart, curves, width, color)]
    return "\n".join(lines) + "\n"


def _heading(chart: Layout, width: int, color: bool) -> Iterable[str]:
    for text in chart.texts:
        if text.kind == "title":
            for line in _folded(text.text, width):
                yield f"\x1b[1m{line}{RESET}" if color else line
        if text.kind == "subtitle":
            yield from _folded(text.text, width)
    yield from _folded(chart.formula, width)


def _folded(text: str, width: int) -> Iterable[str]:
    """``text`` broken at blanks, and inside words only where one is too long."""
    line = ""
    for word in text.split():
        while _cells(word) > width:
            if line:
                yield line
                line = ""
            cut = next(i for i in range(len(word), 0, -1) if _cells(word[:i]) <= width)
            yield word[:cut]
            word = word[cut:]
        if line and _cells(line) + 1 + _cells(word) > width:
            yield line
            line = word
        else:
            line = f"{line} {word}".strip()
    if line:
        yield line


def _cells(text: str) -> int:
    """Columns that ``text`` takes: East Asian wide characters take two, combining ones none."""
    return sum(scale.columns(char) for char in text)


def _grid(chart: Layout, room: int, color: bool) -> Grid:
    """As many cells as fit; where all times are whole multiples of one, so are the cells."""
    start, end = chart.span
    length = end - start
    if length <= 0:
        return Grid(start, 1.0, room, color)
    times = {t for row in chart.rows for op in row.ops for t in (op.start, op.end)}
    unit = min(
        (op.end - op.start for r in chart.rows for op in r.ops if op.end > op.start), default=0.0
    )
    columns = room
    if unit and not any(row.blocks for row in chart.rows):
        counts = [(time - start) / unit for time in (*times, end)]
        count = round(length / unit)
        if count <= room and all(abs(n - round(n)) < 1e-6 for n in counts):
            snapped = room // count * count
            columns = snapped if snapped >= SNAP * room else room
    return Grid(start, length / columns, columns, color)


@dataclass(slots=True)
class _Cell:
    """What happens in one cell: time by kind, the longest operation of each, how many there are."""

    times: dict[str, float]
    longest: dict[str, tuple[float, OpBox]]
    count: int = 0

    def add(self, kind: str, time: float, op: OpBox | None = None) -> None:
        self.times[kind] = self.times.get(kind, 0.0) + time
        if op is not None:
            self.count += 1
            if time > self.longest.get(kind, (0.0, op))[0]:
                self.longest[kind] = time, op


def _cells_of(row: Row, grid: Grid, lane: int) -> list[_Cell]:
    cells = [_Cell({}, {}) for _ in range(grid.columns)]
    for op in row.ops:
        if _lane(row, op) != lane:
            continue
        for cell, time in grid.cells(op.start, op.end):
            cells[cell].add(op.op, time, op)
    for gap in row.gaps if lane == 0 else ():
        for cell, time in grid.cells(gap.start, gap.end):
            cells[cell].add("idle", time)
    for block in row.blocks if lane == 0 else ():
        for cell, time in grid.cells(block.start, block.end):
            cells[cell].count += block.count
            for kind, share in block.shares:
                cells[cell].add(kind, time * share)
    return cells


def _lane(row: Row, op: OpBox) -> int:
    """The line of an operation: 0, or more where it overlaps others on its rank."""
    return round((op.y - row.lane.y) / op.h)


def _operations(chart: Layout, row: Row, grid: Grid, lane: int) -> str:
    """A line of the compute lane: for each cell its kind, then runs of cells as text."""
    runs: list[tuple[str, OpBox | None, int]] = []
    owed: dict[str, float] = {}
    for cell in _cells_of(row, grid, lane):
        if cell.count > CROWD:
            for kind, time in cell.times.items():
                owed[kind] = owed.get(kind, 0.0) + time / sum(cell.times.values())
            kind = max(sorted(cell.times), key=owed.__getitem__)
            owed[kind] -= 1.0
        else:
            owed.clear()
            kind = max(
                sorted(cell.times), key=cell.times.__getitem__, default="idle" if lane == 0 else ""
            )
        op = cell.longest[kind][1] if kind in cell.longest and cell.count <= CROWD else None
        if runs and runs[-1][:2] == (kind, op):
            runs[-1] = kind, op, runs[-1][2] + 1
        else:
            runs.append((kind, op, 1))
    return "".join(_run(chart, kind, op, length, grid.color) for kind, op, length in runs)


def _run(chart: Layout, kind: str, op: OpBox | None, length: int, color: bool) -> str:
    """``length`` cells of one operation, or idle."""
    if not kind:
        return " " * length
    if kind == "idle":
        return _paint(IDLE * length, palette.IDLE_HATCH, "", color)
    shade = op.shade if op else chart.shades // 2
    letter = kind.lower() if shade % 2 and op else kind
    number = str(op.microbatch) if op else ""
    if color:
        background = palette.fill(kind, shade, chart.shades)
        text = (number if len(number) <= length else letter) if op else letter * length
        return _paint(f"{text[:length]:<{length}}", palette.ink(background), background, True)
    if op is None:
        return letter * length
    text = letter + number if len(letter + number) <= length else letter
    return f"{text:-<{length}}"[:length]


def _letters(chart: Layout) -> dict[str, str]:
    """A letter of its own, where there is one, for the first word of each name of the others."""
    letters: dict[str, str] = {}
    for word in scale.first_words(other.name for row in chart.rows for other in row.others):
        letters[word] = next((c for c in word if c not in letters.values()), word[:1])
    return letters


def _others(row: Row, grid: Grid, letters: dict[str, str]) -> str:
    """Reductions, norm and step: the name where it fits, else its first word or its letter."""
    line = [" "] * grid.columns
    for other in row.others:
        cells = [cell for cell, _ in grid.cells(other.start, other.end)]
        if not cells:
            continue
        first, length = cells[0], len(cells)
        (word,) = scale.first_words([other.name])
        names = (scale.printable(other.name), word)
        text = next((name for name in names if len(name) <= length), letters[word])
        line[first : first + length] = f"{text:=<{length}}"[:length]
    text = "".join(line).rstrip()
    return _paint(text, palette.OTHER, "", grid.color)


def _bars(chart: Layout, curve: Curve, grid: Grid) -> str:
    """The highest memory in each cell, as a bar; the tallest is the highest of any rank."""
    highest = [0.0] * grid.columns
    lane, length = curve.lane, chart.span[1] - chart.span[0]
    for (x0, y0), (x1, y1) in pairwise(curve.points):
        amount = lane.bottom - min(y0, y1)
        start, end = (chart.span[0] + (x - lane.x) / lane.w * length for x in (x0, x1))
        for cell, time in grid.cells(start, end):
            if time > 0.02 * grid.step:
                highest[cell] = max(highest[cell], amount)
    top = max(row.memory.lane.bottom - row.memory.peak_at[1] for row in chart.rows if row.memory)
    levels = len(BARS) - 1
    return "".join(BARS[math.ceil(levels * h / top - 1e-6) if top else 0] for h in highest)


def _peak(chart: Layout, curve: Curve | None) -> str:
    if curve is None:
        return ""
    highest = max((row.memory.peak for row in chart.rows if row.memory), default=0.0)
    unit = scale.memory_unit(chart.memory_unit, highest)
    name = "" if chart.memory_unit == "units" else f" {unit.name}"
    return f"{scale.number(curve.peak * unit.factor)}{name}"


def _axis(chart: Layout, grid: Grid, left: int, width: int) -> Iterable[str]:
    """A line with ticks, their times, and the unit."""
    unit = scale.time_unit(chart.unit, chart.span[1] - chart.span[0])
    length = (chart.span[1] - chart.span[0]) * unit.factor
    times = scale.ticks(length, grid.columns, 8)
    rule, labels = ["─"] * (grid.columns + 1), [" "] * (width + 1)
    until = -1
    for time in times:
        at = round(time / (grid.step * unit.factor))
        rule[at] = "┴" if at else "└"
        label = scale.tick_label(time, times[1] if len(times) > 1 else 0.0)
        first = max(left + at - (len(label) - 1) // 2, until + 1)
        if first + len(label) <= width:
            labels[first : first + len(label)] = label
            until = first + len(label)
    yield " " * left + "".join(rule)
    yield "".join(labels).rstrip()
    yield f"{'':{left}}{chart.axis:^{grid.columns}}".rstrip()


def _legend(chart: Layout, memory: bool, width: int, color: bool) -> Iterable[str]:
    """What the letters are; entries are not broken across lines."""
    entries: list[tuple[str, str]] = []
    kinds = [swatch.op for swatch in chart.legend if swatch.kind == "op" and swatch.shade == 0]
    for kind in kinds:
        background = palette.fill(kind, 0, chart.shades)
        sample = _paint(f" {kind} ", palette.ink(background), background, color) if color else kind
        name = palette.NAMES.get(kind, "")
        entries.append((f"{sample} {name}".rstrip(), f"{' ' * 2 * color}{kind} {name}".rstrip()))
    entries.append((f"{IDLE} idle", f"{IDLE} idle"))
    if chart.shades > 1 and not color:
        text = "upper, lower case: stages in turn"
        entries.append((text, text))
    if chart.shades > 1 and color:
        text = "dark to light: stages of a rank"
        entries.append((text, text))
    for name, letter in _letters(chart).items():
        text = f"{letter}= {name}"
        entries.append((text, text))
    if memory and chart.memory_limit is not None:
        unit = scale.memory_unit(chart.memory_unit, chart.memory_limit)
        text = f"mem limit {scale.number(chart.memory_limit * unit.factor)} {unit.name}"
        entries.append((text, text))
    line, used = "", 0
    for shown, plain in entries:
        if line and used + 2 + len(plain) > width:
            yield line
            line, used = "", 0
        line, used = (f"{line}  {shown}", used + 2 + len(plain)) if line else (shown, len(plain))
    yield line


def _paint(text: str, ink: str, background: str, color: bool) -> str:
    """``text`` in 24-bit colours."""
    if not color or not text:
        return text
    codes = [f"38;2;{';'.join(map(str, palette.rgb(ink)))}"]
    if background:
        codes.append(f"48;2;{';'.join(map(str, palette.rgb(background)))}")
    return f"\x1b[{';'.join(codes)}m{text}{RESET}"
