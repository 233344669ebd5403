"""Monitoring where a GPU works behind the host: times of the device, and a bound on its lag."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch

from schedc.program.instructions import CODE, Code, Stream
from schedc.runtime.monitor import Monitor
from schedc.runtime.position import ROW

LEAD = 4
"""Waits by which the host may be ahead of the device: enough for kernels to be there in time."""


class Event(Protocol):
    """What is used of ``torch.cuda.Event``."""

    def record(self) -> None: ...
    def synchronize(self) -> None: ...
    def elapsed_time(self, end_event: Any) -> float: ...


def _cuda_event() -> Event:
    return torch.cuda.Event(enable_timing=True, blocking=True)  # the host sleeps while it waits


class DeviceMonitor(Monitor):
    """Marks the end of what each row enqueues by an event, and holds the host back.

    The host stops at a wait until the device is past the wait LEAD waits before; after the waits
    for the norm and the report, whose numbers it reads next, until it is past them. While it stops,
    ``position`` names the wait that it stops for: where a device that cannot go on stands, for the
    watchdogs. A host that were free to enqueue whole steps would stand anywhere.
    """

    def __init__(self, stream: Stream, make_event: Callable[[], Event] = _cuda_event) -> None:
        super().__init__(len(stream), self._mark)
        code = stream.table[:, CODE]
        waits = (code >= Code.WAIT_MESSAGE).nonzero()[0].tolist()
        reads = np.isin(code[waits], (Code.WAIT_NORM, Code.WAIT_REPORT)).tolist()
        works = (code == Code.RUN) | (code == Code.STEP) | (code >= Code.WAIT_MESSAGE)
        self._events: list[Event | None] = [make_event() if w else None for w in works.tolist()]
        self._held_by = {
            row: waits[max(0, k - LEAD) : k + 1 if read else max(0, k - LEAD + 1)]
            for k, (row, read) in enumerate(zip(waits, reads, strict=True))
        }
        self._first = make_event()
        self._row = -1

    def begin(self) -> None:
        """A step begins; the step before has ended on the device, so both clocks can be tied."""
        self._row = -1
        super().begin()

    def _mark(self) -> int:
        row = self._row
        self._row += 1
        if row < 0:
            self._first.record()
            self._first.synchronize()
            return time.perf_counter_ns()
        event = self._events[row]
        if event is not None:
            event.record()
        for earlier in self._held_by.get(row, ()):
            awaited = self._events[earlier]
            assert awaited is not None
            self.position[ROW] = earlier
            awaited.synchronize()
        return 0

    def settle(self) -> None:
        """Fill ``ends`` with the device's times of the finished step."""
        end = self.began
        for row, event in enumerate(self._events):
            if event is not None:
                event.synchronize()
                end = self.began + round(1e6 * self._first.elapsed_time(event))
            self.ends[row] = end
