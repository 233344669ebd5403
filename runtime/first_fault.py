"""Where numbers first stop being finite: found by repeating a skipped step and looking at all.

Nothing is looked at in a step that is fine. A step that was skipped changed nothing, so running its
program again, on all ranks together, computes the same numbers once more.

*First* means: in the order of one process that takes the microbatches of all replicas one after
another, F from the first unit to the last, then the backward from the last to the first, the
gradients of each unit's input before those of its weights. It is the same place whatever the
schedule and the mesh are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from schedc.program.manifest import Manifest
from schedc.runtime.unit_state import UnitState

if TYPE_CHECKING:
    from schedc.runtime.rank import Rank

UNSEEN = "but they were when the step was repeated"
"""Kernels that do not repeat bit for bit may find nothing the second time."""


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """Numbers that are not finite; the smallest ``key`` is the first."""

    key: tuple[int, ...]
    what: str


class Inspector:
    """Looks at what graphs return, while ``on``; keeps the first fault of a rank.

    The machine says which microbatch it works on.
    """

    def __init__(self, manifest: Manifest, replica: int, states: Mapping[str, UnitState]) -> None:
        self.on = False
        self.microbatch = -1
        self.first: Fault | None = None
        self._replica, self._states = replica, states
        self._where = f", replica {replica}" if manifest.mesh.dp > 1 else ""
        self._position = {unit.name: at for at, unit in enumerate(manifest.units)}
        self._stage = {unit: s for s, units in enumerate(manifest.stages) for unit in units}

    def look(
        self, operation: str, unit: str, labels: Sequence[str], values: Sequence[Tensor]
    ) -> None:
        """What F, I or W of a unit returned; ``labels`` name the values, as signatures do."""
        at = self._position[unit]
        phase = (0, at) if operation == "F" else (1, -at)
        key = (0, self._replica, self.microbatch, *phase, "FIW".index(operation))
        if self.first is not None and self.first.key <= key:
            return
        for label, value in zip(labels, values, strict=False):
            if not torch.isfinite(value).all():
                what = f"{self._named(unit, label)} ({operation} of stage {self._stage[unit]}, "
                what += f"microbatch {self.microbatch}{self._where}){self._damaged(unit)}"
                self.first = Fault(key, what)
                return

    def look_at_sums(self) -> None:
        """The gradients after all microbatches and replicas; later than all that is looked at."""
        for unit, state in self._states.items():
            key = (1, self._position[unit])
            if not torch.isfinite(state.flat_gradients).all():
                what = f"the sum of the gradients of {unit} (stage {self._stage[unit]})"
                found = Fault(key, what)
                self.first = found if self.first is None else min(self.first, found)

    def _named(self, unit: str, label: str) -> str:
        if label in ("y", "loss"):
            return f"the output of {unit}" if label == "y" else "the loss"
        if label == "dx":
            return f"the gradient of the input of {unit}"
        parameters = dict(self._states[unit].unit.parameters)
        return f"the gradient of {parameters[label].name}"

    def _damaged(self, unit: str) -> str:
        """The first of a unit's parameters that is not finite itself."""
        state = self._states[unit]
        for name, parameter in state.unit.parameters:
            if not torch.isfinite(state.parameters[name]).all():
                return f"; the parameter {parameter.name} is not finite"
        return ""


def first_fault(rank: Rank) -> str:
    """Where the skipped step went wrong first, the same text on every rank; all ranks call this."""
    inspector = rank.machine.inspector
    inspector.first, inspector.on = None, True
    with torch.inference_mode():
        rank.executor.repeat()
    inspector.on = False
    everybody = rank.transport.gather(inspector.first)
    found = [fault for fault in everybody if fault is not None]
    return rank.transport.share(f"first in {min(found).what}" if found else UNSEEN)
