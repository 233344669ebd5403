"""The machine of real numbers: values by buffer slot, bodies through generated graphs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from schedc.ir.order import Op, Task
from schedc.ops.generated import Graph
from schedc.program.instructions import Operand
from schedc.program.program import RankProgram
from schedc.program.signature import Signature
from schedc.runtime.bodies import TANGENT, BodyBinder, BoundBody, Frame
from schedc.runtime.executor import Handler, Operands
from schedc.runtime.optimizer import Optimizer
from schedc.runtime.share import Share
from schedc.runtime.transports.interface import Transport, Work
from schedc.runtime.unit_state import UnitState, sum_of_squares
from schedc.runtime.weights import DTYPES

ALL_DTYPES = DTYPES | {"int64": torch.int64, "int32": torch.int32, "bool": torch.bool}


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step came to; ``loss`` and ``norm`` are global and the same on every rank.

    ``skipped`` says why no update was made. ``microbatch_losses`` are this rank's sums of token
    losses, by microbatch.
    """

    loss: float
    norm: float
    valid: int
    skipped: str | None
    microbatch_losses: dict[int, float]


class TensorMachine:
    """Does what a rank program says, with tensors. One instance a rank; steps one after another."""

    def __init__(
        self,
        program: RankProgram,
        signatures: Mapping[str, Signature],
        graphs: Mapping[str, Graph],
        states: Mapping[str, UnitState],
        rotary: tuple[Tensor, Tensor] | None,
        transport: Transport[Tensor],
        optimizer: Optimizer,
        share: Share,
    ) -> None:
        self.program, self.states, self.transport = program, states, transport
        self.optimizer, self.share = optimizer, share
        self.before_update: Callable[[], None] | None = None
        self._buffers = {buffer.name: buffer for buffer in program.buffers}
        self._base: dict[str, int] = {}
        for buffer in program.buffers:
            self._base[buffer.name] = sum(b.slots for b in program.buffers[: len(self._base)])
        self._values: list[Any] = [None] * sum(b.slots for b in program.buffers)
        self._received: set[int] = set()
        self.binder = BodyBinder(signatures, graphs, states, rotary, self._reduce)
        self._bound: dict[tuple[int, str], BoundBody] = {}
        self._begun: set[tuple[str, int]] = set()
        self._loss_of: dict[int, int] = {}
        self._reductions: dict[str, Work] = {}
        self._tangent = torch.zeros(())
        self._count = torch.zeros(1, dtype=torch.int64)
        self._squares = torch.zeros(1, dtype=torch.float64)
        self._loss = torch.zeros(1, dtype=torch.float64)
        self.begin(0, 0.0)

    def begin(self, step: int, rate: float) -> None:
        """Prepare for ``step``, which updates at learning rate ``rate``."""
        self._step, self._rate = step, rate
        self._valid = 0
        self._norm = math.nan
        self._skipped: str | None = None
        self._microbatch_losses: dict[int, float] = {}

    def result(self) -> StepResult:
        """What the step came to, once its program has run to its end."""
        loss = self._loss.item() / self._valid if self._valid else 0.0
        return StepResult(loss, self._norm, self._valid, self._skipped, self._microbatch_losses)

    @property
    def receive_buffers(self) -> list[Tensor]:
        return [self._values[slot] for slot in sorted(self._received)]

    # Values

    def _slot(self, operand: Operand) -> int:
        return self._base[operand.buffer] + operand.slot

    def bind_load(self, microbatch: int, write: Operand) -> Handler:
        values, slot, share = self._values, self._slot(write), self.share
        read = share.labels if self._buffers[write.buffer].kind == "labels" else share.tokens

        def load() -> bool:
            values[slot] = read(self._step, microbatch)
            return True

        return load

    def bind_send(self, read: Operand) -> Callable[[], Tensor]:
        values, slot = self._values, self._slot(read)
        return lambda: values[slot]

    def bind_recv(self, write: Operand) -> Callable[[], Tensor]:
        """Receive buffers are allocated once and used again in every round and step."""
        values, slot = self._values, self._slot(write)
        if slot not in self._received:
            buffer = self._buffers[write.buffer]
            values[slot] = torch.zeros(buffer.shape, dtype=ALL_DTYPES[buffer.dtype])
            self._received.add(slot)
        return lambda: values[slot]

    def bind_release(self, operand: Operand) -> Callable[[], object]:
        values, slot = self._values, self._slot(operand)
        if slot in self._received:
            return lambda: None

        def release() -> None:
            values[slot] = None

        return release

    # Bodies

    def bind_run(self, body: int, task: Task, reads: Operands, writes: Operands) -> Handler:
        parts = {Op.I: "I", Op.W: "W", Op.B: "IW"}.get(task.op, "")
        first = "".join(p for p in parts if (p, task.stage) not in self._begun)
        self._begun.update((part, task.stage) for part in parts)
        bound = self._bound.get((body, first))
        if bound is None:
            bound = self.binder.bind(self.program.bodies[body], first)
            self._bound[body, first] = bound
        interface = self.program.bodies[body]
        for name, write in zip(interface.writes, writes, strict=True):
            if name == "loss":
                self._loss_of[self._slot(write)] = task.microbatch
        return self._make_run(
            bound,
            tuple(zip(interface.reads, reads, strict=True)),
            tuple(zip(interface.writes, writes, strict=True)),
        )

    def _make_run(
        self,
        bound: BoundBody,
        reads: tuple[tuple[str, Operand], ...],
        writes: tuple[tuple[str, Operand], ...],
    ) -> Handler:
        values, steps, size, units = self._values, bound.steps, bound.size, bound.units
        places, several = bound.places, ("saved", "owed")
        used = [(n, o) for n, o in reads if n in bound.used]
        take = [(places[n], self._slot(o)) for n, o in used if n not in several]
        take_all = [(places[n], self._slot(o)) for n, o in used if n in several]
        give = [(places[n], self._slot(o)) for n, o in writes if n not in several]
        give_all = [(places[n], self._slot(o)) for n, o in writes if n in several]
        freed = [self._slot(o) for _, o in reads if o.last]
        freed = [slot for slot in freed if slot not in self._received]
        tangent, at = self._tangent, places[TANGENT]

        def run() -> bool:
            frame: Frame = [None] * size
            frame[at] = tangent
            for place, slot in take:
                frame[place] = values[slot]
            for place, slot in take_all:
                frame[place : place + units] = values[slot]
            for slot in freed:
                values[slot] = None
            for step in steps:
                step(frame)
            for place, slot in give:
                values[slot] = frame[place]
            for place, slot in give_all:
                values[slot] = frame[place : place + units]
            return True

        return run

    # Sums

    def _reduce(self, unit: str, axes: tuple[str, ...]) -> None:
        flat = self.states[unit].flat_gradients
        self._reductions[unit] = self.transport.post_sum(unit, flat, axes)

    def reduction(self, unit: str) -> Work:
        return self._reductions[unit]

    def post_count(self) -> Work:
        self._count.fill_(self.share.valid(self._step))
        return self.transport.post_sum("count", self._count, ("dp",))

    def counted(self) -> None:
        self._valid = int(self._count.item())
        self._tangent.fill_(1 / self._valid if self._valid else 0.0)

    def post_norm(self) -> Work:
        self._squares.zero_()
        for state in self.states.values():
            self._squares += sum_of_squares(state.flat_gradients)
        return self.transport.post_sum("norm", self._squares, ("pp",))

    def bind_report(self, reads: Operands) -> Callable[[], Work]:
        slots = [self._slot(operand) for operand in reads]

        def post_report() -> Work:
            losses = [self._values[slot] for slot in slots]
            for slot in slots:
                self._values[slot] = None
            self._loss.zero_()
            if losses:
                together = torch.stack(losses).double()
                self._loss += together.sum()
                each = zip(slots, together.tolist(), strict=True)
                self._microbatch_losses = {self._loss_of[slot]: value for slot, value in each}
            return self.transport.post_sum("report", self._loss, ("dp", "pp"))

        return post_report

    # Update

    def step(self) -> bool:
        """Every rank sees the same count and norm, so all update, or all skip the step."""
        self._norm = math.sqrt(self._squares.item())
        if self.before_update is not None:
            self.before_update()
        if not self._valid:
            self._skipped = "no valid labels"
        elif not math.isfinite(self._norm):
            self._skipped = "the gradients are not finite"
        else:
            self.optimizer.step(self._rate, self._norm)
        return True
