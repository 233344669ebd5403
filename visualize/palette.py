"""The colours, and the words of the legend.

Told apart by hue (also by those who do not see red or green), and in a grey print by lightness:
tests/visualize holds the distances.
"""

from __future__ import annotations

BASE = {
    "F": "#397AF2",
    "I": "#44D3DA",
    "W": "#C3EDB4",
    "B": "#F5962D",
    "R": "#6B4BA3",
}
"""A stage's colour where its rank holds only one."""

NAMES = {
    "F": "forward",
    "B": "backward",
    "I": "input gradient",
    "W": "weight gradient",
    "R": "recompute",
}

UNKNOWN = "#B9B9C3"
BACKGROUND = "#FFFFFF"
INK = "#1B1F27"
FAINT_INK = "#5E6573"
GRID = "#E4E6EB"
IDLE = "#F4F5F7"
IDLE_HATCH = "#C3C8D1"
MESSAGE_LANE = "#FDF4E0"
SEND = "#A86A00"
ARRIVAL = "#F5B82E"
OTHER = "#9AA1AD"
MEMORY_LINE = "#5B5F77"
MEMORY_AREA = "#E3E4EF"
LIMIT = "#C2323A"
CRITICAL = "#111318"

SPREAD = {
    "F": (-0.14, 0.10),
    "I": (-0.18, -0.02),
    "W": (-0.05, 0.45),
    "B": (-0.08, 0.18),
    "R": (-0.14, 0.10),
}
"""How far the first of two stages of a rank goes to black (below 0) or white, and the last one.

So that with two stages the greys of F, I and W, and those of F and B, still do not meet.
"""

MORE = 1.5
"""With more than two stages the spread is that many times as wide."""


def fill(op: str, shade: int, shades: int) -> str:
    """The colour of ``op`` for the ``shade``-th of ``shades`` stages of a rank, dark to light."""
    base = BASE.get(op, UNKNOWN)
    if shades <= 1:
        return base
    first, last = SPREAD.get(op, SPREAD["F"])
    amount = (first + (last - first) * shade / (shades - 1)) * (MORE if shades > 2 else 1)
    return mix(base, "#FFFFFF" if amount > 0 else "#000000", abs(amount))


def ink(background: str) -> str:
    """White or near black, whichever reads better on ``background``."""
    return "#FFFFFF" if lightness(background) < 60 else INK


def edge(background: str) -> str:
    """The border of a box of that colour: the same, darker."""
    return mix(background, "#000000", 0.35)


def rgb(color: str) -> tuple[int, int, int]:
    """``#RRGGBB`` as three numbers."""
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


def mix(color: str, other: str, amount: float) -> str:
    """``color`` moved towards ``other`` by ``amount`` (0 to 1)."""
    pairs = zip(rgb(color), rgb(other), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * amount):02X}" for a, b in pairs)


def lightness(color: str) -> float:
    """CIE L*, 0 (black) to 100 (white): what is left of ``color`` in a grey print."""

    def linear(value: int) -> float:
        v = value / 255
        return v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4

    red, green, blue = (linear(value) for value in rgb(color))
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return 116 * y ** (1 / 3) - 16 if y > 0.008856 else 903.3 * y
