"""Number formats of a plan: what the model computes in, what is kept, what replicas exchange."""

from __future__ import annotations

from dataclasses import dataclass

FORMATS = ("fp32", "bf16", "fp16")

SCALE = 65_536
"""The first loss scale of fp16, where a plan says nothing (Micikevicius et al. 2018, section 3)."""


@dataclass(frozen=True, slots=True)
class Precision:
    """``model`` is the dtype of parameters, activations and their gradients in the graphs.

    Where it is ``bf16`` or ``fp16``, the optimizer works on an fp32 master copy of the parameters,
    and ``reduce`` (fp32, or the model's dtype) is what gradients are summed over replicas in. They
    are accumulated over microbatches in fp32 always. ``scale`` is the first loss scale of fp16, and
    0 for all else.
    """

    model: str
    reduce: str = "fp32"
    scale: int = 0

    @property
    def mixed(self) -> bool:
        """Whether there is a master copy beside the model's parameters."""
        return self.model != "fp32"

    def __str__(self) -> str:
        """As a plan says it, options written out."""
        if not self.mixed:
            return self.model
        scale = f", scale {self.scale}" if self.scale else ""
        return f"{self.model} {{ master fp32, reduce {self.reduce}{scale} }}"
