"""Who adds to which gradients: what the checks of bodies, reductions and ties share."""

from __future__ import annotations

import numpy as np

from schedc.ir.order import Op
from schedc.program.instructions import CODE, OP, STAGE, Code
from schedc.program.program import RankProgram
from schedc.program.signature import Model
from schedc.program.verify_columns import Ints
from schedc.program.work import GradientCall, gradient_calls


def gradients_of(program: RankProgram, model: Model | None) -> dict[str, tuple[GradientCall, ...]]:
    """The calls that add to the gradients of each unit; without a model, both of each unit."""
    if model is not None:
        return gradient_calls(model, program.stages)
    return {
        unit: ((stage, "I", unit), (stage, "W", unit))
        for stage, units in program.stages
        for unit in units
    }


def runs_of(program: RankProgram, calls: tuple[GradientCall, ...]) -> Ints:
    """The rows of the runs that make any of ``calls``, in order."""
    table = program.stream.table
    makes = np.zeros(len(table), dtype=np.bool_)
    for stage, op, _ in calls:
        makes |= np.isin(table[:, OP], (Op[op], Op.B)) & (table[:, STAGE] == stage)
    return (makes & (table[:, CODE] == Code.RUN)).nonzero()[0]
