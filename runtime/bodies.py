"""Bodies bound to tensors: a body's steps become calls on a frame, a short list of its values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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

    def bind(self, body: Body, first: str) -> BoundBody:
        """``first`` names the graphs, I or W, that are the first of a step to give their gradients.

        Those replace the last step's; all others add.
        """
        layout = _Layout(body)
        last_read = {
            name: index
            for index, step in enumerate(body.steps)
            if isinstance(step, Call)
            for name in step.reads
        }
        steps: list[FrameStep] = []
        for index, step in enumerate(body.steps):
            if isinstance(step, Reduce):
                steps.append(_start_reduction(self.reduce, step))
            else:
                dropped = {name for name in step.reads if last_read[name] == index}
                steps.append(self._bind_call(step, layout, dropped, first))
        used = frozenset(name.partition(".")[0] for name in last_read)
        size = len(layout.places)
        return BoundBody(tuple(steps), layout.places, used, layout.units, size)

    def _bind_call(self, call: Call, layout: _Layout, dropped: set[str], first: str) -> FrameStep:
        signature = self.signatures[call.graph]
        state = self.states[call.unit]
        reads = [(layout.places[n], _many(n), n in dropped) for n in call.reads]
        tail = self._tail(signature, state)
        names = [v.name for v in signature.outputs_of("grad")]
        grads = [state.gradients[name] for name in names]
        labels = [v.role for v in signature.outputs_of("y", "loss", "dx")] + names
        operation = call.graph[-1]
        look = partial(self.inspector.look, operation, call.unit, labels)
        single = [layout.places[name] for name in call.writes if not _many(name)]
        several = [layout.places[name] for name in call.writes if _many(name)]
        assert len(single) == len(signature.outputs_of("y", "loss", "dx")), call
        return _make_call(
            self.graphs[call.graph],
            reads,
            tail,
            single[0] if single else -1,
            several[0] if several else -1,
            grads,
            Tensor.copy_ if operation in first else Tensor.add_,
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

    def __init__(self, body: Body) -> None:
        calls = [step for step in body.steps if isinstance(step, Call)]
        names = [name for call in calls for name in (*call.reads, *call.writes)]
        self.units = 1 + max(
            (int(name.partition(".")[2]) for name in names if _many(name)), default=-1
        )
        self.places: dict[str, int] = {}
        for kind in ("saved", "owed"):
            for j in range(self.units):
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
    grads: list[Tensor],
    accumulate: Callable[[Tensor, Tensor], Tensor],
    inspector: Inspector,
    look: Callable[[Sequence[Tensor]], None],
) -> FrameStep:
    """The call of a graph. It keeps no reference to what the graph may drop while it runs.

    Gradients are added up in fp32, whatever the graph's dtype is.
    """
    first_grad = 1 if single >= 0 else 0
    after_grads = first_grad + len(grads)

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
        for total, gradient in zip(grads, outputs[first_grad:after_grads], strict=True):
            accumulate(total, gradient)

    return call
