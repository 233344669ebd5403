"""Exact times as whole numbers: the tick in which a set of rationals is whole."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from fractions import Fraction

import numpy as np

from schedc.diagnostics import Diagnostic, DiagnosticError
from schedc.ir.cost import StageCosts
from schedc.ir.dependencies import Column, Dependencies
from schedc.ir.order import Op


def tick_of(values: Iterable[Fraction]) -> Fraction:
    """The longest tick 1/n in which all ``values`` are whole."""
    return Fraction(1, math.lcm(*(value.denominator for value in values)))


def in_ticks(values: Sequence[Fraction], tick: Fraction) -> list[int]:
    """``values`` in ticks; they must be whole."""
    whole = [value / tick for value in values]
    assert all(value.denominator == 1 for value in whole), "the tick does not fit the costs"
    return [value.numerator for value in whole]


def table_of(costs: StageCosts, tick: Fraction) -> list[list[int]]:
    """What each operation of each stage takes in ticks: rows by :class:`Op`, columns by stage."""
    forward, inputs, weights = (in_ticks(x, tick) for x in (costs.F, costs.I, costs.W))
    full = [i + w for i, w in zip(inputs, weights, strict=True)]
    by_op = {Op.F: forward, Op.B: full, Op.I: inputs, Op.W: weights, Op.R: forward}
    return [by_op[op] for op in Op]


def per_operation(table: list[list[int]], dependencies: Dependencies, what: str) -> Column:
    """The entry of ``table`` for each operation; E308 where their sum leaves 64 bits."""
    op, stage = dependencies.op, dependencies.stage
    stages = len(table[0])
    counts = np.bincount(op * stages + stage, minlength=len(Op) * stages).tolist()
    total = sum(n * abs(x) for n, x in zip(counts, (x for row in table for x in row), strict=True))
    require_64_bits(total, what)
    # An entry of no operation may be too large for the array, and is not looked at.
    used = [x if n else 0 for n, x in zip(counts, (x for row in table for x in row), strict=True)]
    return np.array(used, dtype=np.int64)[op * stages + stage]


def require_64_bits(total: int, what: str) -> None:
    """E308 where exact arithmetic in whole ticks would overflow."""
    if total.bit_length() > 63:
        raise DiagnosticError(
            Diagnostic(
                "E308",
                f"the {what} are too fine to add up exactly: in their common unit the order comes "
                f"to a number of {total.bit_length()} bits, and 63 are there",
                help="give them with fewer digits, or with a smaller common denominator",
            )
        )
