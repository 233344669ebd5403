"""The chart as SVG: one self-contained text, the same bytes for the same layout."""

from __future__ import annotations

from collections.abc import Iterable
from xml.sax.saxutils import escape

from schedc.visualize import palette, scale
from schedc.visualize.geometry import (
    BlockBox,
    Box,
    Layout,
    MessageBox,
    OpBox,
    OtherBox,
    Row,
    Swatch,
    Text,
)

FONTS = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
TOOLTIPS = 4000
"""With more boxes than this, no operation carries a tooltip: the file would double."""

STYLES = {
    "title": f'font-weight="bold" fill="{palette.INK}"',
    "subtitle": f'fill="{palette.FAINT_INK}"',
    "formula": f'fill="{palette.INK}"',
    "legend": f'fill="{palette.INK}"',
    "rank": f'font-weight="bold" fill="{palette.INK}"',
    "stages": f'fill="{palette.FAINT_INK}"',
    "busy": f'fill="{palette.INK}"',
    "memory": f'fill="{palette.MEMORY_LINE}"',
    "tick": f'fill="{palette.FAINT_INK}"',
    "note": f'fill="{palette.FAINT_INK}"',
}

HATCH = (
    "<defs>"
    '<pattern id="schedc-idle" width="6" height="6" patternUnits="userSpaceOnUse">'
    f'<rect width="6" height="6" fill="{palette.IDLE}"/>'
    f'<path d="M-1 1L1 -1M0 6L6 0M5 7L7 5" stroke="{palette.IDLE_HATCH}" stroke-width="0.9"/>'
    "</pattern></defs>"
)


def to_svg(layout: Layout) -> str:
    """The layout as an SVG document, with a title, a description and tooltips for screen readers.

    Each rank is a group with the classes ``idle``, ``op``, ``block``, ``messages``, ``others`` and
    ``memory`` inside. Only boxes of the layout are drawn, at its coordinates.
    """
    size = f"{_n(layout.width)} {_n(layout.height)}"
    tooltips = layout.boxes <= TOOLTIPS
    lines = [
        '<?xml version="1.0" encoding="UTF-8"?>',
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_n(layout.width)}" '
        f'height="{_n(layout.height)}" viewBox="0 0 {size}" role="img" '
        f'aria-labelledby="schedc-title schedc-desc" font-family="{FONTS}">',
        f'<title id="schedc-title">{escape(layout.title)}</title>',
        f'<desc id="schedc-desc">{escape(_description(layout))}</desc>',
        HATCH,
        f'<rect width="{_n(layout.width)}" height="{_n(layout.height)}" '
        f'fill="{palette.BACKGROUND}"/>',
        *_grid(layout),
    ]
    for row in layout.rows:
        lines += [f'<g class="rank" id="rank-{row.rank}">', *_row(layout, row, tooltips), "</g>"]
    lines += [*_critical(layout), *_axis(layout)]
    lines += [_swatch(layout, swatch) for swatch in layout.legend]
    lines += [_text(text) for text in layout.texts]
    return "\n".join((*lines, "</svg>")) + "\n"


def _description(layout: Layout) -> str:
    busy = ", ".join(f"rank {r.rank} {scale.percent(r.utilisation)}" for r in layout.rows)
    return f"A bubble diagram ({layout.origin}). {layout.formula}. Busy: {busy}."


def _grid(layout: Layout) -> Iterable[str]:
    top, bottom = layout.plot.y, layout.plot.bottom
    path = "".join(f"M{_n(tick.x)} {_n(top - 4)}V{_n(bottom)}" for tick in layout.ticks)
    yield f'<path class="grid" d="{path}" stroke="{palette.GRID}" stroke-width="1" fill="none"/>'


def _row(layout: Layout, row: Row, tooltips: bool) -> Iterable[str]:
    """A rank's lanes, what is drawn alike in one group."""
    yield from _memory(row)
    for outside, name in ((False, "idle"), (True, "idle outside")):
        faint = ' opacity="0.45"' if outside else ""
        yield f'<g class="{name}" fill="url(#schedc-idle)"{faint}>'
        yield from (_rect(gap) for gap in row.gaps if gap.outside == outside)
        yield "</g>"
    groups: dict[tuple[str, int, bool], list[OpBox]] = {}
    for op in row.ops:
        groups.setdefault((op.op, op.shade, op.w >= 5), []).append(op)
    for (kind, shade, edged), ops in sorted(groups.items()):
        color = palette.fill(kind, shade, layout.shades)
        edge = f' stroke="{palette.edge(color)}" stroke-width="0.6"' if edged else ""
        yield f'<g class="op {_attribute(kind)}" fill="{color}"{edge}>'
        yield from (_rect(op, _tooltip(layout, op) if tooltips else "") for op in ops)
        yield "</g>"
    yield from _blocks(row.blocks, layout)
    yield from _labels(row.ops, layout)
    yield from _message_lane(row)
    for kind, color in (("send", palette.SEND), ("arrival", palette.ARRIVAL)):
        messages = [message for message in row.messages if message.direction == kind]
        if messages:
            yield f'<g class="messages {kind}" fill="{color}">'
            yield from (_rect(m, _times(layout, m, m.text) if tooltips else "") for m in messages)
            yield "</g>"
    if row.others:
        edge = palette.edge(palette.OTHER)
        yield f'<g class="others" fill="{palette.OTHER}" stroke="{edge}" stroke-width="0.5">'
        yield from (_rect(o, _times(layout, o, scale.printable(o.name))) for o in row.others)
        yield "</g>"
        yield f'<g font-size="8" text-anchor="middle" fill="{palette.INK}">'
        yield from (_centred(other, other.label, 8) for other in row.others if other.label)
        yield "</g>"


def _message_lane(row: Row) -> Iterable[str]:
    if row.message_lane is not None:
        yield _rect(row.message_lane, style=f'class="lane" fill="{palette.MESSAGE_LANE}"')


def _blocks(blocks: tuple[BlockBox, ...], layout: Layout) -> Iterable[str]:
    """Each block is a stack: the height of a colour is its share of the time."""
    stacks: dict[str, list[Box]] = {}
    for block in blocks:
        y = block.y
        for kind, share in block.shares:
            bottom = round(y + share * block.h, 2)
            stacks.setdefault(kind, []).append(Box(block.x, y, block.w, round(bottom - y, 2)))
            y = bottom
    middle = layout.shades // 2
    for kind, boxes in sorted(stacks.items()):
        color = palette.fill(kind, middle, layout.shades)
        paint = "url(#schedc-idle)" if kind == "idle" else color
        yield f'<g class="block {_attribute(kind)}" fill="{paint}" shape-rendering="crispEdges">'
        yield from (_rect(box) for box in boxes)
        yield "</g>"


def _labels(ops: tuple[OpBox, ...], layout: Layout) -> Iterable[str]:
    """Microbatch numbers, grouped by size and ink."""
    groups: dict[tuple[float, str], list[OpBox]] = {}
    for op in ops:
        if op.label:
            color = palette.ink(palette.fill(op.op, op.shade, layout.shades))
            groups.setdefault((op.size, color), []).append(op)
    for (size, color), members in sorted(groups.items()):
        yield f'<g font-size="{_n(size)}" text-anchor="middle" fill="{color}">'
        yield from (_centred(op, op.label, size) for op in members)
        yield "</g>"


def _memory(row: Row) -> Iterable[str]:
    curve = row.memory
    if curve is None:
        return
    lane = curve.lane
    line = "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in curve.points)
    area = f"{line}V{_n(lane.bottom)}H{_n(curve.points[0][0])}Z"
    yield '<g class="memory" fill="none">'
    yield f'<path d="{area}" fill="{palette.MEMORY_AREA}"/>'
    yield f'<path d="{line}" stroke="{palette.MEMORY_LINE}" stroke-width="1"/>'
    yield (
        f'<path d="M{_n(lane.x)} {_n(lane.bottom)}H{_n(lane.right)}" '
        f'stroke="{palette.IDLE_HATCH}" stroke-width="0.8"/>'
    )
    if curve.limit_y is not None:
        yield (
            f'<path class="limit" d="M{_n(lane.x)} {_n(curve.limit_y)}H{_n(lane.right)}" '
            f'stroke="{palette.LIMIT}" stroke-width="1" stroke-dasharray="5 3"/>'
        )
    yield "</g>"


def _critical(layout: Layout) -> Iterable[str]:
    boxes: list[Box] = [op for row in layout.rows for op in row.ops if op.critical]
    for row in layout.rows:
        boxes += _joined([block for block in row.blocks if block.critical])
    if not boxes:
        return
    yield f'<g class="critical" fill="none" stroke="{palette.CRITICAL}" stroke-width="2">'
    yield from (_rect(box) for box in boxes)
    for link in layout.links:
        way = f"M{_n(link.x1)} {_n(link.y1)}L{_n(link.x2)} {_n(link.y2)}"
        yield f'<path d="{way}" stroke-width="1.4"/>'
    yield "</g>"


def _joined(blocks: list[BlockBox]) -> list[Box]:
    """Neighbouring blocks as one box."""
    joined: list[Box] = []
    for block in blocks:
        if joined and joined[-1].right == block.x:
            start = joined.pop().x
            joined.append(Box(start, block.y, round(block.right - start, 2), block.h))
        else:
            joined.append(Box(block.x, block.y, block.w, block.h))
    return joined


def _axis(layout: Layout) -> Iterable[str]:
    plot, y = layout.plot, layout.plot.bottom + 3
    ticks = "".join(f"M{_n(tick.x)} {_n(y)}v5" for tick in layout.ticks)
    yield (
        f'<path class="axis" d="M{_n(plot.x)} {_n(y)}H{_n(plot.right)}{ticks}" '
        f'stroke="{palette.FAINT_INK}" stroke-width="1" fill="none"/>'
    )


def _swatch(layout: Layout, swatch: Swatch) -> str:
    """A sample, drawn as the thing itself is."""
    box = Box(swatch.x, swatch.y, swatch.w, swatch.h)
    middle = swatch.y + swatch.h / 2
    thin = Box(box.x, round(middle - 2, 2), box.w - 2, 4)
    line = f'd="M{_n(box.x)} {_n(middle)}h{_n(box.w - 2)}" fill="none"'
    match swatch.kind:
        case "op":
            color = palette.fill(swatch.op, swatch.shade, layout.shades)
            return _rect(box, style=f'fill="{color}" stroke="{palette.edge(color)}"')
        case "idle":
            return _rect(box, style='fill="url(#schedc-idle)"')
        case "send":
            return _rect(thin, style=f'fill="{palette.SEND}"')
        case "arrival":
            return _rect(thin, style=f'fill="{palette.ARRIVAL}"')
        case "other":
            return _rect(box, style=f'fill="{palette.OTHER}"')
        case "memory":
            style = f'fill="{palette.MEMORY_AREA}" stroke="{palette.MEMORY_LINE}"'
            return _rect(box, style=style)
        case "limit":
            return f'<path {line} stroke="{palette.LIMIT}" stroke-dasharray="5 3"/>'
        case "critical":
            return _rect(box, style=f'fill="none" stroke="{palette.CRITICAL}" stroke-width="2"')


def _tooltip(layout: Layout, op: OpBox) -> str:
    what = f"{op.op} of stage {op.stage}, microbatch {op.microbatch}"
    place = f"\n{scale.printable(op.place)}" if op.place else ""
    return _times(layout, op, what) + place


def _times(layout: Layout, box: OpBox | MessageBox | OtherBox, what: str) -> str:
    unit = scale.time_unit(layout.unit, layout.span[1] - layout.span[0])
    first = (box.start - layout.span[0]) * unit.factor
    last = (box.end - layout.span[0]) * unit.factor
    name = f" {unit.name}" if unit.name else ""
    return f"{what}\n{scale.number(first, 5)} to {scale.number(last, 5)}{name}"


def _text(text: Text) -> str:
    anchor = "" if text.anchor == "start" else f' text-anchor="{text.anchor}"'
    return (
        f'<text x="{_n(text.x)}" y="{_n(text.y)}" font-size="{_n(text.size)}"{anchor} '
        f"{STYLES[text.kind]}>{escape(text.text)}</text>"
    )


def _centred(box: Box, label: str, size: float) -> str:
    x, y = box.x + box.w / 2, box.y + box.h / 2 + 0.36 * size
    return f'<text x="{_n(x)}" y="{_n(y)}">{escape(label)}</text>'


def _rect(box: Box, tooltip: str = "", style: str = "") -> str:
    shape = f'<rect x="{_n(box.x)}" y="{_n(box.y)}" width="{_n(box.w)}" height="{_n(box.h)}"'
    shape += f" {style}" if style else ""
    return f"{shape}><title>{escape(tooltip)}</title></rect>" if tooltip else f"{shape}/>"


def _attribute(text: str) -> str:
    return escape(scale.printable(text), {'"': "&quot;"})


def _n(value: float) -> str:
    """A length without needless digits."""
    return f"{value:.2f}".rstrip("0").rstrip(".")
