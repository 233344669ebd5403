"""The legend: a sample and a word for everything that the chart shows, and for nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from schedc.ir.trace import Trace
from schedc.visualize import palette, scale
from schedc.visualize.geometry import Swatch, SwatchKind, Text
from schedc.visualize.rows import Frame

SIZE = 11.0
SAMPLE = 14.0
LINE = 20.0


@dataclass(frozen=True, slots=True)
class Entry:
    """A word and its samples; an operation has one for each stage of a rank."""

    kind: SwatchKind
    word: str
    op: str = ""
    samples: int = 1


def make_legend(
    entries: Iterable[Entry], left: float, top: float, right: float
) -> tuple[tuple[Swatch, ...], tuple[Text, ...], float]:
    """Swatches and words in lines between ``left`` and ``right``, and the y below them."""
    swatches: list[Swatch] = []
    words: list[Text] = []
    x, y = left, top
    for entry in entries:
        room = entry.samples * SAMPLE + 5 + scale.text_width(entry.word, SIZE)
        if x > left and x + room > right:
            x, y = left, y + LINE
        for shade in range(entry.samples):
            at = round(x + shade * SAMPLE, 2)
            swatches.append(
                Swatch(at, round(y, 2), SAMPLE, 12, kind=entry.kind, op=entry.op, shade=shade)
            )
        at = round(x + entry.samples * SAMPLE + 5, 2)
        words.append(Text(at, round(y + 10, 2), entry.word, SIZE, "start", "legend"))
        x = round(x + room + 14, 2)
    return tuple(swatches), tuple(words), y + LINE


def entries(
    trace: Trace, frame: Frame, shades: int, blocks: bool, critical: bool
) -> Iterable[Entry]:
    """What ``make_legend`` is to explain for this chart, in the order of reading."""
    seen = {task.op for task in trace.tasks}
    known = [op for op in palette.NAMES if op in seen]
    for op in (*known, *sorted(seen - set(known))):
        name = palette.NAMES.get(op)
        yield Entry("op", f"{op} {name}" if name else op, op, min(shades, 8))
    if shades > 1:
        yield Entry("op", f"dark to light: 1st to {_nth(shades)} stage of the rank", samples=0)
    yield Entry("idle", "idle")
    if blocks:
        yield Entry("op", "stacked: shares of the time", samples=0)
    if frame.messages:
        yield Entry("send", "sends")
        yield Entry("arrival", "arrivals")
    if frame.others:
        yield Entry("other", ", ".join(scale.first_words(o.name for o in trace.others)))
    if frame.memory:
        amounts = [amount for curve in trace.memory for _, amount in curve]
        unit = scale.memory_unit(trace.memory_unit, max(amounts, default=0.0))
        what = "activation units" if trace.memory_unit == "units" else unit.name
        yield Entry("memory", f"memory ({what})")
        if trace.memory_limit is not None:
            unit = scale.memory_unit(trace.memory_unit, trace.memory_limit)
            limit = scale.number(trace.memory_limit * unit.factor)
            name = "" if trace.memory_unit == "units" else f" {unit.name}"
            above = " (above the curves' scale)" if frame.heights.limit is None else ""
            yield Entry("limit", f"limit {limit}{name}{above}")
    if critical:
        yield Entry("critical", "critical path")


def _nth(n: int) -> str:
    return f"{n}{'th' if 10 <= n % 100 <= 20 else {1: 'st', 2: 'nd', 3: 'rd'}.get(n % 10, 'th')}"
