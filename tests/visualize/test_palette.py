"""The colours keep apart: in grey, and for eyes that lack one kind of cone."""

from __future__ import annotations

import itertools
import math

import pytest

from schedc.visualize import palette

# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
SIGHT = {
    "protan": ((0.152, 1.053, -0.205), (0.115, 0.786, 0.099), (-0.004, -0.048, 1.052)),
    "deutan": ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969)),
    "tritan": ((1.256, -0.077, -0.179), (-0.078, 0.931, 0.148), (0.005, 0.691, 0.304)),
    "usual": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
}


def lab(color: str, sight: str) -> tuple[float, float, float]:
    """CIELAB (D65) of a colour as seen with ``sight``."""
    linear = [
        v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4
        for v in (value / 255 for value in palette.rgb(color))
    ]
    r, g, b = (
        min(1, max(0, sum(w * v for w, v in zip(row, linear, strict=True)))) for row in SIGHT[sight]
    )
    xyz = (
        (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505,
        0.2126 * r + 0.7152 * g + 0.0722 * b,
        (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089,
    )
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("sight", SIGHT)
def test_operations_differ_to_every_eye(sight: str) -> None:
    colors = {**palette.BASE, "idle": palette.IDLE}
    for one, two in itertools.combinations(colors, 2):
        distance = math.dist(lab(colors[one], sight), lab(colors[two], sight))
        assert distance > 15, (one, two)  # 2.3 is just noticeable


def test_operations_differ_in_a_grey_print() -> None:
    for together in ("FIWR", "FBR"):
        greys = sorted(palette.lightness(palette.BASE[op]) for op in together)
        assert min(b - a for a, b in itertools.pairwise(greys)) > 8


def test_two_stages_differ_in_a_grey_print() -> None:
    for together in ("FIW", "FB"):
        fills = [palette.fill(op, shade, 2) for op in together for shade in (0, 1)]
        greys = sorted(map(palette.lightness, fills))
        assert min(b - a for a, b in itertools.pairwise(greys)) > 7


@pytest.mark.parametrize("op", palette.BASE)
def test_stages_go_from_dark_to_light(op: str) -> None:
    assert palette.fill(op, 0, 1) == palette.BASE[op]
    for shades in (2, 3, 4, 8):
        greys = [palette.lightness(palette.fill(op, i, shades)) for i in range(shades)]
        assert greys == sorted(set(greys))


def test_numbers_are_readable_on_their_colour() -> None:
    for op in palette.BASE:
        for shades in (1, 2, 4):
            for shade in range(shades):
                color = palette.fill(op, shade, shades)
                distance = palette.lightness(color) - palette.lightness(palette.ink(color))
                assert abs(distance) > 38
