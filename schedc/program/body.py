"""Bodies: what one operation on one stage does, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass

from schedc.ir.order import Op
from schedc.program.signature import TAIL


@dataclass(frozen=True, slots=True)
class Call:
    """Call a unit's graph.

    ``reads`` and ``writes`` name values within the body, in the order of the graph's data inputs
    and outputs. Parameters and rotary tables are not named: the unit and the signature say which.
    A name stands for one tensor (``x h3 dy labels loss``) or for all of a graph's ``saved`` or
    ``owed`` tensors (``saved.3``, ``owed.3``; 3 is the unit's position in the stage). Gradients of
    parameters are not named either: they are added to the unit's gradients.
    """

    graph: str
    unit: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]


GRADIENT_AXES = ("dp",)
"""The mesh axes that gradients are summed over."""

REDUCE_DTYPES = ("fp32", "bf16", "fp16")
"""What they may be summed in."""


@dataclass(frozen=True, slots=True)
class Reduce:
    """Start to sum a unit's gradients over mesh axes; the stream waits for it.

    They are accumulated in fp32. In another ``dtype`` what is summed is a rounded copy of them, and
    the sum comes back rounded.
    """

    unit: str
    axes: tuple[str, ...]
    dtype: str = "fp32"


Step = Call | Reduce

VARIANTS = (TAIL, "last")
"""What marks the variants of a body, in this order."""


@dataclass(frozen=True, slots=True)
class Body:
    """The steps of ``op`` on ``stage``.

    ``reads`` and ``writes`` are its interface to the stream, in the order of the run
    instruction's operands: among ``x tokens labels dy saved owed`` and ``y loss dx saved owed``.
    ``last`` marks the variant for the step's last microbatch to reach this operation, which also
    starts the reductions of gradients; ``tail`` the one for the last microbatch where it is smaller
    than the others.
    """

    op: Op
    stage: int
    last: bool
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    steps: tuple[Step, ...]
    tail: bool = False

    @property
    def variant(self) -> str:
        """The marks behind the body's operation and stage: `` tail last`` or fewer."""
        marks = zip(VARIANTS, (self.tail, self.last), strict=True)
        return "".join(f" {mark}" for mark, has in marks if has)

    @property
    def name(self) -> str:
        return f"{self.op.name} s{self.stage}{self.variant}"
