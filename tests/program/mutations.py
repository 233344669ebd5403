"""Mutations of programs: what a slip of the pen, or a bug of a pass, would do to them.

Lines of a program's text are dropped, repeated and swapped, as a person would do it, and read back;
fields of the table are changed one at a time. :func:`accepted_swaps` gives the swaps that the
verifier lets pass, for tests that run them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from schedc.diagnostics import DiagnosticError
from schedc.program.instructions import (
    BODY,
    CODE,
    MICROBATCH,
    OP,
    PEER,
    QUEUE,
    READS,
    REF,
    SEQUENCE,
    STAGE,
    WRITES,
    Code,
    Operand,
    Stream,
)
from schedc.program.program import Programs, RankProgram
from schedc.program.signature import Model
from schedc.program.text import parse_program, print_program
from schedc.program.verify import verify_programs


@dataclass(frozen=True)
class Mutation:
    kind: str  # drop, repeat, swap, swap far, or change FIELD
    what: str
    programs: Programs


def verdict(programs: Programs, model: Model, replicas: int) -> tuple[str, ...]:
    """The codes that the verifier gives; empty where it accepts."""
    try:
        verify_programs(programs, model, replicas)
    except DiagnosticError as error:
        return tuple(sorted({diagnostic.code for diagnostic in error.diagnostics}))
    return ()


class _Text:
    """The text of a program, cut so that the lines of its stream can be moved."""

    def __init__(self, program: RankProgram) -> None:
        lines = print_program(program).split("\n")
        start = lines.index("stream") + 1
        end = start + len(program.stream)
        self.head, self.stream, self.tail = lines[:start], lines[start:end], lines[end:]

    def with_stream(self, stream: list[str]) -> RankProgram:
        return parse_program("\n".join([*self.head, *stream, *self.tail]), "mutated.prog")


def _placed(programs: Programs, program: RankProgram) -> Programs:
    return (*programs[: program.rank], program, *programs[program.rank + 1 :])


def drops(programs: Programs) -> Iterator[Mutation]:
    for program in programs:
        text = _Text(program)
        for i, line in enumerate(text.stream):
            mutated = text.with_stream(text.stream[:i] + text.stream[i + 1 :])
            yield Mutation("drop", f"rank {program.rank}: {line}", _placed(programs, mutated))


def repeats(programs: Programs) -> Iterator[Mutation]:
    for program in programs:
        text = _Text(program)
        for i, line in enumerate(text.stream):
            mutated = text.with_stream(text.stream[: i + 1] + text.stream[i:])
            yield Mutation("repeat", f"rank {program.rank}: {line}", _placed(programs, mutated))


def swaps(programs: Programs, far: int = 0, seed: int = 0) -> Iterator[Mutation]:
    """All swaps of neighbours, and ``far`` random swaps of lines further apart."""
    pick = random.Random(seed)
    for program in programs:
        text = _Text(program)
        size = len(text.stream)
        pairs = [(i, i + 1, "swap") for i in range(size - 1)]
        for _ in range(far // len(programs)):
            i, j = sorted(pick.sample(range(size), 2))
            pairs.append((i, j, "swap" if j == i + 1 else "swap far"))
        for i, j, kind in pairs:
            lines = list(text.stream)
            lines[i], lines[j] = lines[j], lines[i]
            what = f"rank {program.rank}: {text.stream[i]} <> {text.stream[j]}"
            yield Mutation(kind, what, _placed(programs, text.with_stream(lines)))


def changes(programs: Programs) -> Iterator[Mutation]:
    """One field of one instruction changed."""
    for program in programs:
        for row in range(len(program.stream)):
            for field, stream in _changed(program, row):
                what = f"rank {program.rank}, instruction {row}"
                mutated = replace(program, stream=stream)
                yield Mutation(f"change {field}", what, _placed(programs, mutated))


def _changed(program: RankProgram, row: int) -> Iterator[tuple[str, Stream]]:
    stream = program.stream
    values = stream.table[row].tolist()
    code = values[CODE]

    def with_value(column: int, value: int) -> Stream:
        table = stream.table.copy()
        table[row, column] = value
        return replace(stream, table=table)

    if code in (Code.RUN, Code.SEND, Code.RECV):
        for step in (-1, 1):
            yield "stage", with_value(STAGE, values[STAGE] + step)
            yield "microbatch", with_value(MICROBATCH, values[MICROBATCH] + step)
        yield "operation", with_value(OP, (values[OP] + 1) % 5)
    if code == Code.LOAD:
        yield "microbatch", with_value(MICROBATCH, values[MICROBATCH] + 1)
    if code == Code.RUN:
        for body in range(len(program.bodies)):
            if body != values[BODY]:
                yield "body", with_value(BODY, body)
    if code in (Code.SEND, Code.RECV):
        yield "peer", with_value(PEER, values[PEER] + 1)
        yield "peer", with_value(PEER, program.rank)
        for queue in range(len(program.queues)):
            if queue != values[QUEUE]:
                yield "queue", with_value(QUEUE, queue)
        yield "sequence", with_value(SEQUENCE, values[SEQUENCE] + 1)
        if values[SEQUENCE]:
            yield "sequence", with_value(SEQUENCE, values[SEQUENCE] - 1)
    if code == Code.WAIT_MESSAGE:
        posts = [r for r in range(row) if stream.table[r, CODE] in (Code.SEND, Code.RECV)]
        for post in posts[-4:]:
            if post != values[REF]:
                yield "post", with_value(REF, post)
    if code == Code.WAIT_REDUCE and len(stream.units) > 1:
        yield "unit", with_value(REF, (values[REF] + 1) % len(stream.units))
    for column in (READS, WRITES):
        for field, operands in _changed_operands(program, stream.operands[values[column]]):
            changed = with_value(column, len(stream.operands))
            yield field, replace(changed, operands=(*stream.operands, operands))


def _changed_operands(
    program: RankProgram, operands: tuple[Operand, ...]
) -> Iterator[tuple[str, tuple[Operand, ...]]]:
    for i, operand in enumerate(operands):
        others: list[tuple[str, Operand]] = [
            ("slot", operand._replace(slot=operand.slot + 1)),
            ("last use", operand._replace(last=not operand.last)),
        ]
        if operand.slot:
            others.append(("slot", operand._replace(slot=operand.slot - 1)))
        for buffer in program.buffers:
            if buffer.name != operand.buffer:
                others.append(("buffer", operand._replace(buffer=buffer.name)))
        for field, other in others:
            yield field, (*operands[:i], other, *operands[i + 1 :])


def accepted_swaps(
    programs: Programs, model: Model, replicas: int, far: int = 0, seed: int = 0
) -> list[Mutation]:
    """The swaps that the verifier accepts: they must compute the same."""
    return [
        mutation
        for mutation in swaps(programs, far, seed)
        if not verdict(mutation.programs, model, replicas)
    ]
