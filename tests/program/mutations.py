"""Mutations of programs: what a slip of the pen, or a bug of a pass, would do to them.

Lines of a program's text are dropped, repeated and swapped, as a person would do it, and read back;
fields of the table are changed one at a time, and so are the steps of bodies, the pools of buffers
and the queues (:func:`declared`). :func:`accepted_swaps` gives the swaps that the
verifier lets pass, for tests that run them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations
from typing import get_args

from schedc.diagnostics import DiagnosticError
from schedc.program.body import Body, Call, Reduce, Step
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
from schedc.program.program import Buffer, BufferKind, Programs, Queue, RankProgram
from schedc.program.signature import DTYPE_BYTES, Model
from schedc.program.text import parse_program, print_program
from schedc.program.verify import verify_programs


@dataclass(frozen=True)
class Mutation:
    kind: (
        str  # drop, repeat, swap, swap far, change FIELD; of declarations: body drop, pool bytes …
    )
    what: str
    programs: Programs
    harmless: str = ""  # why the programs still do the same, where they do


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
    if code in (Code.TIE, Code.WAIT_REDUCE) and len(stream.units) > 1:
        yield "unit", with_value(REF, (values[REF] + 1) % len(stream.units))
    if code == Code.TIE:
        yield "peer", with_value(PEER, values[PEER] + 1)
        yield "peer", with_value(PEER, program.rank)
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


def declared(programs: Programs, model: Model) -> Iterator[Mutation]:
    """One change of a body, of a pool or of a queue: what stands beside the stream.

    Where ``harmless`` is empty, it must be refused. The allow-list has one reason: steps of
    a body that need nothing of each other stand in another order.
    """
    for program in programs:
        for i, body in enumerate(program.bodies):
            for kind, what, steps, harmless in _changed_steps(body, program, model):
                changed = replace(body, steps=tuple(steps))
                bodies = (*program.bodies[:i], changed, *program.bodies[i + 1 :])
                mutated = _placed(programs, replace(program, bodies=bodies))
                where = f"rank {program.rank}, {body.name}: {what}"
                yield Mutation(f"body {kind}", where, mutated, harmless)
            for what, changed in _changed_interfaces(body):
                bodies = (*program.bodies[:i], changed, *program.bodies[i + 1 :])
                mutated = _placed(programs, replace(program, bodies=bodies))
                yield Mutation("body interface", f"rank {program.rank}, {what}", mutated)
        for i, buffer in enumerate(program.buffers):
            for kind, changed in _changed_buffers(buffer):
                buffers = (*program.buffers[:i], changed, *program.buffers[i + 1 :])
                mutated = _placed(programs, replace(program, buffers=buffers))
                where = f"rank {program.rank}: {buffer} -> {changed}"
                yield Mutation(f"pool {kind}", where, mutated)
        for i, queue in enumerate(program.queues):
            for kind, changed in _changed_queues(queue, len(programs)):
                queues = (*program.queues[:i], changed, *program.queues[i + 1 :])
                mutated = _placed(programs, replace(program, queues=queues))
                where = f"rank {program.rank}: {queue} -> {changed}"
                yield Mutation(f"queue {kind}", where, mutated)


def dropped_queues(programs: Programs) -> Iterator[tuple[str, str]]:
    """Texts of programs that lack one of their queues: those do not parse."""
    for program in programs:
        text = print_program(program)
        for queue in program.queues:
            line = f"queue   {queue}\n"
            assert line in text
            yield f"rank {program.rank}: {queue}", text.replace(line, "", 1)


def _changed_steps(
    body: Body, program: RankProgram, model: Model
) -> Iterator[tuple[str, str, list[Step], str]]:
    """(kind, what, steps, why it is harmless)."""
    steps = list(body.steps)
    for i, step in enumerate(steps):
        yield "drop", f"{step}", steps[:i] + steps[i + 1 :], ""
        yield "repeat", f"{step}", steps[: i + 1] + steps[i:], ""
        for kind, changed in _changed_step(step, body, program, model):
            yield kind, f"{step} -> {changed}", [*steps[:i], changed, *steps[i + 1 :]], ""
    for i, j in combinations(range(len(steps)), 2):
        mutated = list(steps)
        mutated[i], mutated[j] = steps[j], steps[i]
        moved = [(i, k) for k in range(i + 1, j + 1)] + [(k, j) for k in range(i + 1, j)]
        free = not any(_depends(steps[b], steps[a], model) for a, b in moved)
        harmless = "the steps need nothing of each other" if free else ""
        yield "swap", f"{steps[i]} <> {steps[j]}", mutated, harmless


def _depends(later: Step, earlier: Step, model: Model) -> bool:
    """Whether ``later`` needs ``earlier`` before it: its values, or the gradients it adds to."""
    if isinstance(later, Reduce):
        if not isinstance(earlier, Call):
            return False
        names = [{p.name for _, p in model.unit(s.unit).parameters} for s in (later, earlier)]
        return earlier.unit == later.unit or bool(names[0] & names[1])
    return isinstance(earlier, Call) and bool(set(earlier.writes) & set(later.reads))


def _changed_step(
    step: Step, body: Body, program: RankProgram, model: Model
) -> Iterator[tuple[str, Step]]:
    for unit in (*program.units, "nowhere"):
        if unit != step.unit:
            yield "unit", replace(step, unit=unit)
    if isinstance(step, Reduce):
        for axes in ((), ("pp",), ("tp",), ("foo",), ("dp", "dp"), ("dp", "pp")):
            yield "axes", replace(step, axes=axes)
        yield "dtype", replace(step, dtype="int64")
        return
    for graph in (*model.graphs, "nothing.F"):
        if graph != step.graph:
            yield "graph", replace(step, graph=graph)
    calls = [other for other in body.steps if isinstance(other, Call)]
    names = {name for call in calls for name in (*call.reads, *call.writes)} | {"nothing"}
    for i, name in enumerate(step.reads):
        yield "reads", replace(step, reads=step.reads[:i] + step.reads[i + 1 :])
        for other in sorted(names - {name}):
            yield "reads", replace(step, reads=(*step.reads[:i], other, *step.reads[i + 1 :]))
    for i, name in enumerate(step.writes):
        yield "writes", replace(step, writes=step.writes[:i] + step.writes[i + 1 :])
        for other in sorted(names - {name}):
            yield "writes", replace(step, writes=(*step.writes[:i], other, *step.writes[i + 1 :]))


def _changed_interfaces(body: Body) -> Iterator[tuple[str, Body]]:
    names = ("x", "tokens", "labels", "dy", "saved", "owed", "y", "loss", "dx", "nothing")
    yield f"{body.name} of the other size", replace(body, tail=not body.tail)
    for field, old in (("reads", body.reads), ("writes", body.writes)):
        for i, name in enumerate(old):
            others = [(other,) for other in names if other != name]
            for new in [(), (name, name), *others]:
                changed = (*old[:i], *new, *old[i + 1 :])
                what = f"{body.name} {field} {' '.join(old)} -> {' '.join(changed)}"
                if field == "reads":
                    yield what, replace(body, reads=changed)
                else:
                    yield what, replace(body, writes=changed)
        if len(old) > 1:
            what = f"{body.name} {field} {' '.join(old)} in another order"
            turned = (*old[1:], old[0])
            if field == "reads":
                yield what, replace(body, reads=turned)
            else:
                yield what, replace(body, writes=turned)


def _changed_buffers(buffer: Buffer) -> Iterator[tuple[str, Buffer]]:
    for size in (0, buffer.bytes - 1, buffer.bytes + 1, 2 * buffer.bytes):
        if size != buffer.bytes:
            yield "bytes", replace(buffer, bytes=size)
    for slots in {0, buffer.slots - 1, buffer.slots + 1, buffer.slots + 7}:
        if slots != buffer.slots and slots >= 0:
            yield "slots", replace(buffer, slots=slots)
    for shape in ((), (2,), (1, 1), (*buffer.shape, 3), (0,)):
        if shape != buffer.shape:
            yield "shape", replace(buffer, shape=shape)
    for dtype in ("", "foo", *DTYPE_BYTES):
        if dtype != buffer.dtype:
            yield "dtype", replace(buffer, dtype=dtype)
    kinds: tuple[BufferKind, ...] = get_args(BufferKind)
    for kind in kinds:
        if kind != buffer.kind:
            yield "kind", replace(buffer, kind=kind)


def _changed_queues(queue: Queue, ranks: int) -> Iterator[tuple[str, Queue]]:
    yield "swap ends", replace(queue, source=queue.target, target=queue.source)
    yield "kind", replace(queue, kind="grad" if queue.kind == "act" else "act")
    yield "end", replace(queue, source=(queue.source + 1) % (ranks + 1))
    yield "end", replace(queue, target=(queue.target + 1) % (ranks + 1))


def accepted_swaps(
    programs: Programs, model: Model, replicas: int, far: int = 0, seed: int = 0
) -> list[Mutation]:
    """The swaps that the verifier accepts: they must compute the same."""
    return [
        mutation
        for mutation in swaps(programs, far, seed)
        if not verdict(mutation.programs, model, replicas)
    ]
