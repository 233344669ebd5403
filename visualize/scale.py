"""Numbers for people: units, ticks, the bubble formula, and how wide a text is."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

MINUS = "\N{MINUS SIGN}"


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit in which values are printed: a value times ``factor``, then ``name``."""

    factor: float
    name: str


def time_unit(unit: str, span: float) -> Unit:
    """The unit that prints times of about ``span`` in few digits; cost units have no name."""
    if unit != "s":
        return Unit(1, unit)
    if span >= 1:
        return Unit(1, "s")
    return Unit(1e3, "ms") if span >= 1e-3 or span == 0 else Unit(1e6, "µs")


def memory_unit(unit: str, amount: float) -> Unit:
    """The unit that prints amounts of about ``amount`` in few digits."""
    if unit != "bytes":
        return Unit(1, unit)
    for power, name in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if amount >= 2**power:
            return Unit(2.0**-power, name)
    return Unit(1, "bytes")


def decimals(value: float, digits: int = 3) -> int:
    """The decimals that print ``value`` to ``digits`` digits (none for a large or whole one)."""
    if value == 0 or math.isclose(value, round(value), rel_tol=1e-9):
        return 0
    return min(6, max(0, digits - 1 - math.floor(math.log10(abs(value)))))


def number(value: float, digits: int = 3) -> str:
    """``value`` to ``digits`` digits, without an exponent or trailing zeros."""
    return _fixed(value, decimals(value, digits))


def _fixed(value: float, places: int) -> str:
    """``value`` to ``places`` decimals, without trailing zeros."""
    text = f"{value:.{places}f}"
    text = text.rstrip("0").rstrip(".") if places else text
    return "0" if text == "-0" else text.replace("-", MINUS)


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def formula(makespan: float, busiest: float, unit: Unit) -> str:
    """``bubble = makespan − busiest rank = 33 − 24 = 9 (27.3 %)``.

    The three numbers are rounded alike, so that they add up as printed.
    """
    whole, used = makespan * unit.factor, busiest * unit.factor
    places = decimals(whole, 4) or min(decimals(used, 4), decimals(whole + 0.1, 4))
    whole, used = round(whole, places), round(used, places)
    name = f" {unit.name}" if unit.name else ""
    rate = (makespan - busiest) / makespan if makespan else 0.0
    return (
        f"bubble = makespan {MINUS} busiest rank = {_fixed(whole, places)} {MINUS} "
        f"{_fixed(used, places)} = {_fixed(whole - used, places)}{name} ({percent(rate)})"
    )


def ticks(span: float, room: float, each: float) -> tuple[float, ...]:
    """Multiples of 1, 2 or 5 times a power of ten from 0 to ``span``.

    ``room`` is the length of the axis and ``each`` the least distance of two ticks, in one unit.
    """
    if span <= 0:
        return (0.0,)
    least = span * each / max(room, each)
    power = 10.0 ** math.floor(math.log10(least))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= least * (1 - 1e-9))
    return tuple(i * step for i in range(math.floor(span / step * (1 + 1e-9)) + 1))


def tick_label(value: float, step: float) -> str:
    """``value`` with the decimals that ``step`` needs."""
    places = max(0, -math.floor(math.log10(step) + 1e-9)) if step > 0 else 0
    return f"{value:.{places}f}"


def text_width(text: str, size: float) -> float:
    """A generous estimate of the width of ``text`` in a sans-serif font of ``size`` pixels."""
    return size * sum(_advance(char) for char in text)


def _advance(char: str) -> float:
    if char in "iIjl.,:;|'!":
        return 0.32
    if char in "ftr()[] -·":
        return 0.4
    if char in "mwMW%@":
        return 0.95
    if unicodedata.east_asian_width(char) in "WF":
        return 1.05
    return 0.72 if char.isupper() else 0.62


def columns(char: str) -> int:
    """The columns that a character takes in a terminal."""
    if unicodedata.combining(char) or unicodedata.category(char) == "Cf":
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def wrap(text: str, size: float, room: float, most: int) -> tuple[str, ...]:
    """``text`` broken at blanks into up to ``most`` lines of ``room`` pixels; then an ellipsis."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if text_width(longer, size) <= room or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    kept = [shorten(line, size, room) for line in lines[:most]]
    if len(lines) > most:
        kept[-1] = shorten(kept[-1] + " …", size, room)
    return tuple(kept)


def shorten(text: str, size: float, room: float) -> str:
    """``text``, or its beginning and an ellipsis where it is wider than ``room``."""
    if text_width(text, size) <= room:
        return text
    text = text.rstrip(" …")
    while text and text_width(text + "…", size) > room:
        text = text[:-1]
    return text.rstrip() + "…"


def printable(text: str) -> str:
    """``text`` without characters that a terminal or an XML document must not hold."""
    return "".join(
        " " if char in "\t\n\r" else "\N{REPLACEMENT CHARACTER}" if _barred(char) else char
        for char in text
    )


def first_words(names: Iterable[str]) -> tuple[str, ...]:
    """The kinds among names such as ``reduce layers.7``, sorted."""
    return tuple(sorted({(printable(name).split() or [""])[0] for name in set(names)}))


def _barred(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cs") or char in "\ufffe\uffff"
