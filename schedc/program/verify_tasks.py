"""Every stage on one rank, and every task once, where its stage is (E506)."""

from __future__ import annotations

import numpy as np

from schedc.ir.order import Op
from schedc.program.instructions import BODY, CODE, MICROBATCH, OP, READS, STAGE, WRITES, Code
from schedc.program.program import Programs, RankProgram
from schedc.program.signature import Model
from schedc.program.verify_columns import At, Columns, Findings, Ints, task_text
from schedc.program.work import EVERYTHING, StageWork, work_of


def check_stages(programs: Programs, findings: Findings) -> None:
    """The programs are those of one pipeline: ranks 0, 1, …, and stages 0, 1, … once each."""
    first = programs[0]
    for index, program in enumerate(programs):
        if program.rank != index or program.ranks != len(programs):
            said = f"rank {program.rank} of {program.ranks}"
            findings.add("E506", f"program {index} of {len(programs)} says that it is of {said}")
        for what, here, there in (
            ("microbatches", program.microbatches, first.microbatches),
            ("the order", program.order, first.order),
        ):
            if here != there:
                message = f"{what}: rank {program.rank} has {here}, rank {first.rank} {there}"
                findings.add("E506", f"the programs disagree on {message}")
    stages = sorted(stage for program in programs for stage, _ in program.stages)
    if stages != list(range(len(stages))) or not stages:
        held = "; ".join(
            f"rank {program.rank}: {' '.join(str(stage) for stage, _ in program.stages) or 'none'}"
            for program in programs
        )
        message = "the ranks together must hold the stages 0, 1, … once each"
        findings.add("E506", f"{message}, but they hold {held}")


def check_tasks(columns: Columns, model: Model | None, findings: Findings) -> None:
    """F and (B, or I and W) once for every stage and microbatch, on the stage's rank.

    What the model leaves nothing to do is not there; its bodies have been refused already.
    Afterwards every task, body and number of operands in the table is in range.
    """
    runs = columns.rows(Code.RUN)
    runs = _check_ranges(columns, runs, findings)
    if findings:
        return
    _check_bodies_of_runs(columns, runs, findings)
    if findings:
        return
    stages, microbatches = columns.stages, columns.microbatches
    op, stage = columns.column(runs, OP), columns.column(runs, STAGE)
    microbatch = columns.column(runs, MICROBATCH)
    key = (op * stages + stage) * microbatches + microbatch
    size = len(Op) * stages * microbatches
    counts = np.bincount(key, minlength=size).reshape(len(Op), stages, microbatches)
    first: Ints = np.full(size, -1, dtype=np.int64)
    first[key[::-1]] = runs[::-1]

    def where(op: int, stage: int, microbatch: int) -> tuple[At, ...]:
        line = int(first[(op * stages + stage) * microbatches + microbatch])
        return (columns.at(line),) if line >= 0 else ()

    for o, s, m in np.argwhere(counts > 1).tolist():
        findings.add("E506", f"{task_text(o, s, m)} runs {counts[o, s, m]} times", *where(o, s, m))
    for s, m in np.argwhere(counts[Op.F] == 0).tolist():
        _missing(columns, findings, Op.F, s, m)
    both = (counts[Op.B] > 0) & ((counts[Op.I] > 0) | (counts[Op.W] > 0))
    for s, m in np.argwhere(both).tolist():
        message = "has both B and I or W"
        at = (*where(Op.B, s, m), *where(Op.I, s, m), *where(Op.W, s, m))
        findings.add("E506", f"stage {s}, microbatch {m} {message}", *at)
    works = _works(columns, model)
    has_I, has_W = (np.array([[work.has(op)] for work in works]) for op in (Op.I, Op.W))
    neither = has_I & (counts[Op.B] == 0) & (counts[Op.I] == 0) & (counts[Op.W] == 0)
    for s, m in np.argwhere(neither).tolist():
        findings.add(
            "E506",
            f"stage {s}, microbatch {m} has no backward (B, or I and W) on {_rank(columns, s)}",
        )
    for op_, other, wanted in ((Op.I, Op.W, has_I), (Op.W, Op.I, has_W)):
        for s, m in np.argwhere(wanted & (counts[op_] == 0) & (counts[other] > 0)).tolist():
            _missing(columns, findings, op_, s, m, *where(other, s, m))


def _works(columns: Columns, model: Model | None) -> list[StageWork]:
    """What each stage has to do; everything where no model tells otherwise."""
    if model is None:
        return [EVERYTHING] * columns.stages
    units = {stage: names for program in columns.programs for stage, names in program.stages}
    return [work_of(model, units[stage]) for stage in range(columns.stages)]


def _rank(columns: Columns, stage: int) -> str:
    return f"rank {columns.rank_of[stage]}"


def _missing(
    columns: Columns, findings: Findings, op: Op, stage: int, microbatch: int, *at: At
) -> None:
    task = task_text(op, stage, microbatch)
    findings.add("E506", f"{task} is missing on {_rank(columns, stage)}", *at)


def _check_ranges(columns: Columns, runs: Ints, findings: Findings) -> Ints:
    """Tasks in range, on the right rank; the runs that are."""
    op, stage = columns.column(runs, OP), columns.column(runs, STAGE)
    microbatch = columns.column(runs, MICROBATCH)
    stages, microbatches = columns.stages, columns.microbatches
    bad = (stage < 0) | (stage >= stages) | (microbatch < 0) | (microbatch >= microbatches)
    bounds = f"the programs have {stages} stages and {microbatches} microbatches"
    findings.each("E506", runs[bad], lambda i: (f"{columns.task(i)}: {bounds}", columns.at(i)))
    kind = (op < 0) | (op >= len(Op)) | (op == Op.R)
    findings.each(
        "E506", runs[kind & ~bad], lambda i: (f"{columns.task(i)} cannot run here", columns.at(i))
    )
    good = runs[~bad & ~kind]
    stage = columns.column(good, STAGE)
    away = good[columns.rank_of[stage] != columns.rank[good]]
    findings.each(
        "E506",
        away,
        lambda i: (
            f"{columns.task(i)} runs on rank {columns.rank[i]}, but its stage is on "
            f"{_rank(columns, int(columns.table[i, STAGE]))}",
            columns.at(i),
        ),
    )
    loads = columns.rows(Code.LOAD)
    m = columns.column(loads, MICROBATCH)
    findings.each(
        "E506",
        loads[(m < 0) | (m >= microbatches)],
        lambda i: (f"a load of a microbatch that is not there: {bounds}", columns.at(i)),
    )
    return good


def _check_bodies_of_runs(columns: Columns, runs: Ints, findings: Findings) -> None:
    """Every run names a body of its own operation and stage and fits its interface (E508)."""
    for program in columns.programs:
        lines = runs[columns.rank[runs] == program.rank]
        body = columns.column(lines, BODY)
        bad = (body < 0) | (body >= len(program.bodies))
        body = np.where(bad, 0, body)
        if program.bodies:
            ops = np.array([(b.op, b.stage) for b in program.bodies])[body]
            bad |= (ops[:, 0] != columns.table[lines, OP]) | (
                ops[:, 1] != columns.table[lines, STAGE]
            )
        findings.each(
            "E508", lines[bad], lambda i: ("a run of a body of another task", columns.at(i))
        )
    if not findings:
        _check_operand_counts(columns, findings)


def _check_operand_counts(columns: Columns, findings: Findings) -> None:
    for program in columns.programs:
        table = program.stream.table
        counts = np.array([len(operands) for operands in program.stream.operands])
        reads, writes = counts[table[:, READS]], counts[table[:, WRITES]]
        wanted = _wanted_counts(program)
        want = wanted[np.where(table[:, CODE] == Code.RUN, table[:, BODY], 0), table[:, CODE]]
        report = table[:, CODE] == Code.REPORT
        bad = ((want[:, 0] != reads) & ~report) | (want[:, 1] != writes)
        offset = int(columns.offsets[program.rank])

        def describe(i: int, want: Ints = want, offset: int = offset) -> tuple[str, At]:
            r, w = want[i - offset].tolist()
            return f"the instruction must read {r} and write {w} slots", columns.at(i)

        findings.each("E508", bad.nonzero()[0] + offset, describe)


def _wanted_counts(program: RankProgram) -> Ints:
    """How many operands each (body, code) reads and writes; the body counts for RUN only."""
    wanted: Ints = np.zeros((len(program.bodies) + 1, len(Code), 2), dtype=np.int64)
    wanted[:, Code.LOAD] = wanted[:, Code.RECV] = (0, 1)
    wanted[:, Code.SEND] = wanted[:, Code.WAIT_MESSAGE] = (1, 0)
    for index, body in enumerate(program.bodies):
        wanted[index, Code.RUN] = (len(body.reads), len(body.writes))
    return wanted
