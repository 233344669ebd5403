"""What a bubble diagram consists of: boxes, curves and texts at fixed places.

Lengths are pixels, rounded to 1/100, y downwards; ``start`` and ``end`` are the trace's own times.
Every writer draws these values and computes no place of its own.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Literal, cast

SCHEMA = "schedc chart 1"

Anchor = Literal["start", "middle", "end"]
TextKind = Literal[
    "title", "subtitle", "formula", "legend", "rank", "stages", "busy", "memory", "tick", "note"
]
SwatchKind = Literal["op", "idle", "send", "arrival", "other", "memory", "limit", "critical"]


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle."""

    x: float
    y: float
    w: float
    h: float

    @property
    def right(self) -> float:
        return round(self.x + self.w, 2)

    @property
    def bottom(self) -> float:
        return round(self.y + self.h, 2)


@dataclass(frozen=True, slots=True)
class OpBox(Box):
    """One operation. ``shade`` is its stage's place among the stages of its rank (0-based).

    ``label`` is the microbatch, at ``size`` pixels, or empty where it does not fit.
    """

    op: str
    stage: int
    microbatch: int
    start: float
    end: float
    place: str
    shade: int
    label: str
    size: float
    critical: bool


@dataclass(frozen=True, slots=True)
class GapBox(Box):
    """Time in which a rank executes nothing; ``outside`` the makespan it is no bubble."""

    start: float
    end: float
    outside: bool


@dataclass(frozen=True, slots=True)
class BlockBox(Box):
    """Operations and gaps too narrow to tell apart, as shares of their time.

    ``shares`` pairs an operation, or ``"idle"``, with its share; they sum to 1. ``count`` is the
    number of operations in the block, ``critical`` whether the critical path runs through it.
    """

    start: float
    end: float
    count: int
    shares: tuple[tuple[str, float], ...]
    critical: bool


@dataclass(frozen=True, slots=True)
class MessageBox(Box):
    """Time in which messages leave (``send``) or reach (``arrival``) a rank.

    Messages whose boxes touch share one, of which ``count`` is the number and ``text`` says which.
    """

    direction: Literal["send", "arrival"]
    start: float
    end: float
    count: int
    text: str


@dataclass(frozen=True, slots=True)
class OtherBox(Box):
    """A reduction, the norm, the optimizer step and their kind; ``label`` where it fits."""

    name: str
    start: float
    end: float
    label: str


@dataclass(frozen=True, slots=True)
class Curve:
    """A rank's memory: the corners of a step line inside ``lane``, its peak, and the limit.

    ``limit_y`` is None without a limit or where it is far above the scale.
    """

    lane: Box
    points: tuple[tuple[float, float], ...]
    peak: float
    peak_at: tuple[float, float]
    limit_y: float | None


@dataclass(frozen=True, slots=True)
class Row:
    """A pipeline rank: its compute lane, which ops, blocks and gaps tile, and the lanes below."""

    rank: int
    stages: tuple[int, ...]
    busy: float
    utilisation: float
    lane: Box
    ops: tuple[OpBox, ...]
    blocks: tuple[BlockBox, ...]
    gaps: tuple[GapBox, ...]
    message_lane: Box | None
    messages: tuple[MessageBox, ...]
    others: tuple[OtherBox, ...]
    memory: Curve | None


@dataclass(frozen=True, slots=True)
class Text:
    """A line of text; ``y`` is its baseline."""

    x: float
    y: float
    text: str
    size: float
    anchor: Anchor
    kind: TextKind


@dataclass(frozen=True, slots=True)
class Swatch(Box):
    """A sample in the legend; ``op`` and ``shade`` are set for operations."""

    kind: SwatchKind
    op: str
    shade: int


@dataclass(frozen=True, slots=True)
class Tick:
    """A tick of the time axis."""

    x: float
    time: float
    label: str


@dataclass(frozen=True, slots=True)
class Link:
    """A step of the critical path from one rank to another."""

    x1: float
    y1: float
    x2: float
    y2: float


@dataclass(frozen=True, slots=True)
class Layout:
    """A whole chart. ``span`` is the time from the left to the right edge of ``plot``."""

    title: str
    origin: str
    unit: str
    formula: str
    axis: str
    memory_unit: str
    memory_limit: float | None
    width: float
    height: float
    plot: Box
    span: tuple[float, float]
    shades: int
    makespan: float
    busiest: float
    bubble: float
    rows: tuple[Row, ...]
    ticks: tuple[Tick, ...]
    links: tuple[Link, ...]
    legend: tuple[Swatch, ...]
    texts: tuple[Text, ...]

    @property
    def boxes(self) -> int:
        """The number of operations and blocks drawn."""
        return sum(len(row.ops) + len(row.blocks) for row in self.rows)

    def to_json(self) -> str:
        """All of it, one line a rank, keys as the fields are named."""
        head = [
            f"{json.dumps(f.name)}: {json.dumps(_plain(getattr(self, f.name)))}"
            for f in fields(self)
            if f.name != "rows"
        ]
        rows = ",\n  ".join(json.dumps(_plain(row), separators=(",", ":")) for row in self.rows)
        lines = [f'"schema": {json.dumps(SCHEMA)}', *head, f'"rows": [\n  {rows}\n ]']
        return "{\n " + ",\n ".join(lines) + "\n}\n"


def _plain(value: object) -> object:
    """``value`` with its dataclasses as dictionaries and its tuples as lists."""
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in cast("tuple[Any, ...]", value)]
    return value
