"""The optimizer's step over a rank's units: clip by the global norm, then torch's own AdamW or SGD.

Element by element, so flat tensors of whole units give what single parameters would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from schedc.runtime.unit_state import UnitState


@dataclass(frozen=True, slots=True)
class OptimizerSettings:
    """The numbers of the optimizer that the plan chose. ``clip`` 0 means no clipping."""

    kind: str
    weight_decay: float
    betas: tuple[float, float]
    momentum: float
    clip: float
    epsilon: float = 1e-8


class Optimizer:
    """Updates the masters of ``states`` in place, and refreshes the parameters from them.

    Frozen parameters have no part in it. ``updates`` counts the steps taken: the position of the
    learning rate's schedule.
    """

    def __init__(self, states: Sequence[UnitState], settings: OptimizerSettings) -> None:
        self.clip, self.updates = settings.clip, 0
        states = [state for state in states if state.flat_masters.numel()]
        self._states = tuple(states)
        self._gradients = [state.flat_gradients for state in states]
        parameters: list[torch.nn.Parameter] = []
        for state in states:
            parameter = torch.nn.Parameter(state.flat_masters)
            parameter.grad = state.flat_gradients
            parameters.append(parameter)
        self._torch = _make(parameters, settings) if parameters else None

    def step(self, rate: float, norm: float) -> None:
        """One step at learning rate ``rate``; ``norm`` is the global norm of the gradients.

        Clips as ``torch.nn.utils.clip_grad_norm_`` does. Leaves inference mode: state that torch
        makes here has to live outside of it.
        """
        self.updates += 1
        if self._torch is None:
            return
        with torch.inference_mode(False), torch.no_grad():
            if self.clip > 0:
                scale = self.clip / (norm + 1e-6)
                if scale < 1:
                    for gradients in self._gradients:
                        gradients.mul_(scale)
            for group in self._torch.param_groups:
                group["lr"] = rate
            self._torch.step()
            for state in self._states:
                state.refresh()

    def state(self) -> list[torch.Tensor]:
        """The moments that the optimizer keeps; none before the first step."""
        return [
            value
            for values in (self._torch.state.values() if self._torch is not None else ())
            for value in values.values()
            if isinstance(value, torch.Tensor)
        ]


def _make(
    parameters: list[torch.nn.Parameter], settings: OptimizerSettings
) -> torch.optim.Optimizer:
    if settings.kind == "sgd":
        return torch.optim.SGD(
            parameters,
            lr=0.0,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
            fused=True,
        )
    assert settings.kind == "adamw", settings.kind
    return torch.optim.AdamW(
        parameters,
        lr=0.0,
        betas=settings.betas,
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
        fused=True,
    )
