"""The machine of real numbers: values by buffer slot, bodies through generated graphs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from schedc.ir.order import Task
from schedc.ops.generated import Graph
from schedc.program.body import Body, Reduce
from schedc.program.instructions import Operand
from schedc.program.program import RankProgram
from schedc.program.signature import Signature
from schedc.runtime.bodies import TANGENT, BodyBinder, BoundBody, Frame
from schedc.runtime.executor import Handler, Operands
from schedc.runtime.first_fault import Inspector
from schedc.runtime.loss_scale import LossScale
from schedc.runtime.optimizer import Optimizer
from schedc.runtime.share import Share
from schedc.runtime.transports.interface import TensorTransport, Work
from schedc.runtime.unit_state import UnitState, sum_of_squares
from schedc.runtime.weights import DTYPES

ALL_DTYPES = DTYPES | {"int64": torch.int64, "int32": torch.int32, "bool": torch.bool}


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step came to; ``loss`` and ``norm`` are global and the same on every rank.

    ``skipped`` says why no update was made; ``fault`` is True where that is because loss or
    gradients are not finite. ``loss_scale`` is what the gradients were computed with, 1 for all but
    fp16. ``microbatch_losses`` are this rank's sums of token losses, by microbatch.
    """

    loss: float
    norm: float
    valid: int
    skipped: str | None
    fault: bool
    loss_scale: float
    microbatch_losses: dict[int, float]


@dataclass(frozen=True, slots=True)
class RoundedSum:
    """The sum of ``rounded`` gradients, which replaces the ``gradients`` once it is there."""

    posted: Work
    rounded: Tensor
    gradients: Tensor

    def wait(self) -> bool:
        if not self.posted.wait():
            return False
        self.gradients.copy_(self.rounded)
        return True


class TensorMachine:
    """Does what a rank program says, with tensors. One instance a rank; steps one after another.

    All tensors are on the transport's device. Nothing but ``step`` and ``result`` reads one of
    their numbers, which makes the host wait for a GPU.
    """

    def __init__(
        self,
        program: RankProgram,
        signatures: Mapping[str, Signature],
        graphs: Mapping[str, Graph],
        states: Mapping[str, UnitState],
        rotary: tuple[Tensor, Tensor] | None,
        transport: TensorTransport,
        optimizer: Optimizer,
        share: Share,
        tied: Mapping[str, str],
        loss_scale: LossScale,
        inspector: Inspector,
    ) -> None:
        """``tied`` names the parameter of a unit, within it, that another unit has too."""
        self.program, self.states, self.transport = program, states, transport
        self.optimizer, self.share, self.tied = optimizer, share, tied
        self.loss_scale, self.inspector = loss_scale, inspector
        self.before_update: Callable[[], None] | None = None
        self._buffers = {buffer.name: buffer for buffer in program.buffers}
        self._base: dict[str, int] = {}
        for buffer in program.buffers:
            self._base[buffer.name] = sum(b.slots for b in program.buffers[: len(self._base)])
        self._values: list[Any] = [None] * sum(b.slots for b in program.buffers)
        self._received: set[int] = set()
        self.binder = BodyBinder(signatures, graphs, states, rotary, self.reduce, inspector)
        self._units = {stage: len(units) for stage, units in program.stages}
        self._bound: dict[tuple[int, tuple[int, ...]], BoundBody] = {}
        self._given: set[int] = set()
        self._loss_of: dict[int, int] = {}
        self._reductions: dict[str, Work] = {}
        self.device = transport.device
        self._tangent = torch.zeros((), device=self.device)
        self._count = torch.zeros(1, dtype=torch.int64, device=self.device)
        self._squares = torch.zeros(1, dtype=torch.float64, device=self.device)
        self._loss = torch.zeros(1, dtype=torch.float64, device=self.device)
        self.begin(0, 0.0)

    def begin(self, step: int, rate: float) -> None:
        """Prepare for ``step``, which updates at learning rate ``rate``."""
        self._step, self._rate = step, rate
        self._norm = math.nan
        self._skipped: str | None = None
        self._fault = False
        self._scale = self.loss_scale.value
        self._losses: tuple[list[int], Tensor] | None = None

    def result(self) -> StepResult:
        """What the step came to, once its program has run to its end."""
        valid = int(self._count.item())
        loss = self._loss.item() / valid if valid else 0.0
        each: dict[int, float] = {}
        if self._losses is not None:
            microbatches, losses = self._losses
            each = dict(zip(microbatches, losses.tolist(), strict=True))
        return StepResult(loss, self._norm, valid, self._skipped, self._fault, self._scale, each)

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
            dtype = ALL_DTYPES[buffer.dtype]
            values[slot] = torch.zeros(buffer.shape, dtype=dtype, device=self.device)
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
        interface = self.program.bodies[body]
        first = self._first_given(interface)
        bound = self._bound.get((body, first))
        if bound is None:
            bound = self.binder.bind(interface, self._units[interface.stage], first)
            self._bound[body, first] = bound
        for name, write in zip(interface.writes, writes, strict=True):
            if name == "loss":
                self._loss_of[self._slot(write)] = task.microbatch
        return self._make_run(
            bound,
            task.microbatch,
            tuple(zip(interface.reads, reads, strict=True)),
            tuple(zip(interface.writes, writes, strict=True)),
        )

    def _first_given(self, body: Body) -> tuple[int, ...]:
        """Which of the gradients that ``body`` gives no earlier row of the step has given."""
        first: list[int] = []
        for position, gradient in enumerate(self.binder.gradients_of(body)):
            if id(gradient) not in self._given:
                self._given.add(id(gradient))
                first.append(position)
        return tuple(first)

    def _make_run(
        self,
        bound: BoundBody,
        microbatch: int,
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
        tangent, at, inspector = self._tangent, places[TANGENT], self.inspector

        def run() -> bool:
            inspector.microbatch = microbatch
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

    def reduce(self, step: Reduce) -> None:
        """Start the sum of a unit's gradients."""
        gradients = self.states[step.unit].flat_gradients
        if step.dtype == "fp32":
            work = self.transport.post_sum(step.unit, gradients, step.axes)
        else:
            rounded = gradients.to(DTYPES[step.dtype])
            posted = self.transport.post_sum(step.unit, rounded, step.axes)
            work = RoundedSum(posted, rounded, gradients)
        self._reductions[step.unit] = work

    def reduction(self, unit: str) -> Work:
        return self._reductions.pop(unit)

    def post_count(self) -> Work:
        self._count.fill_(self.share.valid(self._step))
        return self.transport.post_sum("count", self._count, ("dp",))

    def counted(self) -> None:
        """The gradient of the loss, scale / count: in fp64, then rounded once."""
        inverse = self._scale / self._count.double()
        self._tangent.copy_(torch.where(self._count > 0, inverse, 0.0).squeeze(0))

    def bind_tie(self, unit: str, peer: int) -> Callable[[], Work]:
        gradient = self.states[unit].gradients[self.tied[unit]]
        return lambda: self.transport.post_tie(gradient, peer)

    def post_norm(self) -> Work:
        if self.inspector.on:
            self.inspector.look_at_sums()
        self._squares.zero_()
        for state in self.states.values():
            if state.counted_gradients.numel():
                self._squares += sum_of_squares(state.counted_gradients)
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
                self._losses = [self._loss_of[slot] for slot in slots], together
            return self.transport.post_sum("report", self._loss, ("dp", "pp"))

        return post_report

    # Update

    def step(self) -> bool:
        """Every rank sees the same count, norm and loss, so all update, or all skip the step."""
        if self.inspector.on:
            return True
        self._norm = math.sqrt(self._squares.item()) / self._scale
        if self._scale != 1:
            for state in self.states.values():
                state.flat_gradients.mul_(1 / self._scale)
        if self.before_update is not None:
            self.before_update()
        self._decide()
        return True

    def _decide(self) -> None:
        """Update, or say why not."""
        if not self._count.item():
            self._skipped = "no valid labels"
            return
        self._fault = True
        if not math.isfinite(self._loss.item()):
            self._skipped = "the loss is not finite"
        elif not math.isfinite(self._norm):
            at = f" at loss scale {self._scale:.0f}" if self.loss_scale.dynamic else ""
            self._skipped = f"the gradients are not finite{at}"
            self.loss_scale.overflowed()
        else:
            self._fault = False
            self.optimizer.step(self._rate, self._norm)
            self.loss_scale.updated()
