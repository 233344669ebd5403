"""Parameters and gradients of one unit, each kind in one flat fp32 tensor.

Flat, because a reduction, the norm, clipping and the optimizer then take one call a unit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from schedc.program.signature import Unit

CPU = torch.device("cpu")

ALIGNMENT = 16
"""Elements: every parameter begins at a multiple of 64 bytes."""

ROW = 1024
"""Elements: flat tensors are whole rows of these. The padding is zero and stays so."""


class UnitState:
    """A unit's parameters and gradients as views of ``flat_parameters`` and ``flat_gradients``.

    Both live on ``device``; ``values``, by parameter name, may be elsewhere.
    """

    def __init__(
        self, unit: Unit, values: Mapping[str, Tensor], device: torch.device = CPU
    ) -> None:
        self.unit = unit
        starts: dict[str, int] = {}
        size = 0
        for name, parameter in unit.parameters:
            starts[name] = size
            size += -(-math.prod(parameter.shape) // ALIGNMENT) * ALIGNMENT
        size = -(-size // ROW) * ROW
        self.flat_parameters = torch.zeros(size, device=device)
        self.flat_gradients = torch.zeros(size, device=device)
        self.parameters: dict[str, Tensor] = {}
        self.gradients: dict[str, Tensor] = {}
        for name, parameter in unit.parameters:
            part = 0, starts[name], math.prod(parameter.shape)
            self.parameters[name] = self.flat_parameters.narrow(*part).view(parameter.shape)
            self.gradients[name] = self.flat_gradients.narrow(*part).view(parameter.shape)
            self.parameters[name].copy_(values[parameter.name])

    @property
    def names(self) -> dict[str, str]:
        """From Hugging Face's names to names within the unit."""
        return {parameter.name: name for name, parameter in self.unit.parameters}


def sum_of_squares(flat: Tensor) -> Tensor:
    """The sum of squares as an fp64 scalar: fp32 within a row, fp64 over the rows.

    A plain fp32 norm of many numbers stops growing at 2^27 on CPU; an fp64 one is 14 times slower.
    """
    return torch.linalg.vector_norm(flat.view(-1, ROW), dim=1).double().square().sum()
