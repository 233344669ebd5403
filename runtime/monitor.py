"""Monitoring: when each instruction of the current step ended. Always on, one clock read each."""

from __future__ import annotations

import time
from collections.abc import Callable

from schedc.runtime.position import ROW, STEP, private_position


class Monitor:
    """Times of one rank's instructions in the current step, by row.

    A stream has no gaps: an instruction starts when the one before it ended, so one clock read an
    instruction gives both. ``now`` is in nanoseconds (in ticks on the virtual transport).
    ``position`` holds the step and the row in progress, for the watchdogs.
    """

    def __init__(self, rows: int, now: Callable[[], int] = time.perf_counter_ns) -> None:
        self.now = now
        self.position = private_position()
        self.began = 0
        self.ends = [0] * rows

    def begin(self) -> None:
        """A step begins."""
        self.position[ROW] = 0
        self.position[STEP] += 1
        self.began = self.now()

    def settle(self) -> None:
        """Make the times of a finished step final: they are, where the host does the work."""

    def start(self, row: int) -> int:
        """When the instruction at ``row`` started."""
        return self.ends[row - 1] if row else self.began

    def starts(self) -> list[int]:
        """The start of every instruction."""
        return [self.began, *self.ends[:-1]]
