"""The timeline: when each operation of an order starts and ends, and the figures read off it."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from schedc.ir.order import Order

Ticks = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Timeline:
    """Start and end of every operation of ``order``, in whole ticks of ``tick`` time units.

    ``start[r][i]`` belongs to row ``i`` of ``order.tables[r]``. The tick is chosen so that all
    times are whole: figures are exact.
    """

    order: Order
    tick: Fraction
    start: tuple[Ticks, ...]
    end: tuple[Ticks, ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a timeline, as defined in docs/language.md; times are exact."""

    makespan: Fraction
    longest_stage: Fraction
    busy: tuple[Fraction, ...]
    peak_activations: tuple[Fraction, ...]
    messages: int

    @property
    def lower_bound(self) -> Fraction:
        return max(self.busy)

    @property
    def bubble(self) -> Fraction:
        return self.makespan - self.lower_bound

    @property
    def bubble_rate(self) -> Fraction:
        return self.bubble / self.makespan if self.makespan else Fraction(0)

    @property
    def bubble_rate_longest_stage(self) -> Fraction:
        return 1 - self.lower_bound / self.longest_stage if self.longest_stage else Fraction(0)

    def bubble_of(self, rank: int) -> Fraction:
        return self.makespan - self.busy[rank]
