"""The plan: a model, a mesh and a schedule, checked and typed. What gets compiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from schedc.diagnostics import Span
from schedc.ir.mesh import Mesh
from schedc.ir.order import Order
from schedc.ir.precision import Precision

Optimizer = Literal["adamw", "sgd"]


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan block after name and type checks, with its schedule evaluated to an order.

    ``model`` is a preset's name or a path. An evaluation reads ``evaluation`` sequences at a time,
    in the order ``evaluation_order``, which has only F. ``layers`` is ``"balanced"``, ``"even"`` or
    a layout string. ``freeze`` are patterns of names of parameters. ``spans`` holds the place of
    each key that was written, and that of each pattern under ``freeze PATTERN``, for later errors.
    """

    name: str
    model: str
    sequence: int
    batch: int
    microbatch: int
    mesh: Mesh
    order: Order
    evaluation: int
    evaluation_order: Order
    layers: str
    precision: Precision
    optimizer: Optimizer
    freeze: tuple[str, ...]
    spans: dict[str, Span]

    @property
    def microbatches(self) -> int:
        """Microbatches a step and data-parallel replica: M."""
        return -(-self.batch // (self.mesh.dp * self.microbatch))

    @property
    def tail(self) -> int:
        """Sequences of the last microbatch where it is smaller than the others; 0 elsewhere."""
        return self.batch // self.mesh.dp % self.microbatch
