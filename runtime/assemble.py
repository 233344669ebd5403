"""Whole models on rank 0, from what each pipeline rank holds."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from schedc.program.manifest import Manifest
from schedc.runtime.transports.interface import Control
from schedc.runtime.weights import DTYPES


def assemble(
    control: Control,
    manifest: Manifest,
    mine: Mapping[str, Tensor],
    dtype: str = "fp32",
    *,
    gradients: bool = False,
) -> dict[str, Tensor]:
    """All tensors by parameter name on rank 0, in model order; elsewhere an empty dictionary.

    ``mine`` holds this rank's by parameter name, on any device; with ``gradients`` there are none
    of frozen ones. The result is on the CPU, rounded to ``dtype``. Every rank calls this; the first
    replica of each stage sends, one tensor after another. Of a tied parameter the first place
    sends: both have equal bits.
    """
    kind = DTYPES[dtype]
    whole: dict[str, Tensor] = {}
    owners = {
        unit: manifest.mesh.rank_at(pp=rank)
        for rank, units in zip(manifest.rank_of, manifest.stages, strict=True)
        for unit in units
    }
    for unit in manifest.units:
        owner = owners[unit.name]
        for _, parameter in unit.parameters:
            if parameter.tied or (gradients and parameter.frozen):
                continue
            if control.rank == 0 and owner == 0:
                whole[parameter.name] = on_cpu(mine[parameter.name]).to(kind)
            elif control.rank == 0:
                tensor = torch.empty(parameter.shape, dtype=kind)
                control.fetch(tensor, owner)
                whole[parameter.name] = tensor
            elif control.rank == owner:
                control.fetch(mine[parameter.name].to("cpu", kind), owner)
    return whole


def on_cpu(tensor: Tensor) -> Tensor:
    """A copy of ``tensor`` on the CPU."""
    return tensor.detach().to("cpu", copy=True)
