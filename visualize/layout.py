"""The layout of a bubble diagram: a trace as boxes, curves and texts, ready for any writer."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from schedc.ir.trace import Trace
from schedc.visualize import scale
from schedc.visualize.curve import Heights
from schedc.visualize.density import LEAST, Density, thin
from schedc.visualize.geometry import Box, Layout, Link, Row
from schedc.visualize.lanes import RankLane, check_trace, makespan_of, rank_lanes, span_of
from schedc.visualize.legend import entries, make_legend
from schedc.visualize.rows import (
    LEAST_FONT,
    Frame,
    Key,
    Sizes,
    fits,
    make_row,
    other_lanes,
    work_of,
)
from schedc.visualize.words import (
    MARGIN,
    axis_label,
    axis_texts,
    bubble_line,
    foot,
    head,
    make_ticks,
    right_room,
    row_texts,
)

LEAST_WIDTH = 320


def layout(
    trace: Trace,
    *,
    width: float = 1200,
    memory: bool = True,
    messages: bool = True,
    critical: Iterable[Key] | None = None,
    span: tuple[float, float] | None = None,
    merge: bool = True,
) -> Layout:
    """Places everything that a chart of ``trace`` shows, ``width`` pixels wide.

    ``memory`` and ``messages`` ask for those lanes; without such data there are none. ``critical``
    is the critical path as (operation, stage, microbatch), first to last. ``span`` puts charts on
    one time axis. ``merge`` makes blocks of what is too narrow to see (see ``density``).
    Raises ValueError for a width below 320, a span that cuts the trace, and a trace whose ranks
    or times are impossible.
    """
    if width < LEAST_WIDTH:
        raise ValueError(f"a chart is at least {LEAST_WIDTH} pixels wide, not {width:g}")
    check_trace(trace)
    span = _checked(span, span_of(trace))
    lanes = rank_lanes(trace, span)
    path = tuple(critical or ())
    density = _density(trace, lanes, span, width, merge)
    frame = _frame(trace, span, width, density.least)
    frame = frame.showing(memory=memory, messages=messages, critical=frozenset(path))
    shades = max((len(lane.stages) for lane in lanes), default=1)
    start, end = makespan_of(trace)
    formula = bubble_line(trace, lanes)
    heading = head(trace, formula, width)
    swatches, words, below = make_legend(
        entries(trace, frame, shades, density.has_blocks, bool(path)),
        MARGIN,
        heading[-1].y + 13,
        width - MARGIN,
    )
    top = round(below + 18, 2)
    step = frame.height + frame.sizes.gap
    rows = tuple(
        make_row(frame, lane, items, work, round(top + i * step, 2), end - start)
        for i, (lane, items, work) in enumerate(
            zip(lanes, density.lanes, work_of(trace), strict=True)
        )
    )
    plot = Box(frame.left, top, frame.width, round(max(len(rows) * step - frame.sizes.gap, 0), 2))
    unit = scale.time_unit(trace.unit, span[1] - span[0])
    ticks, axis, notes = make_ticks(frame, unit), axis_label(unit.name), foot(trace, plot, width)
    busiest = max((lane.busy for lane in lanes), default=0.0)
    return Layout(
        title=scale.printable(trace.title),
        origin=trace.origin,
        unit=trace.unit,
        formula=formula,
        axis=axis,
        memory_unit=trace.memory_unit,
        memory_limit=trace.memory_limit,
        width=width,
        height=round(plot.bottom + 46 + (15 * len(notes) + 8 if notes else 0), 2),
        plot=plot,
        span=span,
        shades=shades,
        makespan=end - start,
        busiest=busiest,
        bubble=end - start - busiest,
        rows=rows,
        ticks=ticks,
        links=_links(rows, path),
        legend=swatches,
        texts=(
            *heading,
            *words,
            *row_texts(trace, frame, rows),
            *axis_texts(ticks, axis, plot),
            *notes,
        ),
    )


def _checked(span: tuple[float, float] | None, needed: tuple[float, float]) -> tuple[float, float]:
    if span is None:
        return needed
    if span[0] > needed[0] or span[1] < needed[1]:
        raise ValueError(f"the trace runs from {needed[0]:g} to {needed[1]:g}: {span} cuts it")
    return span


def _plot(trace: Trace, width: float) -> tuple[float, float]:
    """Left edge and width of the plot: what names and figures leave."""
    size = Sizes.of(trace.ranks).font
    left = round(MARGIN + scale.text_width(f"rank {max(trace.ranks - 1, 0)}", size) + 10, 2)
    return left, round(width - left - right_room(trace), 2)


def _density(
    trace: Trace,
    lanes: tuple[RankLane, ...],
    span: tuple[float, float],
    width: float,
    merge: bool,
) -> Density:
    """The lanes with what is too narrow merged, unless ``merge`` is false or no time passes."""
    length = span[1] - span[0]
    if not merge or length <= 0:
        return Density(LEAST, tuple(lane.cells for lane in lanes))
    return thin(lanes, _plot(trace, width)[1] / length)


def _frame(trace: Trace, span: tuple[float, float], width: float, least: float) -> Frame:
    """The scale, and all lanes that the trace has data for."""
    sizes = Sizes.of(trace.ranks)
    left, inner = _plot(trace, width)
    length = span[1] - span[0]
    pixels = inner / length if length > 0 else 0.0
    peak = max((amount for curve in trace.memory for _, amount in curve), default=0.0)
    work = work_of(trace)
    return Frame(
        left=left,
        width=inner,
        span=span,
        sizes=sizes,
        least=least,
        font=_font(trace, pixels, sizes),
        labelled=_labelled(trace, pixels),
        critical=frozenset(),
        messages=bool(trace.messages),
        others=max((other_lanes(w.others, span) for w in work), default=0),
        memory=any(trace.memory),
        heights=Heights.of(peak, trace.memory_limit, max(least, LEAST)),
    )


def _font(trace: Trace, pixels: float, sizes: Sizes) -> float:
    """The largest size (8 to the rows' own) at which nearly every microbatch number fits."""
    rooms = sorted((t.end - t.start) * pixels for t in trace.tasks)
    room = rooms[len(rooms) // 50] if rooms else 0.0
    label = str(max(trace.microbatches - 1, 0))
    fitting = [size for size in (12, 11, 10, 9) if scale.text_width(label, size) + 4 <= room]
    return float(min(sizes.font, fitting[0] if fitting else 8))


def _labelled(trace: Trace, pixels: float) -> frozenset[str]:
    """The operations of which at least half can show their microbatch: all of a kind or none."""
    balance: dict[str, int] = {}
    for task in trace.tasks:
        shown = fits(str(task.microbatch), LEAST_FONT, (task.end - task.start) * pixels)
        balance[task.op] = balance.get(task.op, 0) + (1 if shown else -1)
    return frozenset(op for op, more in balance.items() if more >= 0)


def _links(rows: tuple[Row, ...], path: tuple[Key, ...]) -> tuple[Link, ...]:
    """Lines between operations that follow each other on the critical path on different ranks."""
    boxes = {
        (op.op, op.stage, op.microbatch): (row.rank, op)
        for row in rows
        for op in row.ops
        if op.critical
    }
    links: list[Link] = []
    for before, after in pairwise(path):
        if before not in boxes or after not in boxes:
            continue
        (rank, one), (other, two) = boxes[before], boxes[after]
        if rank != other:
            down = other > rank
            y1, y2 = (one.bottom, two.y) if down else (one.y, two.bottom)
            links.append(Link(one.right, y1, two.x, y2))
    return tuple(links)
