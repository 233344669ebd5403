"""A rank's memory as a step line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from schedc.visualize.geometry import Box, Curve

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Heights:
    """The vertical scale, the same for all ranks: ``top`` is the amount at a lane's upper edge.

    Of samples in a column of ``column`` pixels only the highest and the last are drawn.
    """

    top: float
    limit: float | None
    column: float

    @staticmethod
    def of(peak: float, limit: float | None, column: float) -> Heights:
        """Leaves room above the peak, and shows the limit unless that would flatten the curves."""
        if limit is not None and limit > 4 * peak > 0:
            limit = None
        return Heights(1.12 * max(peak, limit or 0.0), limit, column)


def make_curve(lane: Box, samples: Sequence[Point], heights: Heights) -> Curve:
    """The curve through ``samples``, (x, amount from there on), inside ``lane``."""

    def height(amount: float) -> float:
        share = amount / heights.top if heights.top > 0 else 0.0
        return round(lane.bottom - share * lane.h, 2)

    points: list[Point] = [(lane.x, height(0.0))]
    peak, peak_at = 0.0, points[0]
    for at, amount in _thinned(samples, heights.column):
        x = min(max(at, lane.x), lane.right)
        points += [(x, points[-1][1]), (x, height(amount))]
        if amount > peak:
            peak, peak_at = amount, (x, height(amount))
    points.append((lane.right, points[-1][1]))
    limit_y = None if heights.limit is None else height(heights.limit)
    return Curve(lane, _corners(points), peak, peak_at, limit_y)


def _thinned(samples: Sequence[Point], column: float) -> Iterable[Point]:
    """The highest and the last sample of each column."""
    held: list[Point] = []
    for sample in samples:
        if held and sample[0] - held[0][0] >= column:
            yield from _highest_and_last(held)
            held.clear()
        held.append(sample)
    yield from _highest_and_last(held)


def _highest_and_last(column: list[Point]) -> Iterable[Point]:
    if not column:
        return
    highest = max(column, key=lambda sample: sample[1])
    yield highest
    if column[-1][1] != highest[1]:
        yield column[-1]


def _corners(points: list[Point]) -> tuple[Point, ...]:
    """``points`` without repeats and without those inside a straight stretch."""
    kept: list[Point] = []
    for point in points:
        if kept and kept[-1] == point:
            continue
        if len(kept) >= 2 and _between(kept[-2], kept[-1], point):
            kept[-1] = point
        else:
            kept.append(point)
    return tuple(kept)


def _between(first: Point, middle: Point, last: Point) -> bool:
    """Whether ``middle`` lies on the straight, axis-parallel way from ``first`` to ``last``."""
    (x0, y0), (x1, y1), (x2, y2) = first, middle, last
    return (x0 == x1 == x2 and (y0 <= y1 <= y2 or y0 >= y1 >= y2)) or (
        y0 == y1 == y2 and x0 <= x1 <= x2
    )
