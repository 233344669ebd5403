"""Times of a device that works behind the host, and the bound on how far behind. On fake events."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from schedc.program.instructions import CODE, Code
from schedc.program.program import RankProgram
from schedc.runtime.device_monitor import LEAD, DeviceMonitor
from schedc.runtime.position import ROW
from tests.runtime.builds import Shape, artifact_of


@dataclass
class Device:
    """A device that does nothing until it is waited for; ``monitor`` is looked at meanwhile."""

    monitor: DeviceMonitor | None = None
    recorded: int = 0
    done: int = 0

    def event(self) -> Event:
        return Event(self)


@dataclass
class Event:
    """The ``number``-th recorded one happens at ``number`` milliseconds."""

    device: Device
    number: int = -1
    position: int = -1

    def record(self) -> None:
        self.device.recorded += 1
        self.number = self.device.recorded

    def synchronize(self) -> None:
        self.device.done = max(self.device.done, self.number)
        if self.device.monitor is not None:
            self.position = self.device.monitor.position[ROW]

    def elapsed_time(self, end_event: Event) -> float:
        return end_event.number - self.number


@pytest.fixture
def program() -> RankProgram:
    return artifact_of(Shape("one_f_one_b", 2, 8)).programs[0]


def run(program: RankProgram) -> tuple[DeviceMonitor, list[int], list[int]]:
    """A step's rows, as the executor goes through them.

    Per row: how many waits the host is ahead of the device, and the position while it was held
    (-1 where it was not).
    """
    device = Device()
    monitor = DeviceMonitor(program.stream, device.event)
    device.monitor = monitor
    is_wait = (program.stream.table[:, CODE] >= Code.WAIT_MESSAGE).tolist()
    monitor.begin()
    ahead, held, waits = [], [], []
    for row, wait in enumerate(is_wait):
        monitor.position[ROW] = row
        before = device.done
        monitor.ends[row] = monitor.now()
        if wait:
            waits.append(device.recorded)
        ahead.append(sum(number > device.done for number in waits))
        held.append(monitor.position[ROW] if device.done > before else -1)
    return monitor, ahead, held


def test_the_host_is_never_more_than_some_waits_ahead(program: RankProgram) -> None:
    _, ahead, _ = run(program)
    assert max(ahead) == LEAD


def test_a_host_that_is_held_stands_where_the_device_is(program: RankProgram) -> None:
    """The watchdog then names the wait that the device cannot pass, not one enqueued later."""
    _, _, held = run(program)
    waits = (program.stream.table[:, CODE] >= Code.WAIT_MESSAGE).nonzero()[0].tolist()
    assert [row for row in held if row >= 0] == waits[:-LEAD]
    assert [at for at, row in enumerate(held) if row >= 0] == waits[LEAD:]


def test_times_are_the_devices(program: RankProgram) -> None:
    """A row that only enqueues ends when the one before it did."""
    monitor, _, _ = run(program)
    monitor.settle()
    code = program.stream.table[:, CODE]
    works = (code == Code.RUN) | (code == Code.STEP) | (code >= Code.WAIT_MESSAGE)
    expected = [monitor.began + 1_000_000 * n for n in works.cumsum().tolist()]
    assert monitor.ends == expected
    assert monitor.starts() == [monitor.began, *expected[:-1]]


def test_steps_follow_one_another(program: RankProgram) -> None:
    monitor, _, _ = run(program)
    first = monitor.began
    monitor.begin()
    assert monitor.began >= first
    assert monitor.position[ROW] == 0
