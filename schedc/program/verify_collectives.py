"""Collectives: once each, in one order on all ranks, and gradients complete before them (E504)."""

from __future__ import annotations

import numpy as np

from schedc.ir.order import Op
from schedc.program.body import Reduce
from schedc.program.instructions import BODY, CODE, OP, REF, STAGE, Code
from schedc.program.program import RankProgram
from schedc.program.signature import Model
from schedc.program.verify_columns import Columns, Findings, Ints
from schedc.program.verify_gradients import gradients_of, runs_of

_ONCE = {
    Code.COUNT: "count",
    Code.WAIT_COUNT: "wait count",
    Code.NORM: "norm",
    Code.WAIT_NORM: "wait norm",
    Code.STEP: "step",
    Code.REPORT: "report",
    Code.WAIT_REPORT: "wait report",
}
_ONCE_IN_EVALUATION = {Code.COUNT, Code.WAIT_COUNT, Code.REPORT, Code.WAIT_REPORT}
_COLLECTIVES = {
    Code.COUNT: "count",
    Code.TIE: "tie",
    Code.NORM: "norm",
    Code.REPORT: "report",
}
_BEFORE = (
    (Code.COUNT, Code.WAIT_COUNT),
    (Code.WAIT_COUNT, Code.STEP),
    (Code.NORM, Code.WAIT_NORM),
    (Code.WAIT_NORM, Code.STEP),
    (Code.REPORT, Code.WAIT_REPORT),
    (Code.WAIT_REPORT, Code.STEP),
)


def check_collectives(
    columns: Columns, model: Model | None, replicas: int | None, findings: Findings
) -> None:
    """``replicas`` is the size of dp, where it is known."""
    orders: dict[int, list[int]] = {}
    reduces = replicas is not None and replicas > 1 and not columns.evaluates
    reduces = reduces or any(body.last for p in columns.programs for body in p.bodies)
    reduces = reduces or bool(len(columns.rows(Code.WAIT_REDUCE)))
    for program in columns.programs:
        rows = _find_once(program, findings)
        if rows is None:
            continue
        _check_order(columns, program, rows, findings)
        if reduces:
            _Reductions(program, model, rows[Code.NORM], findings).check()
        code = program.stream.table[:, CODE]
        orders[program.rank] = code[np.isin(code, list(_COLLECTIVES))].tolist()
    _check_equal(orders, findings)


def _check_equal(orders: dict[int, list[int]], findings: Findings) -> None:
    """What two ranks both take part in stands in one order on both; ``orders`` are by rank."""
    tied = [rank for rank, order in orders.items() if Code.TIE in order]
    pairs = [(min(orders), rank) for rank in orders] if orders else []
    for one, other in (*pairs, *([(tied[0], tied[1])] if len(tied) == 2 else ())):
        both = set(orders[one]) & set(orders[other])
        there, here = ([c for c in orders[rank] if c in both] for rank in (one, other))
        if there != here:
            first, then = (" ".join(_COLLECTIVES[Code(c)] for c in o) for o in (there, here))
            findings.add(
                "E504",
                f"rank {one} takes part in {first}, but rank {other} in {then}: "
                "collectives must have one order on all ranks",
            )
            break


def _find_once(program: RankProgram, findings: Findings) -> dict[int, int] | None:
    """The rows of what stands once on every rank."""
    codes = program.stream.table[:, CODE]
    found: dict[int, int] = {}
    wanted = set(_ONCE_IN_EVALUATION if program.evaluates else _ONCE)
    for code, name in _ONCE.items():
        rows = (codes == code).nonzero()[0].tolist()
        if len(rows) == 1 and code in wanted:
            found[code] = rows[0]
        elif rows or code in wanted:
            at = tuple((program.rank, row) for row in rows)
            times = "not once" if code in wanted else "which an evaluation has not"
            message = f"rank {program.rank} has `{name}` {len(rows)} times, {times}"
            findings.add("E504", message, *at)
    return found if set(found) == wanted else None


def _check_order(
    columns: Columns, program: RankProgram, rows: dict[int, int], findings: Findings
) -> None:
    rank, table = program.rank, program.stream.table
    for first, then in _BEFORE:
        if first in rows and then in rows and rows[first] > rows[then]:
            message = f"rank {rank}: `{_ONCE[first]}` must come before `{_ONCE[then]}`"
            findings.add("E504", message, (rank, rows[then]), (rank, rows[first]))
    if program.evaluates:
        return
    runs = table[:, CODE] == Code.RUN
    backward = runs & (table[:, OP] != Op.F)
    late = backward.nonzero()[0]
    late = late[late > rows[Code.NORM]]
    findings.each(
        "E504",
        late,
        lambda row: (f"rank {rank}: `norm` must follow all gradients", (rank, row)),
    )
    needs = backward & np.isin(table[:, OP], (Op.I, Op.B)) & (table[:, STAGE] == columns.stages - 1)
    early = needs.nonzero()[0]
    early = early[early < rows[Code.WAIT_COUNT]]
    findings.each(
        "E504",
        early,
        lambda row: (
            f"rank {rank}: the backward of the loss needs `wait count` before it",
            (rank, row),
        ),
    )


class _Reductions:
    """Every unit's gradients are reduced once, after the last of them, and waited for.

    With a model: but for units that have none of their own.
    """

    def __init__(
        self, program: RankProgram, model: Model | None, norm: int, findings: Findings
    ) -> None:
        self.gives = gradients_of(program, model)
        self.program, self.norm, self.findings = program, norm, findings
        self.rank = program.rank
        self.table = program.stream.table
        self.runs: Ints = (self.table[:, CODE] == Code.RUN).nonzero()[0]

    def check(self) -> None:
        started = self._started()
        for unit, calls in self.gives.items():
            self._check_unit(unit, started.get(unit, []), runs_of(self.program, calls))
        self._check_waits(started)

    def _started(self) -> dict[str, list[int]]:
        """The rows of the runs that start each unit's reduction."""
        started: dict[str, list[int]] = {}
        bodies = self.table[self.runs, BODY]
        for index, body in enumerate(self.program.bodies):
            rows: list[int] = self.runs[(bodies == index) & body.last].tolist()
            for step in body.steps:
                if isinstance(step, Reduce):
                    started.setdefault(step.unit, []).extend(rows)
        return started

    def _check_unit(self, unit: str, rows: list[int], contributions: Ints) -> None:
        if len(rows) != 1:
            message = (
                f"rank {self.rank} reduces the gradients of {unit} {len(rows)} times, not once"
            )
            self.findings.add("E504", message, *((self.rank, row) for row in rows))
            return
        later = contributions[contributions > rows[0]]
        if len(later):
            message = f"rank {self.rank} reduces the gradients of {unit} before the last of them"
            last = int(later[-1])
            self.findings.add("E504", message, (self.rank, rows[0]), (self.rank, last))

    def _check_waits(self, started: dict[str, list[int]]) -> None:
        waits = (self.table[:, CODE] == Code.WAIT_REDUCE).nonzero()[0]
        by_unit: dict[str, list[int]] = {unit: [] for unit in self.program.units}
        units = self.program.stream.units
        for row, index in zip(waits.tolist(), self.table[waits, REF].tolist(), strict=True):
            by_unit[units[index]].append(row)
        for unit, rows in by_unit.items():
            at = tuple((self.rank, row) for row in rows)
            wanted = 1 if unit in self.gives else 0
            if len(rows) != wanted:
                much = "not once" if wanted else "which it does not reduce"
                message = f"waits {len(rows)} times for the gradients of {unit}, {much}"
                self.findings.add("E504", f"rank {self.rank} {message}", *at)
            elif rows and started.get(unit) and rows[0] < started[unit][0]:
                message = f"waits for the gradients of {unit} before it reduces them"
                self.findings.add("E504", f"rank {self.rank} {message}", *at)
            elif rows and rows[0] > self.norm:
                message = f"takes the norm before the gradients of {unit} are there"
                self.findings.add(
                    "E504", f"rank {self.rank} {message}", *at, (self.rank, self.norm)
                )
