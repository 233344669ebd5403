"""Gradient reduction: sum every unit's gradients over dp, as soon as the last of them is there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from schedc.ir.order import Op
from schedc.program.body import GRADIENT_AXES, Body, Call, Reduce, Step
from schedc.program.instructions import (
    BODY,
    CODE,
    COLUMNS,
    OP,
    READS,
    REF,
    STAGE,
    WRITES,
    Code,
    Stream,
    Table,
)
from schedc.program.program import Programs, RankProgram
from schedc.program.signature import Model
from schedc.program.work import GradientCall, gradient_calls


def reduce_gradients(programs: Programs, model: Model, dtype: str = "fp32") -> Programs:
    """Programs whose replicas agree on their gradients before the norm is taken.

    Units that have no gradients of their own, being frozen, are not reduced. A tied parameter whose
    two units lie on one rank has one gradient, which is reduced once both have given theirs.

    Contract: no program reduces yet. The mesh has more than one replica. ``dtype`` is what the sums
    are taken in.

    Pseudocode::

        for each unit of a rank: the last run in the stream that adds to its gradients (a W or B; an
            I where only small ones are trained) runs a variant of its body
            that starts the unit's reduction after the call that gives the last of them
        before norm: wait for every unit's reduction, in the order in which they were started
    """
    return tuple(_reduce(program, model, dtype) for program in programs)


def _reduce(program: RankProgram, model: Model, dtype: str) -> RankProgram:
    table = program.stream.table.copy()
    bodies = list(program.bodies)
    calls = gradient_calls(model, program.stages)
    last: dict[int, list[str]] = {}
    for unit, its in calls.items():
        last.setdefault(max(_last_row(table, call) for call in its), []).append(unit)
    started: list[str] = []
    for row, ending in sorted(last.items()):
        its = {unit: calls[unit] for unit in ending}
        body = _reducing(bodies[int(table[row, BODY])], its, dtype)
        table[row, BODY] = len(bodies)
        bodies.append(body)
        started += [step.unit for step in body.steps if isinstance(step, Reduce)]
    units = [program.stream.units.index(unit) for unit in started]
    table, bodies = _drop_unused(_with_waits(table, units), bodies)
    stream = Stream(table, program.stream.operands, program.stream.units, program.stream.places)
    return replace(program, stream=stream, bodies=tuple(bodies))


def _last_row(table: Table, call: GradientCall) -> int:
    """The last run in which ``call`` is made."""
    stage, op, _ = call
    makes = np.isin(table[:, OP], (Op[op], Op.B)) & (table[:, STAGE] == stage)
    return int((makes & (table[:, CODE] == Code.RUN)).nonzero()[0][-1])


def _drop_unused(table: Table, bodies: list[Body]) -> tuple[Table, list[Body]]:
    """Without the bodies that no run names any more (a stage's only W became its last)."""
    runs = table[:, CODE] == Code.RUN
    used = np.unique(table[runs, BODY])
    table[runs, BODY] = np.searchsorted(used, table[runs, BODY])
    return table, [bodies[i] for i in used]


def _reducing(body: Body, ending: Mapping[str, tuple[GradientCall, ...]], dtype: str) -> Body:
    """The variant of a body that also starts the reductions of the units in ``ending``.

    Each follows the last of the calls that add to the unit's gradients.
    """
    after: dict[int, list[str]] = {}
    for unit, calls in ending.items():
        at = [
            index
            for index, step in enumerate(body.steps)
            if isinstance(step, Call) and (body.stage, step.graph[-1], step.unit) in calls
        ]
        after.setdefault(at[-1], []).append(unit)
    steps: list[Step] = []
    for index, step in enumerate(body.steps):
        steps += [step, *(Reduce(unit, GRADIENT_AXES, dtype) for unit in after.get(index, ()))]
    return replace(body, last=True, steps=tuple(steps))


def _with_waits(table: Table, units: list[int]) -> Table:
    """The table with a wait for each unit's reduction before ``norm``.

    Rows that others refer to (sends and receives) stand before ``norm``, so references hold.
    """
    norm = int((table[:, CODE] == Code.NORM).nonzero()[0][0])
    waits = np.full((len(units), COLUMNS), -1, dtype=np.int32)
    waits[:, CODE] = Code.WAIT_REDUCE
    waits[:, (READS, WRITES)] = 0
    waits[:, REF] = units
    return np.concatenate([table[:norm], waits, table[norm:]])
