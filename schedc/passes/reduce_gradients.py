"""Gradient reduction: sum every unit's gradients over dp, as soon as its last W is done."""

from __future__ import annotations

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


def reduce_gradients(programs: Programs, dtype: str = "fp32") -> Programs:
    """Programs whose replicas agree on their gradients before the norm is taken.

    Contract: no program reduces yet. The mesh has more than one replica. ``dtype`` is what the sums
    are taken in.

    Pseudocode::

        for each stage of a rank: the last W or B in the stream runs a variant of its body
            that starts a reduction after each unit's weight gradients
        before norm: wait for every unit's reduction, in the order in which they were started
    """
    return tuple(_reduce(program, dtype) for program in programs)


def _reduce(program: RankProgram, dtype: str) -> RankProgram:
    table = program.stream.table.copy()
    bodies = list(program.bodies)
    is_run = table[:, CODE] == Code.RUN
    is_last_kind = is_run & ((table[:, OP] == Op.W) | (table[:, OP] == Op.B))
    last_rows = sorted(
        int((is_last_kind & (table[:, STAGE] == stage)).nonzero()[0][-1])
        for stage, _ in program.stages
    )
    started: list[str] = []
    for row in last_rows:
        body = _reducing(bodies[int(table[row, BODY])], dtype)
        table[row, BODY] = len(bodies)
        bodies.append(body)
        started += [step.unit for step in body.steps if isinstance(step, Reduce)]
    units = [program.stream.units.index(unit) for unit in started]
    table, bodies = _drop_unused(_with_waits(table, units), bodies)
    stream = Stream(table, program.stream.operands, program.stream.units, program.stream.places)
    return replace(program, stream=stream, bodies=tuple(bodies))


def _drop_unused(table: Table, bodies: list[Body]) -> tuple[Table, list[Body]]:
    """Without the bodies that no run names any more (a stage's only W became its last)."""
    runs = table[:, CODE] == Code.RUN
    used = np.unique(table[runs, BODY])
    table[runs, BODY] = np.searchsorted(used, table[runs, BODY])
    return table, [bodies[i] for i in used]


def _reducing(body: Body, dtype: str) -> Body:
    """The variant of a W or B body that also starts the reductions."""
    steps: list[Step] = []
    for step in body.steps:
        steps.append(step)
        if isinstance(step, Call) and step.graph.endswith(".W"):
            steps.append(Reduce(step.unit, GRADIENT_AXES, dtype))
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
