"""Parameters and gradients of one unit, each kind in one flat tensor.

Flat, because a reduction, the norm, clipping and the optimizer then take one call a unit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from schedc.program.signature import Unit
from schedc.runtime.weights import DTYPES

ALIGNMENT = 16
"""Elements: every parameter begins at a multiple of 64 bytes (32 in two-byte formats)."""

ROW = 1024
"""Elements: flat tensors are whole rows of these. The padding is zero and stays so."""


class UnitState:
    """A unit's parameters and gradients, and views of them by name within the unit.

    Graphs read ``flat_parameters``, in the dtype of the model. The optimizer updates
    ``flat_masters``, fp32; the parameters are a rounded copy of it (:meth:`refresh`), or the same
    tensor where the model is fp32. ``flat_gradients`` are fp32: those of all microbatches are added
    up there.
    """

    def __init__(self, unit: Unit, values: Mapping[str, Tensor]) -> None:
        """``values`` are the masters by Hugging Face's names."""
        self.unit = unit
        starts: dict[str, int] = {}
        size = 0
        for name, parameter in unit.parameters:
            starts[name] = size
            size += -(-math.prod(parameter.shape) // ALIGNMENT) * ALIGNMENT
        size = -(-size // ROW) * ROW
        self.flat_masters = torch.zeros(size)
        self.flat_parameters = self.flat_masters
        if not all(parameter.dtype == "fp32" for _, parameter in unit.parameters):
            (dtype,) = {parameter.dtype for _, parameter in unit.parameters}
            self.flat_parameters = torch.zeros(size, dtype=DTYPES[dtype])
        self.flat_gradients = torch.zeros(size)
        self.masters: dict[str, Tensor] = {}
        self.parameters: dict[str, Tensor] = {}
        self.gradients: dict[str, Tensor] = {}
        for name, parameter in unit.parameters:
            part = slice(starts[name], starts[name] + math.prod(parameter.shape))
            self.masters[name] = self.flat_masters[part].view(parameter.shape)
            self.parameters[name] = self.flat_parameters[part].view(parameter.shape)
            self.gradients[name] = self.flat_gradients[part].view(parameter.shape)
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
