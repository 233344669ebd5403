"""Signatures of graphs: what goes in, what comes out, what it costs. No torch here.

A signature is all that passes, verifier, simulator and executor know of a graph. The graph itself
is generated Python beside it in the compiled folder.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

Role = Literal[
    "x",  # hidden states into the unit: [microbatch, sequence, hidden]
    "tokens",  # input ids: int64 [microbatch, sequence]
    "labels",  # labels, already shifted: int64 [microbatch, sequence], -100 ignored
    "param",  # a parameter of the unit, by its name within the unit
    "cos",  # rotary tables, made once on each stage
    "sin",
    "positions",  # int64 [sequence], input of the rotary graph
    "saved",  # kept by F for I
    "dy",  # gradient of the unit's output (of the loss: a scalar tangent)
    "owed",  # kept by I for W
    "y",  # hidden states out of the unit
    "loss",  # fp32 scalar: the sum of the valid labels' token losses
    "dx",  # gradient of the unit's input
    "grad",  # gradient of a parameter, by its name within the unit, in the parameter's dtype
]

DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp64": 8, "int64": 8, "int32": 4, "bool": 1}


@dataclass(frozen=True, slots=True)
class Value:
    """One input or output of a graph.

    ``stride`` is in elements. ``alias`` names the input whose storage an output shares (an input's
    ``name``); such an output costs no memory of its own but keeps that input alive.
    """

    role: Role
    name: str
    shape: tuple[int, ...]
    dtype: str
    stride: tuple[int, ...]
    alias: str | None = None

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Signature:
    """A graph's interface and cost.

    Orders of inputs and outputs, by role:

    =========  ==========================================  ==============================
    graph      inputs                                      outputs
    =========  ==========================================  ==============================
    rotary     positions                                   cos sin
    *.F        (x | tokens) [labels] param* [cos sin]      (y | loss) saved*
    *.I        saved* [dy] [labels] param* [cos sin]       [dx] grad* owed*
    *.W        owed*                                       grad*
    =========  ==========================================  ==============================

    Everything W reads comes through ``owed`` (which may alias saved tensors, x or tokens).
    The embedding has no ``dx``; its I computes nothing and hands dy and tokens on as owed, so that
    every unit has the same three graphs. ``flops`` counts a multiply-add as two. ``moved`` is the
    bytes that all nodes read and write. ``peak`` is the largest number of bytes alive during the
    call among what the graph allocated and the inputs it owns (x, saved, owed and dy: dropped at
    their last use; an x that is saved stays); ``peak_beside`` the same where others hold x and dy,
    without these.

    Where parameters are frozen, graphs have less to do, and their signatures say so: no ``grad`` of
    what is frozen, no ``dx`` where no unit below has anything to train, and no ``dy`` where neither
    the unit nor one below has. A unit's I has ``dx`` if and only if that of the unit before it has
    ``dy``: elsewhere no gradient passes between them and no message is needed. A graph without
    inputs and outputs is :attr:`idle`: it computes nothing and need not be called.
    """

    name: str
    digest: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    flops: int
    moved: int
    peak: int
    peak_beside: int

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do: an I or W of what is frozen."""
        return not self.inputs and not self.outputs

    def inputs_of(self, *roles: Role) -> tuple[Value, ...]:
        return tuple(v for v in self.inputs if v.role in roles)

    def outputs_of(self, *roles: Role) -> tuple[Value, ...]:
        return tuple(v for v in self.outputs if v.role in roles)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter by its Hugging Face name, and how it is initialised.

    ``init`` is ``"ones"``, ``"zeros"``, ``"normal <std>"``, or ``"normal <std> zero-row <n>"`` for
    a table with a padding row; random numbers are seeded by the name, so that they are the same for
    every mesh and schedule. Nothing computes the gradient of a parameter that is ``frozen``: it has
    no state in the optimizer and no part in the norm.

    A ``tied`` parameter is one of an earlier unit once more: the head's ``lm_head.weight`` has the
    name of the embedding's and so its values. In checkpoints, in the norm and among the model's
    parameters it counts once (:attr:`Model.parameters`). Each of the two units has a gradient of
    its own; the parameter's is their sum.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    init: str
    frozen: bool = False
    tied: bool = False

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * DTYPE_BYTES[self.dtype]


UnitKind = Literal["embedding", "layer", "head"]


@dataclass(frozen=True, slots=True)
class Unit:
    """What a stage is made of: the embedding, a decoder layer or the head.

    ``graphs`` is the prefix of its graphs' names (``layer`` for ``layer.F`` …). ``parameters``
    maps names within the unit to parameters, in the order of the F graph's param inputs.
    """

    name: str  # "embedding", "layers.3", "head"
    kind: UnitKind
    graphs: str
    parameters: tuple[tuple[str, Parameter], ...]

    @property
    def bytes(self) -> int:
        return sum(parameter.bytes for _, parameter in self.parameters)


TAIL = "tail"
"""Marks the graphs, bodies and buffers of a step's last microbatch where it is smaller."""


@dataclass(frozen=True)
class Model:
    """A traced model as the passes see it: its units from first to last, and its graphs.

    ``config`` is the full configuration in Hugging Face's form.
    """

    units: tuple[Unit, ...]
    graphs: dict[str, Signature]
    sources: dict[str, str]  # generated Python of each graph, by its name
    config: dict[str, object]

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """The model's parameters, tied ones once."""
        owned = (parameter for unit in self.units for _, parameter in unit.parameters)
        return tuple(parameter for parameter in owned if not parameter.tied)

    @property
    def has_tail(self) -> bool:
        """Whether there are graphs for a smaller last microbatch of a step, the tail."""
        return any(f"{unit.graphs}.{TAIL}.F" in self.graphs for unit in self.units)

    @property
    def tails(self) -> tuple[bool, ...]:
        """The sizes of microbatches that there are: what :meth:`of` can be asked for."""
        return (False, True) if self.has_tail else (False,)

    def of(self, tail: bool) -> Model:
        """The model on microbatches of one size: its units have the graphs of the tail, or not."""
        return self._of_tail if tail else self

    def unit(self, name: str) -> Unit:
        return self._by_name[name]

    @cached_property
    def _of_tail(self) -> Model:
        units = tuple(replace(unit, graphs=f"{unit.graphs}.{TAIL}") for unit in self.units)
        return replace(self, units=units)

    @cached_property
    def _by_name(self) -> dict[str, Unit]:
        return {unit.name: unit for unit in self.units}
