"""How a unit's parameters lie in memory: in flat tensors, so that sums and steps take one call.

The runtime lays them out so, and the prediction of memory counts them so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from schedc.program.signature import Parameter, Unit
from schedc.program.work import owned_parameters, shared_names

ALIGNMENT = 16
"""Elements: every parameter begins at a multiple of 64 bytes (in fp32)."""

ROW = 1024
"""Elements: flat tensors are whole rows of these. The padding is zero and stays so."""


@dataclass(frozen=True, slots=True)
class FlatLayout:
    """Where each parameter of a unit begins, by its name within the unit, in elements.

    Trained ones lie in a flat tensor of ``size`` elements beside a flat gradient and the
    optimizer's state, frozen ones in another that has nothing beside it. What the norm counts of
    the gradient are its first ``counted`` elements: the copy of a parameter that an earlier unit
    has on another rank comes behind, and is counted there.
    """

    trained: dict[str, int]
    frozen: dict[str, int]
    counted: int
    size: int
    frozen_size: int


def flat_layouts(units: Iterable[Unit]) -> dict[str, FlatLayout]:
    """The layouts of a rank's ``units``, in model order, by name.

    A parameter that two of them have lies with the first.
    """
    units = tuple(units)
    shared = shared_names(units)
    return {unit.name: _layout(owned_parameters(unit, shared)) for unit in units}


def _layout(parameters: tuple[tuple[str, Parameter], ...]) -> FlatLayout:
    trained: dict[str, int] = {}
    frozen: dict[str, int] = {}
    own = [(n, p) for n, p in parameters if not p.frozen and not p.tied]
    copies = [(n, p) for n, p in parameters if not p.frozen and p.tied]
    counted = _place(own, trained, 0)
    size = _place(copies, trained, counted)
    frozen_size = _place([(n, p) for n, p in parameters if p.frozen], frozen, 0)
    return FlatLayout(trained, frozen, counted, size, frozen_size)


def _place(parameters: list[tuple[str, Parameter]], starts: dict[str, int], at: int) -> int:
    """Places ``parameters`` from ``at`` on; returns where the next row begins."""
    for name, parameter in parameters:
        starts[name] = at
        at += _up(math.prod(parameter.shape), ALIGNMENT)
    return _up(at, ROW)


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
