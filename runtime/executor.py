"""The executor: an interpreter of one rank's program. It knows no schedule, no model, no torch.

The stream is decoded once, at load, into one bound function a row; a step calls them in order.
Only the functions of waits block. What bodies compute is the machine's business, how messages
travel the transport's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from schedc.ir.order import Op, Task
from schedc.program.instructions import (
    BODY,
    CODE,
    MICROBATCH,
    OP,
    PEER,
    QUEUE,
    READS,
    REF,
    SEQUENCE,
    STAGE,
    WRITES,
    Code,
    Operand,
)
from schedc.program.program import RankProgram
from schedc.runtime.monitor import Monitor
from schedc.runtime.position import ROW
from schedc.runtime.transports.interface import Link, Transport, Work

P = TypeVar("P")
P_co = TypeVar("P_co", covariant=True)
Handler = Callable[[], bool]
"""Does an instruction. False only from a wait on a cooperative transport: not there yet."""

OPS = tuple(Op)

Operands = tuple[Operand, ...]


class Machine(Protocol[P_co]):
    """What an instruction's operands are and what its body does: tensors, or only a clock.

    Each ``bind_…`` is called once a row, at load, in the order of the stream, and returns what the
    row's handler calls each step.
    """

    def bind_run(self, body: int, task: Task, reads: Operands, writes: Operands) -> Handler:
        """Run a body; also starts the reductions that stand in it."""
        ...

    def bind_load(self, microbatch: int, write: Operand) -> Handler:
        """Bring a microbatch's tokens or labels into a slot."""
        ...

    def bind_send(self, read: Operand) -> Callable[[], P_co]:
        """The payload of a send."""
        ...

    def bind_recv(self, write: Operand) -> Callable[[], P_co]:
        """The buffer that a receive fills."""
        ...

    def bind_release(self, operand: Operand) -> Callable[[], object]:
        """Free a slot whose last use is a wait."""
        ...

    def bind_tie(self, unit: str, peer: int) -> Callable[[], Work]:
        """Post the sum of the unit's tied gradient and that of pipeline rank ``peer``."""
        ...

    def bind_report(self, reads: Operands) -> Callable[[], Work]:
        """Post the sum of the microbatches' losses."""
        ...

    def post_count(self) -> Work:
        """Post the sum of the step's valid labels."""
        ...

    def post_norm(self) -> Work:
        """Post the sum of the squares of the gradients."""
        ...

    def reduction(self, unit: str) -> Work:
        """The sum of a unit's gradients that a body started."""
        ...

    def counted(self) -> None:
        """The count is there."""
        ...

    def step(self) -> bool:
        """Clip and take the optimizer's step."""
        ...


class Executor(Generic[P]):
    """Runs ``program`` step after step."""

    def __init__(
        self,
        program: RankProgram,
        transport: Transport[P],
        machine: Machine[P],
        monitor: Monitor,
    ) -> None:
        self.program = program
        self.monitor = monitor
        self._handlers = _Decoder(program, transport, machine).handlers()

    @property
    def at(self) -> int:
        """The row in progress."""
        return self.monitor.position[ROW]

    def begin(self) -> None:
        """Go to the first row of the next step."""
        self.monitor.begin()

    def repeat(self) -> None:
        """Run the whole step once more. What the monitor knows of its first run stays."""
        first, self.monitor = self.monitor, Monitor(len(self._handlers))
        self.monitor.position = first.position
        self.monitor.position[ROW] = 0
        finished = self.advance()
        assert finished, "a wait of this transport has to block"
        self.monitor = first

    def advance(self) -> bool:
        """Run until the step is finished (True) or until a wait is not ready (False).

        On a transport whose waits block it always finishes.
        """
        handlers, ends, now = self._handlers, self.monitor.ends, self.monitor.now
        position = self.monitor.position
        for at in range(self.at, len(handlers)):
            position[ROW] = at
            if not handlers[at]():
                return False
            ends[at] = now()
        position[ROW] = len(handlers)
        return True


class _Decoder(Generic[P]):
    """Binds each row of a stream to machine and transport."""

    def __init__(self, program: RankProgram, transport: Transport[P], machine: Machine[P]) -> None:
        self.program, self.transport, self.machine = program, transport, machine
        self.operands = program.stream.operands
        self.units = program.stream.units
        self.works: dict[int, Work] = {}

    def handlers(self) -> list[Handler]:
        machine, works = self.machine, self.works
        bind: dict[int, Callable[[int, list[int]], Handler]] = {
            Code.RUN: self._run,
            Code.LOAD: self._load,
            Code.SEND: self._send,
            Code.RECV: self._recv,
            Code.COUNT: lambda row, _: _post(works, Code.COUNT, machine.post_count),
            Code.TIE: self._tie,
            Code.NORM: lambda row, _: _post(works, Code.NORM, machine.post_norm),
            Code.STEP: lambda row, _: machine.step,
            Code.REPORT: self._report,
            Code.WAIT_MESSAGE: self._wait_message,
            Code.WAIT_REDUCE: self._wait_reduce,
            Code.WAIT_COUNT: lambda row, _: _wait(works, Code.COUNT, machine.counted),
            Code.WAIT_TIE: lambda row, _: _wait(works, Code.TIE, None),
            Code.WAIT_NORM: lambda row, _: _wait(works, Code.NORM, None),
            Code.WAIT_REPORT: lambda row, _: _wait(works, Code.REPORT, None),
        }
        table = self.program.stream.table.tolist()
        return [bind[row[CODE]](index, row) for index, row in enumerate(table)]

    def _run(self, index: int, row: list[int]) -> Handler:
        task = Task(OPS[row[OP]], row[STAGE], row[MICROBATCH])
        reads, writes = self.operands[row[READS]], self.operands[row[WRITES]]
        return self.machine.bind_run(row[BODY], task, reads, writes)

    def _load(self, index: int, row: list[int]) -> Handler:
        return self.machine.bind_load(row[MICROBATCH], self.operands[row[WRITES]][0])

    def _link(self, row: list[int]) -> Link:
        task = Task(OPS[row[OP]], row[STAGE], row[MICROBATCH])
        return Link(self.program.queues[row[QUEUE]], row[SEQUENCE], task)

    def _send(self, index: int, row: list[int]) -> Handler:
        payload = self.machine.bind_send(self.operands[row[READS]][0])
        return _post_message(
            self.works, _message(index), self.transport.post_send, self._link(row), payload
        )

    def _recv(self, index: int, row: list[int]) -> Handler:
        buffer = self.machine.bind_recv(self.operands[row[WRITES]][0])
        return _post_message(
            self.works, _message(index), self.transport.post_recv, self._link(row), buffer
        )

    def _tie(self, index: int, row: list[int]) -> Handler:
        post = self.machine.bind_tie(self.units[row[REF]], row[PEER])
        return _post(self.works, Code.TIE, post)

    def _report(self, index: int, row: list[int]) -> Handler:
        post = self.machine.bind_report(self.operands[row[READS]])
        return _post(self.works, Code.REPORT, post)

    def _wait_message(self, index: int, row: list[int]) -> Handler:
        operand = self.operands[row[READS]][0]
        release = self.machine.bind_release(operand) if operand.last else None
        return _wait(self.works, _message(row[REF]), release)

    def _wait_reduce(self, index: int, row: list[int]) -> Handler:
        reduction, unit = self.machine.reduction, self.units[row[REF]]
        works, key = self.works, _message(index)
        wait = _wait(works, key, None)

        def wait_reduce() -> bool:
            if key not in works:  # asked for once, however often the wait is tried
                works[key] = reduction(unit)
            return wait()

        return wait_reduce


def _message(row: int) -> int:
    """The key of the work posted at ``row``; codes are the keys of what is posted once a step."""
    return len(Code) + row


def _post(works: dict[int, Work], key: int, post: Callable[[], Work]) -> Handler:
    def post_sum() -> bool:
        works[key] = post()
        return True

    return post_sum


def _post_message(
    works: dict[int, Work],
    key: int,
    post: Callable[[Link, P], Work],
    link: Link,
    payload: Callable[[], P],
) -> Handler:
    def post_message() -> bool:
        works[key] = post(link, payload())
        return True

    return post_message


def _wait(works: dict[int, Work], key: int, then: Callable[[], object] | None) -> Handler:
    """Waits, forgets the work (it holds its tensor), and does what follows."""

    def wait() -> bool:
        if not works[key].wait():
            return False
        del works[key]
        return True

    def wait_then() -> bool:
        if not works[key].wait():
            return False
        del works[key]
        then()  # pyright: ignore[reportOptionalCall]
        return True

    return wait if then is None else wait_then
