"""Bodies bound to tensors: a body's steps become calls on a frame, a short list of its values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from schedc.ops.generated import Graph
from schedc.program.body import Body, Call, Reduce
from schedc.program.signature import Signature
from schedc.runtime.first_fault import Inspector
from schedc.runtime.unit_state import UnitState

Frame = list[Any]
"""A body's values while it runs: tensors, and tuples of tensors for ``saved.j`` and ``owed.j``."""

FrameStep = Callable[[Frame], None]

Total = tuple[Tensor, Callable[[Tensor, Tensor], Tensor]]
"""A parameter's gradient, and how a call's contribution gets into it: copied or added."""

TANGENT = "tangent"
"""The gradient of the loss: no value of the stream, but 1 / number of valid labels."""


@dataclass(frozen=True, slots=True)
class BoundBody:
    """A body's steps, and where its interface lies in the frame.

    ``places`` maps a name of the interface to its index; ``saved`` and ``owed`` to the first of
    ``units`` neighbouring indices. ``used`` are the names that a call reads.
    """

    steps: tuple[FrameStep, ...]
    places: dict[str, int]
    used: frozenset[str]
    units: int
    size: int


class BodyBinder:
    """Binds bodies to the graphs, parameters and gradients of a rank."""

    def __init__(
        self,
        signatures: Mapping[str, Signature],
        graphs: Mapping[str, Graph],
        states: Mapping[str, UnitState],
        rotary: tuple[Tensor, Tensor] | None,
        reduce: Callable[[Reduce], None],
        inspector: Inspector,
    ) -> None:
        self.signatures, self.graphs, self.states = signatures, graphs, states
        self.rotary, self.reduce, self.inspector = rotary, reduce, inspector

    def gradients_of(self, body: Body) -> list[Tensor]:
        """What the calls of ``body`` add to, in their order; a tied gradient may stand twice."""
        return [
            gradient
            for step in body.steps
            if isinstance(step, Call)
            for gradient in self._gradients(step)
        ]

    def bind(self, body: Body, units: int, first: Collection[int] = ()) -> BoundBody:
        """``units`` is how many the stage has.

        ``first`` are the positions in :meth:`gradients_of` of those that this run is the first of a
        step to give: they replace the last step's; all others add.
        """
        layout = _Layout(body, units)
        last_read = {
            name: index
            for index, step in enumerate(body.steps)
            if isinstance(step, Call)
            for name in step.reads
        }
        steps: list[FrameStep] = []
        position = 0
        for index, step in enumerate(body.steps):
            if isinstance(step, Reduce):
                steps.append(_start_reduction(self.reduce, step))
            else:
                dropped = {name for name in step.reads if last_read[name] == index}
                grads = self._gradients(step)
                totals: list[Total] = [
                    (total, Tensor.copy_ if position + i in first else Tensor.add_)
                    for i, total in enumerate(grads)
                ]
                position += len(grads)
                steps.append(self._bind_call(step, layout, dropped, totals))
        used = frozenset(name.partition(".")[0] for name in last_read)
        size = len(layout.places)
        return BoundBody(tuple(steps), layout.places, used, units, size)

    def _gradients(self, call: Call) -> list[Tensor]:
        state = self.states[call.unit]
        return [state.gradients[v.name] for v in self.signatures[call.graph].outputs_of("grad")]

    def _bind_call(
        self, call: Call, layout: _Layout, dropped: set[str], totals: list[Total]
    ) -> FrameStep:
        signature = self.signatures[call.graph]
        reads = [(layout.places[n], _many(n), n in dropped) for n in call.reads]
        tail = self._tail(signature, self.states[call.unit])
        labels = [v.role for v in signature.outputs_of("y", "loss", "dx")]
        labels += [v.name for v in signature.outputs_of("grad")]
        look = partial(self.inspector.look, call.graph[-1], call.unit, labels)
        single = [layout.places[name] for name in call.writes if not _many(name)]
        several = [layout.places[name] for name in call.writes if _many(name)]
        assert len(single) == len(signature.outputs_of("y", "loss", "dx")), call
        return _make_call(
            self.graphs[call.graph],
            reads,
            tail,
            single[0] if single else -1,
            several[0] if several else -1,
            totals,
            self.inspector,
            look,
        )

    def _tail(self, signature: Signature, state: UnitState) -> list[Tensor]:
        """The arguments that are the same in every call: parameters, then rotary tables."""
        tail: list[Tensor] = []
        for value in signature.inputs:
            if value.role == "param":
                tail.append(state.parameters[value.name])
            elif value.role in ("cos", "sin"):
                assert self.rotary is not None, signature.name
                tail.append(self.rotary[value.role == "sin"])
            else:
                assert not tail, f"{signature.name}: {value.name} after parameters"
        return tail


class _Layout:
    """Gives each value of a body its place in the frame, a stage's saved and owed side by side."""

    def __init__(self, body: Body, units: int) -> None:
        calls = [step for step in body.steps if isinstance(step, Call)]
        names = [name for call in calls for name in (*call.reads, *call.writes)]
        self.places: dict[str, int] = {}
        for kind in ("saved", "owed"):
            for j in range(units):
                self._place(f"{kind}.{j}")
            self.places[kind] = self.places.get(f"{kind}.0", -1)
        for name in (*body.reads, *body.writes, *names, TANGENT):
            self._place(name)

    def _place(self, name: str) -> None:
        if name not in self.places:
            self.places[name] = len(self.places)


def _many(name: str) -> bool:
    """Whether the name stands for all of a graph's ``saved`` or ``owed`` tensors."""
    return name.startswith(("saved.", "owed."))


def _start_reduction(reduce: Callable[[Reduce], None], step: Reduce) -> FrameStep:
    def start(frame: Frame) -> None:
        reduce(step)

    return start


def _make_call(
    graph: Graph,
    reads: Sequence[tuple[int, bool, bool]],
    tail: list[Tensor],
    single: int,
    several: int,
    totals: list[Total],
    inspector: Inspector,
    look: Callable[[Sequence[Tensor]], None],
) -> FrameStep:
    """The call of a graph. It keeps no reference to what the graph may drop while it runs.

    Gradients are added up in fp32, whatever the graph's dtype is.
    """
    first_grad = 1 if single >= 0 else 0
    after_grads = first_grad + len(totals)

    def call(frame: Frame) -> None:
        arguments: list[Tensor] = []
        for place, many, drop in reads:
            if many:
                arguments.extend(frame[place])
            else:
                arguments.append(frame[place])
            if drop:
                frame[place] = None
        arguments.extend(tail)
        outputs = graph(arguments)
        if inspector.on:
            look(outputs)
        if single >= 0:
            frame[single] = outputs[0]
        if several >= 0:
            frame[several] = outputs[after_grads:]
        for (total, accumulate), gradient in zip(
            totals, outputs[first_grad:after_grads], strict=True
        ):
            accumulate(total, gradient)

    return call
