"""Bodies of a partitioned model: what each operation on each stage does, layer by layer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from schedc.ir.order import Op
from schedc.program.body import Body, Call, Step
from schedc.program.signature import Model, Signature, Unit
from schedc.program.work import NOTHING, work_of

Partition = tuple[tuple[str, ...], ...]
"""The units of each stage."""


def make_bodies(
    model: Model, partition: Partition, keep: bool = True
) -> dict[tuple[Op, int, bool], Body]:
    """The body of every operation on every stage; and another one of each where there is a tail.

    ``keep`` False is for evaluations: F keeps nothing for a backward.

    Contract: ``partition`` holds every unit of ``model`` once, in order.

    Pseudocode::

        F(s): for each unit, first to last: call unit.F (an evaluation drops what it saves)
        I(s): for each unit, last to first: call unit.I
        W(s): for each unit, last to first: call unit.W
        B(s): for each unit, last to first: call unit.I, then unit.W
        graphs that are idle are not called; an operation that would call none has no body

    B alternates so that no more than one unit's inputs of W are alive at a time. F saves nothing of
    a unit without I, and I owes nothing of one without W. I gives the gradient of the stage's
    input if and only if a unit before it has anything to train: its first graph's signature tells.
    """
    bodies: dict[tuple[Op, int, bool], Body] = {}
    for tail in model.tails:
        sized = model.of(tail)
        for stage, names in enumerate(partition):
            units = tuple(sized.unit(name) for name in names)
            for body in _StageBodies(sized, stage, units, keep).bodies():
                bodies[body.op, stage, tail] = replace(body, tail=tail)
    return bodies


class _StageBodies:
    """The four bodies of one stage. Values between units are ``h1 h2 …``, gradients ``dh1 …``."""

    def __init__(self, model: Model, stage: int, units: tuple[Unit, ...], keep: bool) -> None:
        self.model = model
        self.stage = stage
        self.units = units
        self.work = work_of(model, (unit.name for unit in units)) if keep else NOTHING
        self.input = "tokens" if units[0].kind == "embedding" else "x"
        self.has_head = units[-1].kind == "head"
        self.held_by_I = self._saved_input()
        self.held_by_W = self._owed_inputs()

    def bodies(self) -> tuple[Body, ...]:
        bodies = [self._forward()]
        if self.work.I:
            bodies += [self._input_gradient(), self._backward()]
        if self.work.W:
            bodies.append(self._weight_gradient())
        return tuple(bodies)

    def _forward(self) -> Body:
        labels = ("labels",) if self.has_head else ()
        output = "loss" if self.has_head else "y"
        steps: list[Step] = []
        for j, unit in enumerate(self.units):
            source = self.input if j == 0 else f"h{j}"
            target = output if j == len(self.units) - 1 else f"h{j + 1}"
            reads = (source, *(labels if unit.kind == "head" else ()))
            is_kept = self.work.I and not self._graph(j, "I").idle
            kept = (f"saved.{j}",) if is_kept else ()
            steps.append(Call(f"{unit.graphs}.F", unit.name, reads, (target, *kept)))
        reads = (self.input, *labels)
        saved = ("saved",) if self.work.I else ()
        return Body(Op.F, self.stage, False, reads, (output, *saved), tuple(steps))

    def _graph(self, j: int, op: str) -> Signature:
        return self.model.graphs[f"{self.units[j].graphs}.{op}"]

    def _calls_I(self, j: int) -> tuple[Call, ...]:
        """The call of unit ``j``'s I; none where it is idle."""
        unit = self.units[j]
        graph = self._graph(j, "I")
        if graph.idle:
            return ()
        last = j == len(self.units) - 1
        gradient = ("tangent" if unit.kind == "head" else "dy") if last else f"dh{j + 1}"
        labels = ("labels",) if graph.inputs_of("labels") else ()
        target = () if not graph.outputs_of("dx") else ("dx",) if j == 0 else (f"dh{j}",)
        reads = (f"saved.{j}", gradient, *labels)
        kept = () if self._graph(j, "W").idle else (f"owed.{j}",)
        return (Call(graph.name, unit.name, reads, (*target, *kept)),)

    def _calls_W(self, j: int) -> tuple[Call, ...]:
        unit = self.units[j]
        graph = self._graph(j, "W")
        return () if graph.idle else (Call(graph.name, unit.name, (f"owed.{j}",), ()),)

    def _input_gradient(self) -> Body:
        owed = ("owed",) if self.work.W else ()
        steps = tuple(call for j in self._backwards() for call in self._calls_I(j))
        return Body(Op.I, self.stage, False, self._reads_of_I(), (*self._dx(), *owed), steps)

    def _weight_gradient(self) -> Body:
        steps = tuple(call for j in self._backwards() for call in self._calls_W(j))
        return Body(Op.W, self.stage, False, (*self.held_by_W, "owed"), (), steps)

    def _backward(self) -> Body:
        steps: list[Step] = []
        for j in self._backwards():
            steps += [*self._calls_I(j), *self._calls_W(j)]
        return Body(Op.B, self.stage, False, self._reads_of_I(), self._dx(), tuple(steps))

    def _backwards(self) -> Iterable[int]:
        return reversed(range(len(self.units)))

    def _dx(self) -> tuple[str, ...]:
        return ("dx",) if self.work.dx else ()

    def _reads_of_I(self) -> tuple[str, ...]:
        head = self.model.graphs[f"{self.units[-1].graphs}.I"]
        labels = ("labels",) if self.has_head and head.inputs_of("labels") else ()
        gradient = () if self.has_head else ("dy",)
        return (*self.held_by_I, *gradient, *labels, "saved")

    def _saved_input(self) -> tuple[str, ...]:
        """The stage's input, where F saved it itself and not a copy.

        No call of I names it: it stands among the operands so that its buffer stays in use.
        """
        saved = self.model.graphs[f"{self.units[0].graphs}.F"].outputs_of("saved")
        return (self.input,) if any(v.alias in ("x", "tokens") for v in saved) else ()

    def _owed_inputs(self) -> tuple[str, ...]:
        """The stage's input and output gradient, where W reads them through ``owed``."""
        first, last = self.units[0].graphs, self.units[-1].graphs
        from_input = {
            v.name
            for v in self.model.graphs[f"{first}.F"].outputs_of("saved")
            if v.alias in ("x", "tokens")
        }
        holds_input = any(
            v.alias in from_input for v in self.model.graphs[f"{first}.I"].outputs_of("owed")
        )
        holds_dy = not self.has_head and any(
            v.alias == "dy" for v in self.model.graphs[f"{last}.I"].outputs_of("owed")
        )
        return (*((self.input,) if holds_input else ()), *(("dy",) if holds_dy else ()))
