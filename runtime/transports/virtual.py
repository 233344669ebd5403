"""The virtual transport: no payload, messages carry a clock. One thread runs all pipeline ranks.

The rules of the clock are those of :class:`schedc.program.durations.Durations`; a run equals the
simulator exactly. Ranks move cooperatively: a rank runs until a wait is not ready, and goes on
when its peer has posted what it waits for. Where nobody can move, that is a hang, found exactly.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from schedc.ir.order import Task
from schedc.program.body import Body, Call
from schedc.program.durations import Durations
from schedc.program.instructions import CODE, REF, Code, Operand
from schedc.program.print import instruction_place, instruction_text
from schedc.program.program import Programs, Queue, RankProgram
from schedc.runtime.executor import Executor, Handler
from schedc.runtime.monitor import Monitor
from schedc.runtime.transports.interface import Hang, Link, Waiting, Work

Ticks = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class VirtualRun:
    """When each ``run`` of each pipeline rank started and ended, in ticks, and when its step ended.

    ``start[r][i]`` belongs to the ``i``-th run instruction of rank ``r``; ``row_end[r][i]`` to its
    ``i``-th instruction of any kind.
    """

    start: tuple[Ticks, ...]
    end: tuple[Ticks, ...]
    row_end: tuple[Ticks, ...]
    step_end: tuple[int, ...]


class Misdelivered(Exception):
    """A receive met a message that another task produced: the programs disagree."""


def run_virtual(programs: Programs, durations: Durations, seed: int | None = None) -> VirtualRun:
    """Run one step of ``programs`` on the virtual clock.

    ``seed`` picks which of the ranks that can move goes next; the times do not depend on it.
    Raises Hang where no rank can move, Misdelivered where a message meets the wrong receive.
    """
    board = _Board(len(programs), durations)
    executors = [_executor(board, program) for program in programs]
    _run(board, executors, random.Random(seed) if seed is not None else None)
    starts, ends, rows, last = [], [], [], []
    for executor in executors:
        runs = executor.program.stream.table[:, CODE] == Code.RUN
        row_end = np.array(executor.monitor.ends, dtype=np.int64)
        row_start = np.array(executor.monitor.starts(), dtype=np.int64)
        starts.append(row_start[runs])
        ends.append(row_end[runs])
        rows.append(row_end)
        last.append(int(row_end[-1]) if len(row_end) else 0)
    return VirtualRun(tuple(starts), tuple(ends), tuple(rows), tuple(last))


def _executor(board: _Board, program: RankProgram) -> Executor[None]:
    endpoint = VirtualTransport(board, program.rank)
    machine = ClockMachine(program, endpoint, board.durations)
    monitor = Monitor(len(program.stream), endpoint.read_clock)
    executor = Executor(program, endpoint, machine, monitor)
    executor.begin()
    return executor


def _run(board: _Board, executors: list[Executor[None]], choice: random.Random | None) -> None:
    ready = board.ready
    ready.extend(range(len(executors)))
    unfinished = len(executors)
    while ready:
        if choice is not None:
            ready.rotate(choice.randrange(len(ready)))
        unfinished -= executors[ready.popleft()].advance()
    if unfinished:
        raise Hang(tuple(_waiting(e) for e in executors if e.at < len(e.program.stream)))


def _waiting(executor: Executor[None]) -> Waiting:
    program, row = executor.program, executor.at
    posted = int(program.stream.table[row, REF])
    of = row if program.stream.table[row, CODE] != Code.WAIT_MESSAGE else posted
    place = instruction_place(program, of)
    what = f"row {row}: {instruction_text(program, of)}" + (f"   # {place}" if place else "")
    return Waiting(program.rank, what)


@dataclass(slots=True)
class _Channel:
    """A queue: when each message arrives, how many receives are posted, and who waits."""

    arrivals: list[int] = field(default_factory=list[int])
    sent: list[Task] = field(default_factory=list[Task])
    posted: int = 0
    receiver: int = -1
    sender: int = -1


@dataclass(slots=True)
class _Meeting:
    """A sum over pipeline ranks: how many have posted it, the latest of them, and who waits."""

    missing: int
    begins: int = 0
    waiting: list[int] = field(default_factory=list[int])


class _Board:
    """What all ranks share."""

    def __init__(self, ranks: int, durations: Durations) -> None:
        self.durations = durations
        self.ready: deque[int] = deque()
        self.channels: dict[Queue, _Channel] = {}
        self.meetings = {name: _Meeting(ranks) for name in ("norm", "report")}

    def channel(self, queue: Queue) -> _Channel:
        found = self.channels.get(queue)
        if found is None:
            found = self.channels[queue] = _Channel()
        return found


class VirtualTransport:
    """One rank's end: its clock, and posts that move no data."""

    def __init__(self, board: _Board, rank: int) -> None:
        self.board = board
        self.rank = rank
        self.clock = 0
        self.reduced = 0
        self._message = board.durations.message

    def read_clock(self) -> int:
        return self.clock

    def post_send(self, link: Link, payload: None) -> Work:
        channel = self.board.channel(link.queue)
        channel.arrivals.append(self.clock + self._message)
        channel.sent.append(link.task)
        if channel.receiver >= 0:
            self.board.ready.append(channel.receiver)
            channel.receiver = -1
        return _Sent(self, channel, len(channel.arrivals))

    def post_recv(self, link: Link, payload: None) -> Work:
        channel = self.board.channel(link.queue)
        work = _Received(self, channel, channel.posted, link)
        channel.posted += 1
        if channel.sender >= 0:
            self.board.ready.append(channel.sender)
            channel.sender = -1
        return work

    def post_sum(self, name: str, payload: None, axes: tuple[str, ...]) -> Work:
        durations = self.board.durations
        if name == "count":
            return _Timed(self, self.clock + durations.count)
        meeting = self.board.meetings.get(name)
        if meeting is None:
            self.reduced = max(self.reduced, self.clock) + durations.reduce[name]
            return _Timed(self, self.reduced)
        meeting.missing -= 1
        meeting.begins = max(meeting.begins, self.clock)
        if meeting.missing == 0:
            self.board.ready.extend(meeting.waiting)
        takes = durations.norm if name == "norm" else durations.report
        return _Summed(self, meeting, takes)


@dataclass(slots=True)
class _Sent:
    transport: VirtualTransport
    channel: _Channel
    number: int  # 1-based: done when so many receives are posted

    def wait(self) -> bool:
        if self.channel.posted >= self.number:
            return True
        self.channel.sender = self.transport.rank
        return False


@dataclass(slots=True)
class _Received:
    transport: VirtualTransport
    channel: _Channel
    number: int
    link: Link

    def wait(self) -> bool:
        channel, number = self.channel, self.number
        if number >= len(channel.arrivals):
            channel.receiver = self.transport.rank
            return False
        if channel.sent[number] != self.link.task:
            raise Misdelivered(f"{self.link}: rank sent what {channel.sent[number]} produced")
        if channel.arrivals[number] > self.transport.clock:
            self.transport.clock = channel.arrivals[number]
        return True


@dataclass(slots=True)
class _Timed:
    transport: VirtualTransport
    ends: int

    def wait(self) -> bool:
        self.transport.clock = max(self.transport.clock, self.ends)
        return True


@dataclass(slots=True)
class _Summed:
    transport: VirtualTransport
    meeting: _Meeting
    takes: int

    def wait(self) -> bool:
        if self.meeting.missing:
            self.meeting.waiting.append(self.transport.rank)
            return False
        self.transport.clock = max(self.transport.clock, self.meeting.begins + self.takes)
        return True


def _nothing() -> None:
    return None


def _done() -> bool:
    return True


class ClockMachine:
    """The machine without numbers: bodies take their time, reductions are posted within them."""

    def __init__(
        self, program: RankProgram, transport: VirtualTransport, durations: Durations
    ) -> None:
        self.transport = transport
        self.reductions: dict[str, Work] = {}
        self._step = durations.step[program.rank]
        self._runs = [self._bind_body(body, durations) for body in program.bodies]

    def _bind_body(self, body: Body, durations: Durations) -> Handler:
        transport, reductions = self.transport, self.reductions
        parts: list[tuple[int, str, tuple[str, ...]]] = []
        ticks = 0
        for step in body.steps:
            if isinstance(step, Call):
                ticks += durations.calls[step.graph]
            else:
                parts.append((ticks, step.unit, step.axes))
                ticks = 0

        def run() -> bool:
            for before, unit, axes in parts:
                transport.clock += before
                reductions[unit] = transport.post_sum(unit, None, axes)
            transport.clock += ticks
            return True

        return run

    def bind_run(
        self, body: int, task: Task, reads: tuple[Operand, ...], writes: tuple[Operand, ...]
    ) -> Handler:
        return self._runs[body]

    def bind_load(self, microbatch: int, write: Operand) -> Handler:
        return _done

    def bind_send(self, read: Operand) -> Callable[[], None]:
        return _nothing

    def bind_recv(self, write: Operand) -> Callable[[], None]:
        return _nothing

    def bind_release(self, operand: Operand) -> Callable[[], object]:
        return _nothing

    def bind_report(self, reads: tuple[Operand, ...]) -> Callable[[], Work]:
        return lambda: self.transport.post_sum("report", None, ("dp", "pp"))

    def post_count(self) -> Work:
        return self.transport.post_sum("count", None, ("dp",))

    def post_norm(self) -> Work:
        return self.transport.post_sum("norm", None, ("pp",))

    def reduction(self, unit: str) -> Work:
        return self.reductions[unit]

    def counted(self) -> None:
        return None

    def step(self) -> bool:
        self.transport.clock += self._step
        return True
