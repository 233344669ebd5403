"""Values of the language and what operators do to them, all exact.

A value is a whole number, a rational, a truth value, a text, a range, a tuple or a list. A rational
that is whole is always held as a whole number, so that ``P / 2`` can index where it is exact.
Sizes are bounded: whatever would be too large is refused before it is made.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TypeAlias, TypeGuard

from schedc.diagnostics import Diagnostic, DiagnosticError, Span
from schedc.syntax import ast

Value: TypeAlias = "int | Fraction | str | range | tuple[Value, ...] | list[Value]"
"""``bool`` is a truth value here, never a number."""

Number = int | Fraction
Frame = list[Value]
"""The variables of an evaluation. Slot 0 counts the steps spent so far."""

LONGEST_LIST = 1_000_000
"""Elements of a list."""
MOST_STEPS = 20_000_000
"""Loop iterations and list elements visited in one evaluation."""
LARGEST_BITS = 4096
"""Bits of a whole number, or of the numerator or denominator of a rational."""
_LARGEST = 1 << LARGEST_BITS
_LARGEST_RANGE = 1 << 61


def fault(code: str, message: str, span: Span, help: str | None = None) -> DiagnosticError:
    """The error to raise for a mistake at ``span``."""
    return DiagnosticError(Diagnostic(code, message, span, help=help))


def kind(value: Value) -> str:
    """What a value is, in words."""
    match value:
        case bool():
            return "a truth value"
        case int():
            return "a whole number"
        case Fraction():
            return "a rational"
        case str():
            return "a text"
        case range():
            return "a range"
        case tuple():
            return "a tuple"
        case list():
            return "a list"


def show(value: Value, depth: int = 0) -> str:
    """A value as a message prints it; long ones are cut short."""
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return _show_int(value)
        case Fraction():
            return f"{_show_int(value.numerator)}/{_show_int(value.denominator)}"
        case str():
            return f'"{value}"'
        case range():
            step = f" step {value.step}" if value.step != 1 else ""
            return f"{value.start}..{value.stop}{step}"
        case tuple() | list():
            return _show_elements(value, depth)


def _show_int(value: int) -> str:
    text = str(value)
    return text if len(text) <= 40 else f"{text[:12]}… ({len(text)} digits)"


def _show_elements(value: Sequence[Value], depth: int, most: int = 8) -> str:
    if depth > 2:
        return "…"
    shown = ", ".join(show(element, depth + 1) for element in value[:most])
    if len(value) > most:
        shown += f", … ({len(value)} elements)"
    if isinstance(value, list):
        return f"[{shown}]"
    return f"({shown},)" if len(value) == 1 else f"({shown})"


def is_number(value: Value) -> TypeGuard[int | Fraction]:
    return type(value) is int or type(value) is Fraction


def spend(frame: Frame, steps: int, span: Span) -> None:
    """Count ``steps`` more; refuse an evaluation that would go on (almost) for ever."""
    used = frame[0]
    assert isinstance(used, int)
    frame[0] = used + steps
    if used + steps > MOST_STEPS:
        raise fault(
            "E209", f"the evaluation takes more than {MOST_STEPS} steps, the most allowed", span
        )


def exact(value: Fraction | int) -> Number:
    """A rational in the form values have: whole ones as whole numbers."""
    if type(value) is Fraction and value.denominator == 1:
        return value.numerator
    return value


def whole(value: Value, what: str, span: Span) -> int:
    """``value`` as a whole number, else an error that calls it ``what``."""
    if type(value) is int:
        return value
    raise fault("E204", f"{what} is {kind(value)}, {show(value)}; it must be a whole number", span)


def truth(value: Value, what: str, span: Span) -> bool:
    """``value`` as a truth value, else an error that calls it ``what``."""
    if isinstance(value, bool):
        return value
    raise fault("E204", f"{what} is {kind(value)}, {show(value)}; it must be true or false", span)


def elements(value: Value, what: str, span: Span) -> Sequence[Value]:
    """``value`` as something with elements, else an error that calls it ``what``."""
    if isinstance(value, range | list | tuple):
        return value
    raise fault(
        "E204", f"{what} is {kind(value)}, {show(value)}; it must be a range, list or tuple", span
    )


# ---- arithmetic ---------------------------------------------------------------------------------

_ARITHMETIC: dict[ast.ArithmeticOperator, Callable[[Number, Number], Number]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": lambda left, right: Fraction(left) / Fraction(right),
    "//": lambda left, right: left // right,
    "%": lambda left, right: left % right,
}


def arithmetic(symbol: ast.ArithmeticOperator, left: Value, right: Value, span: Span) -> Value:
    """``left symbol right``; ``+`` also joins two lists."""
    if symbol == "+" and isinstance(left, list) and isinstance(right, list):
        if len(left) + len(right) > LONGEST_LIST:
            raise fault(
                "E209",
                f"the list would have {len(left) + len(right)} elements; at most {LONGEST_LIST}",
                span,
            )
        return left + right
    if not is_number(left) or not is_number(right):
        raise fault("E204", f"`{symbol}` cannot take {kind(left)} and {kind(right)}", span)
    if symbol == "**":
        return _power(left, right, span)
    if symbol in ("/", "//", "%") and right == 0:
        raise fault("E205", f"division by zero: {show(left)} {symbol} 0", span)
    return bounded(_ARITHMETIC[symbol](left, right), span)


def bounded(value: Number, span: Span) -> Number:
    """``value`` in its proper form, unless it is too large."""
    value = exact(value)
    if type(value) is int:
        if -_LARGEST < value < _LARGEST:
            return value
    elif abs(value.numerator) < _LARGEST and value.denominator < _LARGEST:
        return value
    raise fault("E209", f"the number has more than {LARGEST_BITS} bits, the most allowed", span)


def _power(base: Number, exponent: Number, span: Span) -> Value:
    if type(exponent) is not int:
        raise fault("E204", f"the exponent is {show(exponent)}; it must be a whole number", span)
    if base == 0 and exponent < 0:
        raise fault("E205", f"division by zero: 0 ** {show(exponent)}", span)
    if base == 0:
        return int(exponent == 0)
    if base in (1, -1):
        return base if exponent % 2 else 1
    parts = Fraction(base)
    bits = max(parts.numerator.bit_length(), parts.denominator.bit_length()) - 1
    if max(bits, 1) * abs(exponent) > 2 * LARGEST_BITS:
        raise fault("E209", f"the number has more than {LARGEST_BITS} bits, the most allowed", span)
    return bounded(parts**exponent, span)


def negative(value: Value, symbol: str, span: Span) -> Value:
    """``-value`` or ``+value``."""
    if not is_number(value):
        raise fault("E204", f"`{symbol}` cannot take {kind(value)}", span)
    return -value if symbol == "-" else value


# ---- comparison ---------------------------------------------------------------------------------

_COMPARISONS: dict[ast.Comparator, Callable[[Number, Number], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def compare(symbol: ast.Comparator, left: Value, right: Value, span: Span) -> bool:
    """``left symbol right``. Things of different kinds are not unequal: comparing them is wrong."""
    if symbol in ("==", "!="):
        if not _comparable(left, right):
            raise fault("E204", f"`{symbol}` cannot compare {kind(left)} and {kind(right)}", span)
        return (left == right) == (symbol == "==")
    if not is_number(left) or not is_number(right):
        raise fault("E204", f"`{symbol}` cannot compare {kind(left)} and {kind(right)}", span)
    return _COMPARISONS[symbol](left, right)


def _comparable(left: Value, right: Value) -> bool:
    if is_number(left) and is_number(right):
        return True
    return type(left) is type(right)


# ---- ranges and indices -------------------------------------------------------------------------


def make_range(lower: Value, upper: Value, stride: Value, span: Span) -> range:
    """``lower..upper step stride``; one that runs backwards is empty."""
    first = whole(lower, "the start of the range", span)
    last = whole(upper, "the end of the range", span)
    step = whole(stride, "the step of the range", span)
    if step == 0:
        raise fault("E205", "the step of the range is 0", span)
    if max(abs(first), abs(last), abs(step)) > _LARGEST_RANGE:
        raise fault("E209", f"the range {show(lower)}..{show(upper)} is too large", span)
    return range(first, last, step)


def index(sequence: Value, at: Value, span: Span) -> Value:
    """``sequence[at]``; negative indices count from the end, as in Python."""
    values = elements(sequence, "what is indexed", span)
    position = whole(at, "the index", span)
    if not -len(values) <= position < len(values):
        raise fault(
            "E206",
            f"index {show(position)} is out of range: {kind(sequence)} of {len(values)} "
            f"element{'s' if len(values) != 1 else ''}",
            span,
        )
    return values[position]
