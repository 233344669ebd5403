"""The rows of a chart: boxes and curves of one rank, from times to pixels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from schedc.ir.trace import Trace, TraceMessage, TraceOther, TraceTask
from schedc.visualize import scale
from schedc.visualize.curve import Heights, make_curve
from schedc.visualize.density import LEAST, Block
from schedc.visualize.geometry import (
    BlockBox,
    Box,
    GapBox,
    MessageBox,
    OpBox,
    OtherBox,
    Row,
)
from schedc.visualize.lanes import TOLERANCE, Cell, RankLane, sublanes

Key = tuple[str, int, int]
"""An operation, a stage, a microbatch."""

LEAST_FONT = 8.0
TICK = 2.0
"""The least width of a message: one without duration is still seen."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Heights of a row's lanes, and the space around them."""

    lane: float
    message: float
    other: float
    memory: float
    between: float
    gap: float
    font: float

    @staticmethod
    def of(ranks: int) -> Sizes:
        """Rows shrink as ranks grow in number."""
        if ranks <= 8:
            return Sizes(28, 8, 11, 26, 3, 15, 12)
        if ranks <= 16:
            return Sizes(22, 8, 10, 20, 2, 11, 11)
        if ranks <= 32:
            return Sizes(16, 4, 8, 14, 2, 8, 10)
        return Sizes(11, 4, 6, 9, 1, 5, 9)


@dataclass(frozen=True, slots=True)
class Work:
    """What a rank does besides operations."""

    sends: tuple[TraceMessage, ...] = ()
    arrivals: tuple[TraceMessage, ...] = ()
    others: tuple[TraceOther, ...] = ()
    memory: tuple[tuple[float, float], ...] = ()


def work_of(trace: Trace) -> tuple[Work, ...]:
    """Each rank's messages, other work and memory."""
    sends: list[list[TraceMessage]] = [[] for _ in range(trace.ranks)]
    arrivals: list[list[TraceMessage]] = [[] for _ in range(trace.ranks)]
    others: list[list[TraceOther]] = [[] for _ in range(trace.ranks)]
    for message in trace.messages:
        sends[message.source].append(message)
        arrivals[message.target].append(message)
    for other in trace.others:
        others[other.rank].append(other)
    return tuple(
        Work(tuple(sends[r]), tuple(arrivals[r]), tuple(others[r]), memory)
        for r, memory in zip(range(trace.ranks), (*trace.memory, *[()] * trace.ranks), strict=False)
    )


@dataclass(frozen=True, slots=True)
class Frame:
    """What all rows share: the scale, the sizes, and which lanes there are.

    ``least`` is the width below which cells merge, ``others`` the number of lanes for other work,
    ``labelled`` the operations that carry their microbatch.
    """

    left: float
    width: float
    span: tuple[float, float]
    sizes: Sizes
    least: float
    font: float
    labelled: frozenset[str]
    critical: frozenset[Key]
    messages: bool
    others: int
    memory: bool
    heights: Heights

    @property
    def pixels(self) -> float:
        """Pixels a unit of time."""
        length = self.span[1] - self.span[0]
        return self.width / length if length > 0 else 0.0

    def showing(self, memory: bool, messages: bool, critical: frozenset[Key]) -> Frame:
        """The frame with only those of its lanes that are asked for."""
        memory, messages = self.memory and memory, self.messages and messages
        return replace(self, memory=memory, messages=messages, critical=critical)

    def x(self, time: float) -> float:
        return round(self.left + (time - self.span[0]) * self.pixels, 2)

    def box(self, start: float, end: float, y: float, height: float) -> Box:
        """The rectangle of a stretch of time; neighbours in time share an edge exactly."""
        left = self.x(start)
        return Box(left, round(y, 2), round(self.x(end) - left, 2), round(height, 2))

    @property
    def height(self) -> float:
        """The height of a row without the space below it."""
        sizes, lanes = self.sizes, self.sizes.lane
        lanes += sizes.between + sizes.message if self.messages else 0
        lanes += (sizes.between + sizes.other) * self.others
        return lanes + (sizes.between + sizes.memory if self.memory else 0)


def make_row(
    frame: Frame,
    lane: RankLane,
    items: tuple[Cell | Block, ...],
    work: Work,
    y: float,
    makespan: float,
) -> Row:
    """The row of one rank with its upper edge at ``y``; ``items`` are what its lane shows."""
    sizes = frame.sizes
    ops: list[OpBox] = []
    blocks: list[BlockBox] = []
    gaps: list[GapBox] = []
    for item in items:
        if isinstance(item, Block):
            blocks.append(_block_box(frame, item, y))
        elif item.tasks:
            ops.extend(_op_boxes(frame, item, lane.stages, y))
        else:
            box = frame.box(item.start, item.end, y, sizes.lane)
            if box.w > 0:
                gaps.append(GapBox(box.x, box.y, box.w, box.h, item.start, item.end, item.outside))
    whole = frame.box(*frame.span, y, sizes.lane)
    y += sizes.lane + sizes.between
    messages: tuple[MessageBox, ...] = ()
    message_lane = frame.box(*frame.span, y, sizes.message) if frame.messages else None
    if frame.messages:
        half = sizes.message / 2
        messages = (
            *_messages(frame, "send", work.sends, y, half),
            *_messages(frame, "arrival", work.arrivals, y + half, half),
        )
        y += sizes.message + sizes.between
    others = _others(frame, work.others, y)
    y += (sizes.other + sizes.between) * frame.others
    curve = None
    if frame.memory:
        area = frame.box(*frame.span, y, sizes.memory)
        curve = make_curve(area, [(frame.x(t), a) for t, a in work.memory], frame.heights)
    return Row(
        rank=lane.rank,
        stages=lane.stages,
        busy=lane.busy,
        utilisation=lane.busy / makespan if makespan > 0 else 0.0,
        lane=whole,
        ops=tuple(ops),
        blocks=tuple(blocks),
        gaps=tuple(gaps),
        message_lane=message_lane,
        messages=messages,
        others=others,
        memory=curve,
    )


def key_of(task: TraceTask) -> Key:
    return task.op, task.stage, task.microbatch


def fits(label: str, size: float, width: float) -> bool:
    """Whether a label of ``size`` pixels goes into an operation ``width`` pixels wide."""
    return scale.text_width(label, size) + 1 <= width


def _op_boxes(frame: Frame, cell: Cell, stages: tuple[int, ...], y: float) -> Iterable[OpBox]:
    height = frame.sizes.lane / cell.width
    for task, lane in zip(cell.tasks, cell.lanes, strict=True):
        box = frame.box(task.start, task.end, y + lane * height, height)
        label, size = str(task.microbatch), min(frame.font, height - 1)
        if not fits(label, size, box.w):
            size = LEAST_FONT
        if not fits(label, size, box.w) or size > height - 1 or task.op not in frame.labelled:
            label, size = "", 0.0
        yield OpBox(
            *(box.x, box.y, box.w, box.h),
            op=task.op,
            stage=task.stage,
            microbatch=task.microbatch,
            start=task.start,
            end=task.end,
            place=task.place,
            shade=stages.index(task.stage),
            label=label,
            size=size,
            critical=key_of(task) in frame.critical,
        )


def _block_box(frame: Frame, block: Block, y: float) -> BlockBox:
    box = frame.box(block.start, block.end, y, frame.sizes.lane)
    critical = any(key_of(task) in frame.critical for task in block.tasks)
    count = len(block.tasks)
    ends = block.start, block.end
    return BlockBox(box.x, box.y, box.w, box.h, *ends, count, block.shares, critical)


def _messages(
    frame: Frame,
    direction: Literal["send", "arrival"],
    messages: tuple[TraceMessage, ...],
    y: float,
    height: float,
) -> Iterable[MessageBox]:
    """Boxes that would touch become one; in a crowded chart also those that nearly do."""
    near = 0.0 if frame.least <= LEAST else 4 * frame.least
    groups: list[list[TraceMessage]] = []
    edges: list[tuple[float, float]] = []
    for message in sorted(messages, key=lambda m: (m.start, m.end, m.kind, m.stage, m.microbatch)):
        left = frame.x(message.start)
        right = max(frame.x(message.end), round(left + TICK, 2))
        if edges and left < edges[-1][1] + near:
            groups[-1].append(message)
            edges[-1] = edges[-1][0], max(edges[-1][1], right)
        else:
            groups.append([message])
            edges.append((left, right))
    for (left, right), group in zip(edges, groups, strict=True):
        yield MessageBox(
            *(left, round(y, 2), round(right - left, 2), height),
            direction=direction,
            start=group[0].start,
            end=max(message.end for message in group),
            count=len(group),
            text=_message_text(group[0]) if len(group) == 1 else f"{len(group)} messages",
        )


def _message_text(message: TraceMessage) -> str:
    what = "activation" if message.kind == "F" else "gradient"
    return (
        f"{what} of stage {message.stage}, microbatch {message.microbatch}, "
        f"rank {message.source} to rank {message.target}"
    )


def other_lanes(others: Iterable[TraceOther], span: tuple[float, float]) -> int:
    """How many lanes a rank's other work needs, so that none overlap."""
    spans = sorted((o.start, o.end) for o in others)
    return max(sublanes(spans, TOLERANCE * (span[1] - span[0])), default=-1) + 1


def _others(frame: Frame, others: Iterable[TraceOther], y: float) -> tuple[OtherBox, ...]:
    others = sorted(others, key=lambda o: (o.start, o.end, o.name))
    same = TOLERANCE * (frame.span[1] - frame.span[0])
    lanes = sublanes([(o.start, o.end) for o in others], same)
    height, step = frame.sizes.other, frame.sizes.other + frame.sizes.between
    boxes: list[OtherBox] = []
    for other, lane in zip(others, lanes, strict=True):
        box = frame.box(other.start, other.end, y + lane * step, height)
        label = ""
        if height > LEAST_FONT:
            names = (scale.printable(other.name), *scale.first_words([other.name]))
            label = next((name for name in names if fits(name, LEAST_FONT, box.w)), "")
        boxes.append(
            OtherBox(box.x, box.y, box.w, box.h, other.name, other.start, other.end, label)
        )
    return tuple(boxes)
