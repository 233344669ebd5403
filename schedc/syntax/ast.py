"""The tree of a ``.sched`` file as written: every node carries its span, none knows a value.

Two trees are equal when they say the same, wherever it stands: spans take no part in comparison.
Parentheses, comments and white space leave no trace.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

from schedc.diagnostics import Span

# ---- expressions ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Int:
    value: int
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Decimal:
    """A number with a point; exact."""

    value: Fraction
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Text:
    """A text in quotes, its escapes resolved. ``span`` includes the quotes."""

    value: str
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number and its unit, e.g. ``80 GiB``."""

    number: Int | Decimal
    unit: str
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Name:
    name: str
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Call:
    """``min(a, b)``; functions are the language's own."""

    function: str
    arguments: tuple[Expression, ...]
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Dotted:
    """``T.F`` or ``T.F(s)``."""

    base: str
    member: str
    argument: Expression | None
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Index:
    sequence: Expression
    index: Expression
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Slice:
    sequence: Expression
    lower: Expression | None
    upper: Expression | None
    span: Span = field(compare=False, repr=False)


UnaryOperator = Literal["+", "-", "not"]


@dataclass(frozen=True, slots=True)
class Unary:
    operator: UnaryOperator
    operand: Expression
    span: Span = field(compare=False, repr=False)


ArithmeticOperator = Literal["+", "-", "*", "/", "//", "%", "**"]


@dataclass(frozen=True, slots=True)
class Binary:
    operator: ArithmeticOperator
    left: Expression
    right: Expression
    span: Span = field(compare=False, repr=False)


Comparator = Literal["==", "!=", "<", "<=", ">", ">="]


@dataclass(frozen=True, slots=True)
class Compare:
    """A chain as in Python: ``a <= b < c`` has two operators and three operands."""

    operators: tuple[Comparator, ...]
    operands: tuple[Expression, ...]
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Logic:
    operator: Literal["and", "or"]
    left: Expression
    right: Expression
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Conditional:
    """``(then if condition else otherwise)``."""

    then: Expression
    condition: Expression
    otherwise: Expression
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class RangeOf:
    """``lower..upper step stride``, half open."""

    lower: Expression
    upper: Expression
    stride: Expression | None
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class TupleOf:
    elements: tuple[Expression, ...]
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ListOf:
    elements: tuple[Expression, ...]
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Comprehension:
    element: Expression
    bindings: tuple[Binding, ...]
    condition: Expression | None
    span: Span = field(compare=False, repr=False)


Expression = (
    Int
    | Decimal
    | Text
    | Quantity
    | Name
    | Call
    | Dotted
    | Index
    | Slice
    | Unary
    | Binary
    | Compare
    | Logic
    | Conditional
    | RangeOf
    | TupleOf
    | ListOf
    | Comprehension
)


# ---- statements of an order ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NamePattern:
    name: str
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class TuplePattern:
    """``(v, m)``: takes a tuple or list of as many elements apart."""

    elements: tuple[Pattern, ...]
    span: Span = field(compare=False, repr=False)


Pattern = NamePattern | TuplePattern


@dataclass(frozen=True, slots=True)
class Binding:
    """``pattern in values``."""

    pattern: Pattern
    values: Expression
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Let:
    pattern: Pattern
    value: Expression
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class For:
    """Several bindings nest, the last one innermost."""

    bindings: tuple[Binding, ...]
    body: tuple[Statement, ...]
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class If:
    """``else if`` is an ``otherwise`` of one :class:`If`."""

    condition: Expression
    then: tuple[Statement, ...]
    otherwise: tuple[Statement, ...]
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Repeat:
    count: Expression
    body: tuple[Statement, ...]
    span: Span = field(compare=False, repr=False)


Letter = Literal["F", "B", "I", "W", "R"]


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand of an operation; ``name`` where it is written ``name = value``."""

    name: str | None
    value: Expression
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Operation:
    """``F(stage, microbatch)``."""

    letter: Letter
    operands: tuple[Operand, ...]
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Counter:
    """``F*(stage)``, ``W*``."""

    letter: Letter
    stage: Expression | None
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Reserved:
    """Something of a later version, kept as text: ``word`` is its first word."""

    word: str
    text: str
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Overlap:
    """``overlap { F(a, i) | B(b, j) }``: two operations in one slot."""

    first: Operation | Counter
    second: Operation | Counter
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Slot:
    """``F(stage) at OFFSET``, in a pattern."""

    letter: Letter
    stage: Expression
    offset: Expression
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Holes:
    """``W(*) in holes``, in a pattern."""

    letter: Letter
    span: Span = field(compare=False, repr=False)


Statement = Let | For | If | Repeat | Operation | Counter | Overlap | Slot | Holes | Reserved


# ---- schedules ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    default: Expression
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Stages:
    count: Expression
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Place:
    """``place stage VARIABLE on rank RANK``."""

    variable: str
    rank: Expression
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Require:
    condition: Expression
    message: Text
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Check:
    condition: Expression
    when: Expression | None
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Note:
    message: Text
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class OrderBody:
    """``order on rank VARIABLE { … }``."""

    variable: str
    body: tuple[Statement, ...]
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class SplitBackward:
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Prefer:
    """``prefer I, F, W``."""

    letters: tuple[Letter, ...]
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class TieRule:
    """``deepest stage``."""

    which: str
    what: str
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class TieBreak:
    """``tie deepest stage, oldest microbatch``."""

    rules: tuple[TieRule, ...]
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Limit:
    """``limit activations <= AMOUNT``."""

    amount: Expression
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Reserve:
    """``reserve COUNT for last local stage``."""

    count: Expression
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Lookahead:
    span: Span = field(compare=False, repr=False)


PolicyItem = SplitBackward | Prefer | TieBreak | Limit | Reserve | Lookahead


@dataclass(frozen=True, slots=True)
class PolicyBody:
    """``policy { … }``."""

    items: tuple[PolicyItem, ...]
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class PatternBody:
    """``pattern every PERIOD on rank VARIABLE { … }``."""

    period: Expression
    variable: str
    body: tuple[Statement, ...]
    span: Span = field(compare=False, repr=False)


ScheduleItem = (
    Let | Stages | Place | Require | Check | Note | OrderBody | PolicyBody | PatternBody | Reserved
)


@dataclass(frozen=True, slots=True)
class Schedule:
    name: str
    parameters: tuple[Parameter, ...]
    items: tuple[ScheduleItem, ...]
    span: Span = field(compare=False, repr=False)
    name_span: Span = field(compare=False, repr=False)


# ---- plans --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Axis:
    name: str
    size: Expression
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Argument:
    name: str
    value: Expression
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Batch:
    """``TOTAL in microbatches of EACH``."""

    total: Expression
    each: Expression
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Mesh:
    axes: tuple[Axis, ...]
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ScheduleUse:
    """``NAME(argument = value, …)``."""

    name: str
    arguments: tuple[Argument, ...]
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class PrecisionUse:
    """``NAME { option value, … }``, as in ``bf16 { master fp32, reduce bf16 }``."""

    name: str
    options: tuple[Argument, ...]
    span: Span = field(compare=False, repr=False)
    name_span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Word:
    """A bare word, as in ``optimizer sgd``."""

    word: str
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Raw:
    """A value kept as text: options in braces, the value of an unknown key."""

    text: str
    span: Span = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Entry:
    """A key of a plan and its values; ``zero 2 { … }`` and ``context ring zigzag`` have two."""

    key: str
    values: tuple[EntryValue, ...]
    span: Span = field(compare=False, repr=False)
    key_span: Span = field(compare=False, repr=False)


EntryValue = Expression | Batch | Mesh | ScheduleUse | PrecisionUse | Word | Raw


@dataclass(frozen=True, slots=True)
class Plan:
    name: str
    entries: tuple[Entry, ...]
    span: Span = field(compare=False, repr=False)
    name_span: Span = field(compare=False, repr=False)


# ---- files --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Import:
    path: Text
    span: Span = field(compare=False, repr=False)


FileItem = Import | Schedule | Plan | Reserved


@dataclass(frozen=True, slots=True)
class File:
    items: tuple[FileItem, ...]
    span: Span = field(compare=False, repr=False)
