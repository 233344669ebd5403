"""Parameters and gradients of one unit, each kind in one flat tensor.

Flat, because a reduction, the norm, clipping and the optimizer then take one call a unit. Frozen
parameters lie apart: they have no gradient.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from schedc.program.flat import ROW, flat_layouts
from schedc.program.signature import Unit
from schedc.runtime.weights import DTYPES

CPU = torch.device("cpu")


class UnitState:
    """A unit's parameters and gradients, by name within the unit.

    They are views: of ``flat_parameters`` and ``flat_gradients`` those that are trained, of
    ``flat_frozen`` those that are not, which have no gradient. All live on ``device``. What a unit
    of ``earlier``, the rank's units before this one, has too (the tied embedding) is that unit's:
    one storage, one gradient. ``counted_gradients`` are those that the norm counts here.

    Graphs read parameters in the dtype of the model. The optimizer updates ``flat_masters``, fp32;
    the trained parameters are a rounded copy of it (:meth:`refresh`), or the same tensor where the
    model is fp32. Gradients are fp32: those of all microbatches are added up there. ``masters`` are
    the numbers that a checkpoint has: of what is frozen, the parameter itself.
    """

    def __init__(
        self,
        unit: Unit,
        values: Mapping[str, Tensor],
        earlier: Sequence[UnitState] = (),
        device: torch.device = CPU,
    ) -> None:
        """``values`` are fp32, by Hugging Face's names, on any device."""
        self.unit = unit
        layout = flat_layouts([*(state.unit for state in earlier), unit])[unit.name]
        (dtype,) = {DTYPES[parameter.dtype] for _, parameter in unit.parameters}
        self.flat_masters = torch.zeros(layout.size, device=device)
        self.flat_parameters = self.flat_masters
        if dtype != torch.float32:
            self.flat_parameters = torch.zeros(layout.size, dtype=dtype, device=device)
        self.flat_frozen = torch.zeros(layout.frozen_size, dtype=dtype, device=device)
        self.flat_gradients = torch.zeros(layout.size, device=device)
        self.counted_gradients = self.flat_gradients[: layout.counted]
        self.masters: dict[str, Tensor] = {}
        self.parameters: dict[str, Tensor] = {}
        self.gradients: dict[str, Tensor] = {}

        def view(flat: Tensor, start: int, shape: tuple[int, ...]) -> Tensor:
            return flat[start : start + math.prod(shape)].view(shape)

        for name, parameter in unit.parameters:
            shape = parameter.shape
            if name in layout.trained:
                start = layout.trained[name]
                self.masters[name] = view(self.flat_masters, start, shape)
                self.parameters[name] = view(self.flat_parameters, start, shape)
                self.gradients[name] = view(self.flat_gradients, start, shape)
            elif name in layout.frozen:
                self.parameters[name] = view(self.flat_frozen, layout.frozen[name], shape)
                self.masters[name] = self.parameters[name]
            else:
                owner = next(state for state in earlier if parameter.name in state.names)
                inner = owner.names[parameter.name]
                self.masters[name] = owner.masters[inner]
                self.parameters[name] = owner.parameters[inner]
                if inner in owner.gradients:
                    self.gradients[name] = owner.gradients[inner]
                continue
            self.masters[name].copy_(values[parameter.name])
        self.refresh()

    @property
    def mixed(self) -> bool:
        """Whether masters and parameters are two tensors."""
        return self.flat_parameters is not self.flat_masters

    def refresh(self) -> None:
        """Round the masters to the parameters that graphs read."""
        if self.mixed:
            self.flat_parameters.copy_(self.flat_masters)

    @property
    def names(self) -> dict[str, str]:
        """From Hugging Face's names to names within the unit."""
        return {parameter.name: name for name, parameter in self.unit.parameters}


def sum_of_squares(flat: Tensor) -> Tensor:
    """The sum of squares as an fp64 scalar: fp32 within a row, fp64 over the rows.

    A plain fp32 norm of many numbers stops growing at 2^27 on CPU; an fp64 one is 14 times slower.
    """
    return torch.linalg.vector_norm(flat.view(-1, ROW), dim=1).double().square().sum()
