"""Times of a device that works behind the host, and the bound on how far behind. On fake events."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
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
    stopped: list[int] = field(default_factory=list)

    def event(self) -> Event:
        return Event(self)


@dataclass
class Event:
    """The ``number``-th recorded one happens at ``number`` milliseconds."""

    device: Device
    number: int = -1

    def record(self) -> None:
        self.device.recorded += 1
        self.number = self.device.recorded

    def synchronize(self) -> None:
        self.device.done = max(self.device.done, self.number)
        if self.device.monitor is not None:
            self.device.stopped.append(self.device.monitor.position[ROW])

    def elapsed_time(self, end_event: Event) -> float:
        return end_event.number - self.number


@pytest.fixture
def program() -> RankProgram:
    return artifact_of(Shape("one_f_one_b", 2, 8)).programs[0]


@dataclass(frozen=True)
class Step:
    """By row: how many waits the host is ahead of the device, and where it stopped meanwhile."""

    monitor: DeviceMonitor
    ahead: list[int]
    stopped: list[list[int]]


def run(program: RankProgram) -> Step:
    """A step's rows, as the executor goes through them."""
    device = Device()
    monitor = DeviceMonitor(program.stream, device.event)
    device.monitor = monitor
    step = Step(monitor, [], [])
    monitor.begin()
    waits: list[int] = []
    for row, code in enumerate(program.stream.table[:, CODE].tolist()):
        monitor.position[ROW] = row
        device.stopped.clear()
        monitor.ends[row] = monitor.now()
        if code >= Code.WAIT_MESSAGE:
            waits.append(device.recorded)
        step.ahead.append(sum(number > device.done for number in waits))
        step.stopped.append(device.stopped.copy())
    return step


def waits_of(program: RankProgram, *codes: Code) -> list[int]:
    code = program.stream.table[:, CODE]
    chosen = np.isin(code, codes) if codes else code >= Code.WAIT_MESSAGE
    return chosen.nonzero()[0].tolist()


def test_the_host_is_never_more_than_some_waits_ahead(program: RankProgram) -> None:
    assert max(run(program).ahead) == LEAD


def test_a_host_that_stops_stands_where_the_device_is(program: RankProgram) -> None:
    """The watchdog then names the wait that the device cannot pass, not one enqueued later."""
    stopped, waits = run(program).stopped, waits_of(program)
    (norm,) = waits_of(program, Code.WAIT_NORM)
    until = waits.index(norm)
    for before, row in zip(waits, waits[LEAD:until], strict=False):
        assert stopped[row] == [before]
    assert not any(stopped[row] for row in range(norm) if row not in waits[LEAD:])


def test_before_it_reads_numbers_the_host_stops_at_every_wait_that_is_left(
    program: RankProgram,
) -> None:
    step, waits = run(program), waits_of(program)
    for row in waits_of(program, Code.WAIT_NORM, Code.WAIT_REPORT):
        last = waits.index(row) + 1
        assert step.stopped[row] == waits[last - LEAD - 1 : last]
        assert step.ahead[row] == 0


def test_times_are_the_devices(program: RankProgram) -> None:
    """A row that only enqueues ends when the one before it did."""
    monitor = run(program).monitor
    monitor.settle()
    code = program.stream.table[:, CODE]
    works = (code == Code.RUN) | (code == Code.STEP) | (code >= Code.WAIT_MESSAGE)
    expected = [monitor.began + 1_000_000 * n for n in works.cumsum().tolist()]
    assert monitor.ends == expected
    assert monitor.starts() == [monitor.began, *expected[:-1]]


def test_steps_follow_one_another(program: RankProgram) -> None:
    monitor = run(program).monitor
    first = monitor.began
    monitor.begin()
    assert monitor.began >= first
    assert monitor.position[ROW] == 0
