"""A chart as a file: the suffix chooses the writer."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from schedc.ir.trace import Trace
from schedc.visualize.layout import layout
from schedc.visualize.png import to_png
from schedc.visualize.rows import Key
from schedc.visualize.svg import to_svg
from schedc.visualize.terminal import to_terminal

SUFFIXES = (".svg", ".png", ".json", ".txt")


def write_chart(
    trace: Trace,
    path: Path,
    *,
    width: float = 1200,
    columns: int = 100,
    scale: float = 2.0,
    memory: bool = True,
    messages: bool = True,
    critical: Iterable[Key] | None = None,
    span: tuple[float, float] | None = None,
) -> None:
    """Writes a chart of ``trace`` to ``path``: .svg, .png, .json (the layout) or .txt.

    ``columns`` is the width of a .txt and ``scale`` the pixels of a .png for each of ``width``;
    the rest is for ``layout``. Raises ValueError for another suffix, RuntimeError for a .png
    without the extra ``png``; then no file is written.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        allowed = ", ".join(SUFFIXES)
        raise ValueError(f"cannot write a chart to {path.name!r}: the suffix is one of {allowed}")
    if suffix == ".txt":
        text = to_terminal(trace, columns, color=False, memory=memory)
        path.write_bytes(text.encode())
        return
    chart = layout(
        trace, width=width, memory=memory, messages=messages, critical=critical, span=span
    )
    if suffix == ".json":
        path.write_bytes(chart.to_json().encode())
    elif suffix == ".svg":
        path.write_bytes(to_svg(chart).encode())
    else:
        path.write_bytes(to_png(to_svg(chart), scale))
