"""A machine of symbols: what a step computes, checked value by value, slot by slot.

A cell is one slot of a buffer. It holds the name of a value, nothing, or garbage while a receive
into it is under way; there are no cells beyond the declared ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from schedc.ir.order import Op, Task
from schedc.program.body import Reduce
from schedc.program.instructions import Operand
from schedc.program.program import RankProgram
from schedc.runtime.executor import Handler, Operands
from schedc.runtime.transports.interface import Transport, Work

Value = tuple[object, ...]
GARBAGE: Value = ("garbage",)


@dataclass(eq=False)
class Cell:
    name: str
    value: Value | None = None
    used: bool = False

    def put(self, value: Value) -> None:
        assert self.value is None, f"{self.name} is overwritten"
        self.value, self.used = value, True

    def get(self) -> Value:
        assert self.value is not None, f"{self.name} is read and is empty"
        assert self.value is not GARBAGE, f"{self.name} is read before its message is there"
        return self.value


@dataclass(eq=False)
class Total:
    """What a sum adds up: each part once."""

    parts: set[object] = field(default_factory=set[object])


class Symbols:
    """How symbols travel."""

    def move(self, source: Cell, target: Cell) -> None:
        assert target.value is GARBAGE, f"a message arrives in {target.name}, which is in other use"
        target.value = source.get()

    def add(self, values: Sequence[Total]) -> None:
        parts = [part for total in values for part in total.parts]
        assert len(parts) == len(set(parts)), "a part is summed twice"
        for total in values:
            total.parts = set(parts)


class SymbolicMachine:
    """One rank: ``replica`` of ``replicas`` along dp, in a model of ``stages`` stages."""

    def __init__(
        self, program: RankProgram, transport: Transport[Cell | Total], replica: int, replicas: int,
        units: int, stages: int,
    ) -> None:  # fmt: skip
        self.program, self.transport = program, transport
        self.replica, self.units, self.stages = replica, units, stages
        rows = range(program.microbatches)
        self.whole = {(d, m) for d in range(replicas) for m in rows}
        self.replicas = set(range(replicas))
        self.cells = {
            (buffer.name, slot): Cell(f"{buffer.name}.{slot}")
            for buffer in program.buffers
            for slot in range(buffer.slots)
        }
        self.gradients = {unit: Total() for unit in program.units}
        self.count, self.squares, self.loss = Total(), Total(), Total()
        self.reductions: dict[str, Work] = {}
        self.has_count = self.stepped = False

    def check_end(self) -> None:
        """One whole step, and nothing left over."""
        assert self.stepped
        assert self.loss.parts == self.whole, "the losses"
        for cell in self.cells.values():
            assert cell.value is None, f"{cell.name} is not empty at the end"
            assert cell.used, f"{cell.name} is never used"

    def _cell(self, operand: Operand) -> Cell:
        return self.cells[operand.buffer, operand.slot]

    def bind_run(self, body: int, task: Task, reads: Operands, writes: Operands) -> Handler:
        interface = self.program.bodies[body]

        def run() -> bool:
            assert (interface.op, interface.stage) == (task.op, task.stage)
            for name, operand in zip(interface.reads, reads, strict=True):
                assert self._cell(operand).get() == self._wanted(name, task), f"{task}: {name}"
            if task.op in (Op.I, Op.B) and task.stage == self.stages - 1:
                assert self.has_count, f"{task} runs before the count is there"
            for name, operand in zip(interface.writes, writes, strict=True):
                kind = {"y": "act", "dx": "grad"}.get(name, name)
                self._cell(operand).put((kind, task.stage, task.microbatch))
            for operand in reads:
                if operand.last:
                    self._cell(operand).value = None
            if task.op in (Op.W, Op.B):
                self._accumulate(task)
            for step in interface.steps:
                if isinstance(step, Reduce):
                    total = self.gradients[step.unit]
                    self.reductions[step.unit] = self.transport.post_sum(
                        step.unit, total, step.axes
                    )
            return True

        return run

    def _wanted(self, name: str, task: Task) -> Value:
        neighbours: dict[str, Value] = {
            "x": ("act", task.stage - 1, task.microbatch),
            "dy": ("grad", task.stage + 1, task.microbatch),
            "tokens": ("tokens", task.microbatch),
            "labels": ("labels", task.microbatch),
        }
        return neighbours.get(name, (name, task.stage, task.microbatch))

    def _accumulate(self, task: Task) -> None:
        for unit in dict(self.program.stages)[task.stage]:
            part = (self.replica, task.microbatch)
            assert part not in self.gradients[unit].parts, f"{task} adds to {unit} twice"
            self.gradients[unit].parts.add(part)

    def bind_load(self, microbatch: int, write: Operand) -> Handler:
        kind = self.program.buffer(write.buffer).kind

        def load() -> bool:
            self._cell(write).put((kind, microbatch))
            return True

        return load

    def bind_send(self, read: Operand) -> Callable[[], Cell]:
        def payload() -> Cell:
            self._cell(read).get()
            return self._cell(read)

        return payload

    def bind_recv(self, write: Operand) -> Callable[[], Cell]:
        def payload() -> Cell:
            self._cell(write).put(GARBAGE)
            return self._cell(write)

        return payload

    def bind_release(self, operand: Operand) -> Callable[[], object]:
        def release() -> None:
            self._cell(operand).get()
            self._cell(operand).value = None

        return release

    def bind_report(self, reads: Operands) -> Callable[[], Work]:
        def post() -> Work:
            for operand in reads:
                kind, _, microbatch = self._cell(operand).get()
                assert kind == "loss"
                self.loss.parts.add((self.replica, microbatch))
                self._cell(operand).value = None
            return self.transport.post_sum("report", self.loss, ("dp", "pp"))

        return post

    def post_count(self) -> Work:
        self.count.parts.add(self.replica)
        return self.transport.post_sum("count", self.count, ("dp",))

    def counted(self) -> None:
        assert self.count.parts == self.replicas
        self.has_count = True

    def reduction(self, unit: str) -> Work:
        return self.reductions[unit]

    def post_norm(self) -> Work:
        for unit, total in self.gradients.items():
            assert total.parts == self.whole, f"the gradients of {unit} are not complete"
            self.squares.parts.add(unit)
        return self.transport.post_sum("norm", self.squares, ("pp",))

    def step(self) -> bool:
        assert len(self.squares.parts) == self.units, "a step without its norm"
        assert not self.stepped
        self.stepped = True
        return True
