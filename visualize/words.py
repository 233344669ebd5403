"""The texts of a chart: heading, names and figures of the rows, the time axis, the notes."""

from __future__ import annotations

from collections.abc import Iterable

from schedc.ir.trace import Trace
from schedc.visualize import scale
from schedc.visualize.geometry import Box, Row, Text, Tick
from schedc.visualize.lanes import RankLane, makespan_of
from schedc.visualize.rows import Frame

MARGIN = 18.0
TICK_ROOM = 64.0


def describe(trace: Trace) -> str:
    """``predicted · 4 ranks · 4 stages · 8 microbatches``."""

    def count(n: int, one: str, many: str) -> str:
        return f"{n} {one if n == 1 else many}"

    return " · ".join(
        (
            trace.origin,
            count(trace.ranks, "rank", "ranks"),
            count(trace.stages, "stage", "stages"),
            count(trace.microbatches, "microbatch", "microbatches"),
        )
    )


def bubble_line(trace: Trace, lanes: tuple[RankLane, ...]) -> str:
    """The bubble's formula with its value, from the operations that are drawn."""
    start, end = makespan_of(trace)
    busiest = max((lane.busy for lane in lanes), default=0.0)
    return scale.formula(end - start, busiest, scale.time_unit(trace.unit, end - start))


def axis_label(unit: str) -> str:
    return f"time ({unit or 'cost units'})"


def head(trace: Trace, formula: str, width: float) -> tuple[Text, ...]:
    """Title, what the chart shows, and the bubble; each as many lines as it needs, up to three."""
    room = width - 2 * MARGIN
    texts: list[Text] = []
    y = 31.0
    for line in scale.wrap(scale.printable(trace.title), 18, room, 2):
        texts.append(Text(MARGIN, y, line, 18, "start", "title"))
        y += 21
    for line in scale.wrap(describe(trace), 12, room, 2):
        texts.append(Text(MARGIN, y, line, 12, "start", "subtitle"))
        y += 16
    y += 4
    for line in scale.wrap(formula, 13, room, 3):
        texts.append(Text(MARGIN, y, line, 13, "start", "formula"))
        y += 17
    return tuple(texts)


def right_room(trace: Trace) -> float:
    """The room for figures at the right of the rows."""
    return 80.0 if any(trace.memory) else 66.0


def row_texts(trace: Trace, frame: Frame, rows: tuple[Row, ...]) -> Iterable[Text]:
    """The rank and its stages on the left; utilisation and peak memory on the right."""
    size = frame.sizes.font
    right = round(frame.left + frame.width + 8, 2)
    highest = max((row.memory.peak for row in rows if row.memory), default=0.0)
    unit = scale.memory_unit(trace.memory_unit, highest)
    if rows:
        yield Text(right, round(rows[0].lane.y - 5, 2), "busy", 9, "start", "stages")
    for row in rows:
        middle = _baseline(row.lane, size)
        yield Text(round(frame.left - 8, 2), middle, f"rank {row.rank}", size, "end", "rank")
        yield Text(right, middle, scale.percent(row.utilisation), size, "start", "busy")
        if frame.height >= frame.sizes.lane + 13 and row.stages:
            stages = " ".join(f"s{stage}" for stage in row.stages)
            stages = scale.shorten(stages, 9, frame.left - 12)
            y = round(row.lane.bottom + 12, 2)
            yield Text(round(frame.left - 8, 2), y, stages, 9, "end", "stages")
        if row.memory:
            small = min(size - 2, 10)
            text = f"peak {scale.number(row.memory.peak * unit.factor)}"
            yield Text(right, _baseline(row.memory.lane, small), text, small, "start", "memory")


def make_ticks(frame: Frame, unit: scale.Unit) -> tuple[Tick, ...]:
    """Ticks from the first moment shown, which is the time 0 of the axis."""
    length = (frame.span[1] - frame.span[0]) * unit.factor
    times = scale.ticks(length, frame.width, TICK_ROOM)
    step = times[1] if len(times) > 1 else 0.0
    return tuple(
        Tick(
            frame.x(frame.span[0] + time / unit.factor),
            frame.span[0] + time / unit.factor,
            scale.tick_label(time, step),
        )
        for time in times
    )


def axis_texts(ticks: tuple[Tick, ...], label: str, plot: Box) -> Iterable[Text]:
    for tick in ticks:
        yield Text(tick.x, round(plot.bottom + 18, 2), tick.label, 10, "middle", "tick")
    middle = round(plot.x + plot.w / 2, 2)
    yield Text(middle, round(plot.bottom + 34, 2), label, 11, "middle", "tick")


def foot(trace: Trace, plot: Box, width: float) -> tuple[Text, ...]:
    """The trace's notes under the axis."""
    lines = [
        line
        for note in trace.notes
        for line in scale.wrap(scale.printable(note), 11, width - 2 * MARGIN, 3)
    ]
    return tuple(
        Text(MARGIN, round(plot.bottom + 56 + 15 * i, 2), line, 11, "start", "note")
        for i, line in enumerate(lines)
    )


def _baseline(box: Box, size: float) -> float:
    """The baseline of a text of ``size`` in the middle of ``box``."""
    return round(box.y + box.h / 2 + 0.36 * size, 2)
