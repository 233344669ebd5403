"""What a stage has to do in the backward, and which gradients a rank has: frozen and tied ones.

Signatures say what there is to compute; this module says it in the words of passes, verifier and
simulator. An operation that would call no graph is not in a program at all: neither its run nor the
messages and buffers that only it would use. (An empty run would still be ordered among the others,
wait for its operands and be timed and drawn.)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from schedc.ir.order import Op
from schedc.program.signature import Model, Parameter, Unit


@dataclass(frozen=True, slots=True)
class StageWork:
    """Whether a stage has anything to do in ``I`` and in ``W``, and whether its I gives ``dx``.

    W has work only where I has; B is both. ``dx`` is wanted if and only if the stage before it has
    an I: elsewhere nothing is sent.
    """

    I: bool  # noqa: E741
    W: bool
    dx: bool

    def has(self, op: Op) -> bool:
        """Whether ``op`` of the stage calls any graph."""
        return self.I if op in (Op.I, Op.B) else self.W if op is Op.W else True


EVERYTHING = StageWork(I=True, W=True, dx=True)
"""The work of a stage where nothing is frozen; only the first has no dx even then."""


def work_of(model: Model, units: Iterable[str]) -> StageWork:
    """The work of the stage that holds ``units``."""
    prefixes = [model.unit(name).graphs for name in units]
    return StageWork(
        I=any(not model.graphs[f"{prefix}.I"].idle for prefix in prefixes),
        W=any(not model.graphs[f"{prefix}.W"].idle for prefix in prefixes),
        dx=bool(prefixes and model.graphs[f"{prefixes[0]}.I"].outputs_of("dx")),
    )


@dataclass(frozen=True, slots=True)
class TiedParameter:
    """The parameter ``name`` that two units have, and that is trained: each gives a gradient of it.

    ``places`` maps the units, in model order, to its name within each.
    """

    name: str
    places: dict[str, str]


def tied_parameter(units: Iterable[Unit]) -> TiedParameter | None:
    """The tied parameter of a model's ``units``; None where none is tied, or it is frozen."""
    places: dict[str, dict[str, str]] = {}
    tied: str | None = None
    for unit in units:
        for inner, parameter in unit.parameters:
            places.setdefault(parameter.name, {})[unit.name] = inner
            if parameter.tied and not parameter.frozen:
                tied = parameter.name
    return None if tied is None else TiedParameter(tied, places[tied])


def shared_names(units: Iterable[Unit]) -> dict[str, str]:
    """The parameters that several of a rank's ``units`` have, and the first unit that has each.

    They have one storage, one gradient and one state of the optimizer: those of the first unit.
    """
    first: dict[str, str] = {}
    shared: dict[str, str] = {}
    for unit in units:
        for _, parameter in unit.parameters:
            if parameter.name in first:
                shared[parameter.name] = first[parameter.name]
            first.setdefault(parameter.name, unit.name)
    return shared


def owned_parameters(unit: Unit, shared: dict[str, str]) -> tuple[tuple[str, Parameter], ...]:
    """The parameters of ``unit`` that lie in its own tensors, by name within the unit."""
    return tuple(
        (inner, parameter)
        for inner, parameter in unit.parameters
        if shared.get(parameter.name, unit.name) == unit.name
    )


GradientCall = tuple[int, str, str]
"""A call that gives gradients: (stage, ``I`` or ``W``, unit)."""


def gradient_calls(
    model: Model, stages: Iterable[tuple[int, tuple[str, ...]]]
) -> dict[str, tuple[GradientCall, ...]]:
    """For each unit of a rank that has gradients of its own: the calls that add to them.

    ``stages`` are the rank's, with their units. Those of a tied parameter whose two units lie on
    this rank belong to the first of them, and both units' calls add to them.
    """
    stage_of = {name: stage for stage, names in stages for name in names}
    units = [model.unit(name) for name in stage_of]
    shared = shared_names(units)
    found: dict[str, list[GradientCall]] = {}
    for unit in units:
        calls = [(stage_of[unit.name], op, unit.name) for op in _giving(model, unit)]
        own = owned_parameters(unit, shared)
        if calls and (not unit.parameters or any(not parameter.frozen for _, parameter in own)):
            found.setdefault(unit.name, []).extend(calls)
        for _, parameter in unit.parameters:
            owner = shared.get(parameter.name, unit.name)
            if owner != unit.name and not parameter.frozen:
                found[owner].append((stage_of[unit.name], "W", unit.name))
    return {name: tuple(calls) for name, calls in found.items()}


def _giving(model: Model, unit: Unit) -> str:
    """Which of a unit's graphs give gradients of parameters: I those of small ones, W the rest."""
    inner, late = (model.graphs[f"{unit.graphs}.{op}"] for op in "IW")
    return ("I" if inner.outputs_of("grad") else "") + ("" if late.idle else "W")
