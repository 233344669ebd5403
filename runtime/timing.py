"""How long work takes on a device: marks between it, and the seconds from one mark to another."""

from __future__ import annotations

import time
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Marks points in a device's work."""

    def mark(self) -> Any:
        """A mark after all work that was given to the device so far."""
        ...

    def seconds(self, first: Any, last: Any) -> float:
        """The time between two marks, after ``synchronize``."""
        ...

    def synchronize(self) -> None:
        """Wait until the device has done what it was given."""
        ...


class HostClock:
    """Of CPUs: work is done when its call returns."""

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, first: float, last: float) -> float:
        return last - first

    def synchronize(self) -> None:
        return None


class CudaClock:
    """Of a GPU, which works behind the host: marks are events on the current stream."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, first: torch.cuda.Event, last: torch.cuda.Event) -> float:
        return first.elapsed_time(last) / 1e3

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)


def clock_of(device: torch.device) -> Clock:
    return CudaClock(device) if device.type == "cuda" else HostClock()
