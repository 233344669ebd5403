"""The tie of a parameter that two ranks have: on both, once, of both whole gradients (E504)."""

from __future__ import annotations

from schedc.program.instructions import CODE, PEER, REF, Code
from schedc.program.program import RankProgram
from schedc.program.signature import Model
from schedc.program.verify_columns import Columns, Findings
from schedc.program.verify_gradients import gradients_of, runs_of
from schedc.program.work import tied_parameter


def check_tie(columns: Columns, model: Model | None, tied: bool, findings: Findings) -> None:
    """``tied`` False: there is none yet. Without a model, ties only have to fit one another."""
    wanted: dict[int, tuple[str, int]] = {}
    if model is not None and tied:
        wanted = _wanted(columns, model)
    elif model is None:
        wanted = _agreed(columns)
    for program in columns.programs:
        _check_rank(columns, program, wanted.get(program.rank), model, findings)


def _wanted(columns: Columns, model: Model) -> dict[int, tuple[str, int]]:
    """By rank that needs a tie: its unit and the other rank."""
    tie = tied_parameter(model.units)
    if tie is None:
        return {}
    places = [(p.rank, unit) for p in columns.programs for unit in p.units if unit in tie.places]
    (rank, unit), (other, its) = places
    return {rank: (unit, other), other: (its, rank)} if rank != other else {}


def _agreed(columns: Columns) -> dict[int, tuple[str, int]]:
    """What the programs themselves say, where two ranks name each other."""
    said: dict[int, tuple[str, int]] = {}
    for program in columns.programs:
        for row in (program.stream.table[:, CODE] == Code.TIE).nonzero()[0].tolist():
            line = program.stream.table[row]
            said[program.rank] = (program.stream.units[line[REF]], int(line[PEER]))
    return {r: (unit, p) for r, (unit, p) in said.items() if said.get(p, ("", -1))[1] == r != p}


def _check_rank(
    columns: Columns,
    program: RankProgram,
    wanted: tuple[str, int] | None,
    model: Model | None,
    findings: Findings,
) -> None:
    rank, table = program.rank, program.stream.table
    found: dict[Code, list[int]] = {}
    for code, name in ((Code.TIE, "tie"), (Code.WAIT_TIE, "wait tie")):
        found[code] = (table[:, CODE] == code).nonzero()[0].tolist()
        count = 0 if wanted is None else 1
        if len(found[code]) != count:
            much = "once" if count else "never: no other rank has a copy that it trains"
            message = f"rank {rank} has `{name}` {len(found[code])} times, and must {much}"
            findings.add("E504", message, *((rank, row) for row in found[code]))
    if wanted is None or any(len(rows) != 1 for rows in found.values()):
        return
    (row,), (wait,) = found[Code.TIE], found[Code.WAIT_TIE]
    unit, peer = wanted
    if (program.stream.units[table[row, REF]], int(table[row, PEER])) != wanted:
        message = f"rank {rank} must tie {unit} with rank {peer}"
        findings.add("E504", message, (rank, row))
        return
    if wait < row:
        findings.add("E504", f"rank {rank} waits for the tie before it", (rank, wait), (rank, row))
    _check_place(program, unit, row, wait, model, findings)


def _check_place(
    program: RankProgram, unit: str, row: int, wait: int, model: Model | None, findings: Findings
) -> None:
    """After the last gradient and the reduction, before the norm."""
    rank, table = program.rank, program.stream.table
    gradients = runs_of(program, gradients_of(program, model).get(unit, ()))
    late = [int(r) for r in gradients[gradients > row]]
    for after in late[-1:]:
        message = f"rank {rank} ties the gradients of {unit} before the last of them"
        findings.add("E504", message, (rank, row), (rank, after))
    reduced = (table[:, CODE] == Code.WAIT_REDUCE).nonzero()[0]
    for after in reduced[reduced > row].tolist():
        if program.stream.units[table[after, REF]] == unit:
            message = f"rank {rank} ties the gradients of {unit} before they are summed over dp"
            findings.add("E504", message, (rank, row), (rank, after))
    for norm in (table[:, CODE] == Code.NORM).nonzero()[0].tolist():
        if wait > norm:
            message = f"rank {rank} takes the norm before the gradients of {unit} are tied"
            findings.add("E504", message, (rank, wait), (rank, norm))
