"""Bodies: what one operation on one stage does, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass

from schedc.ir.order import Op


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


@dataclass(frozen=True, slots=True)
class Body:
    """The steps of ``op`` on ``stage``.

    ``reads`` and ``writes`` are its interface to the stream, in the order of the run
    instruction's operands: among ``x tokens labels dy saved owed`` and ``y loss dx saved owed``.
    ``last`` marks the variant for the step's last microbatch to reach this operation, which also
    starts the reductions of gradients.
    """

    op: Op
    stage: int
    last: bool
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    steps: tuple[Step, ...]

    @property
    def name(self) -> str:
        return f"{self.op.name} s{self.stage}" + (" last" if self.last else "")
