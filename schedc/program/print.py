"""Print a rank program in its canonical text form (``schedc.program.text`` describes it)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from schedc.ir.order import Op
from schedc.program.body import Body, Call, Reduce
from schedc.program.instructions import (
    BODY,
    CODE,
    MICROBATCH,
    OP,
    PEER,
    PLACE,
    QUEUE,
    READS,
    REF,
    SEQUENCE,
    STAGE,
    WRITES,
    Code,
    Stream,
)
from schedc.program.lines import WORD
from schedc.program.program import Buffer, RankProgram

PLACE_COLUMN = 64
"""Where the ``# file:line`` of an instruction begins, unless the instruction is longer."""

PLAIN_PLACE = re.compile(
    r'[^\s"\ud800-\udfff][^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]*:[0-9]+'
)
PLAIN_ORDER = re.compile(r'(?!")(?!#(?: |$))\S+(?: (?!#(?: |$))\S+)*')

_BARE = {
    Code.COUNT: "count",
    Code.NORM: "norm",
    Code.STEP: "step",
    Code.WAIT_COUNT: "wait  count",
    Code.WAIT_TIE: "wait  tie",
    Code.WAIT_NORM: "wait  norm",
    Code.WAIT_REPORT: "wait  report",
}


class OpenPosts:
    """The posts not yet waited for, by slot: what ``wait x.0`` refers to. Printer and parser agree.

    ``wait x.0`` means the latest open post on ``x.0``; a wait for any other row names it, ``@12``.
    """

    def __init__(self) -> None:
        self._open: dict[str, list[int]] = {}

    def post(self, slot: str, row: int) -> None:
        self._open.setdefault(slot, []).append(row)

    def latest(self, slot: str) -> int:
        """The row of the latest open post; -1 where there is none."""
        rows = self._open.get(slot)
        return rows[-1] if rows else -1

    def close(self, slot: str, row: int) -> None:
        rows = self._open.get(slot)
        if rows and row in rows:
            rows.remove(row)


def print_program(program: RankProgram) -> str:
    """The program as canonical text; ``parse_program`` reads it back.

    Names of buffers, units, graphs, axes and values must be words: no white space and none of
    ``# " ! , : [ ]``. Raises ValueError for one that is not.
    """
    _check_words(program)
    lines = [*_header(program), "", "stream", *_stream(program)]
    for body in program.bodies:
        lines += ["", *_body(body)]
    return "\n".join(lines) + "\n"


def instruction_text(program: RankProgram, row: int) -> str:
    """One instruction as text, without number and place: for messages about it."""
    return " ".join(_Lines(program).line(program.stream.table[row].tolist()).split())


def instruction_place(program: RankProgram, row: int) -> str:
    """The ``file:line`` that an instruction comes from; empty where none is known."""
    place = int(program.stream.table[row, PLACE])
    return program.stream.places[place] if place >= 0 else ""


def print_bytes(count: int) -> str:
    """A size for people: ``41.2 MiB``."""
    size = float(count)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{count} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _check_words(program: RankProgram) -> None:
    words = [buffer.name for buffer in program.buffers]
    words += program.units
    words += [axis for body in program.bodies for axis in _words_of(body)]
    words += [operand.buffer for operands in program.stream.operands for operand in operands]
    for word in sorted(set(words)):
        if not WORD.fullmatch(word) or word == "->":
            raise ValueError(f"a name in a program must be a word, and {word!r} is not")


def _words_of(body: Body) -> Iterator[str]:
    yield from body.reads
    yield from body.writes
    for step in body.steps:
        yield step.unit
        if isinstance(step, Call):
            yield from (step.graph, *step.reads, *step.writes)
        else:
            yield from step.axes


def _header(program: RankProgram) -> Iterator[str]:
    order = program.order
    if not PLAIN_ORDER.fullmatch(order):
        order = json.dumps(order)
    yield "schedc program 1"
    yield (
        f"rank {program.rank} of {program.ranks}   microbatches {program.microbatches}"
        f"   order {order}"
    )
    if program.evaluates:
        yield "evaluation"
    for stage, units in program.stages:
        yield f"stage {stage}: {' '.join(units)}".rstrip()
    columns = [_buffer_columns(buffer) for buffer in program.buffers]
    widths = [max((len(row[i]) for row in columns), default=0) for i in range(5)]
    for buffer, (name, kind, shape, size, slots) in zip(program.buffers, columns, strict=True):
        cells = (f"{name:<{widths[0]}}", f"{kind:<{widths[1]}}", f"{shape:<{widths[2]}}")
        line = f"buffer  {'  '.join(cells)}  {size:>{widths[3]}} bytes × {slots:<{widths[4]}}"
        yield f"{line}   # {print_bytes(buffer.bytes * buffer.slots)}"
    for queue in program.queues:
        yield f"queue   {queue}"


def _buffer_columns(buffer: Buffer) -> tuple[str, str, str, str, str]:
    shape = f"{buffer.dtype}[{','.join(map(str, buffer.shape))}]"
    shape = "" if shape == "[]" else shape
    return buffer.name, buffer.kind, shape, str(buffer.bytes), str(buffer.slots)


def _stream(program: RankProgram) -> Iterator[str]:
    lines = _Lines(program)
    posts = OpenPosts()
    width = max(3, len(str(max(0, len(program.stream) - 1))))
    places = [_place(place) for place in program.stream.places]
    for number, row in enumerate(program.stream.table.tolist()):
        line = f"{number:>{width}}  {lines.line(row)}"
        code = row[CODE]
        if code == Code.WAIT_MESSAGE:
            slot = lines.operands(row[READS]).rstrip("!")
            if posts.latest(slot) != row[REF]:
                line += f"  @{row[REF]}"
            posts.close(slot, row[REF])
        elif code == Code.SEND or code == Code.RECV:
            posts.post(lines.operands(row[READS if code == Code.SEND else WRITES]), number)
        place = row[PLACE]
        yield f"{line:<{PLACE_COLUMN}}  # {places[place]}" if place >= 0 else line


def _place(place: str) -> str:
    return place if PLAIN_PLACE.fullmatch(place) and place == place.strip() else json.dumps(place)


class _Lines:
    """Instructions of one program as text."""

    def __init__(self, program: RankProgram) -> None:
        self._stream: Stream = program.stream
        self._operands: dict[int, str] = {}
        self._queues = [str(queue) for queue in program.queues]
        names = [body.name for body in program.bodies]
        self._bodies: dict[tuple[int, int, int], str] = {}
        for index, body in enumerate(program.bodies):
            if names.index(body.name) == index:
                key = (index, int(body.op), body.stage)
                self._bodies[key] = body.variant

    def operands(self, index: int) -> str:
        text = self._operands.get(index)
        if text is None:
            text = " ".join(map(str, self._stream.operands[index]))
            self._operands[index] = text
        return text

    def line(self, row: list[int]) -> str:
        """A row of the table, without its number and place."""
        code = row[CODE]
        if code == Code.RUN:
            return self._run(row)
        if code == Code.SEND or code == Code.RECV:
            send = code == Code.SEND
            slot = self.operands(row[READS if send else WRITES])
            post = f"{slot} {'->' if send else '<-'} rank {row[PEER]}"
            task = f"{Op(row[OP]).name} s{row[STAGE]} m{row[MICROBATCH]}"
            link = f"queue {self._queues[row[QUEUE]]} seq {row[SEQUENCE]}"
            return f"{'send' if send else 'recv'}  {post:<18} {task:<10} {link}"
        if code == Code.WAIT_MESSAGE:
            return f"wait  {self.operands(row[READS])}"
        if code == Code.LOAD:
            return f"load  {self.operands(row[WRITES])} <- m{row[MICROBATCH]}"
        if code == Code.WAIT_REDUCE:
            return f"wait  reduce {self._stream.units[row[REF]]}"
        if code == Code.TIE:
            return f"tie   {self._stream.units[row[REF]]} <-> rank {row[PEER]}"
        if code == Code.REPORT:
            return f"report {self.operands(row[READS])}".rstrip()
        return _BARE[Code(code)]

    def _run(self, row: list[int]) -> str:
        variant = self._bodies.get((row[BODY], row[OP], row[STAGE]), f" body {row[BODY]}")
        task = f"s{row[STAGE]} m{row[MICROBATCH]}{variant}"
        reads, writes = self.operands(row[READS]), self.operands(row[WRITES])
        arrow = f" -> {writes}" if row[WRITES] else ""
        return f"{Op(row[OP]).name}     {task:<12} {reads}{arrow}".rstrip()


def _body(body: Body) -> Iterator[str]:
    head = f"body {body.name}"
    interface = _arrow(body.reads, body.writes)
    yield f"{head:<16}  {interface}".rstrip()
    calls = [step for step in body.steps if isinstance(step, Call)]
    graph = max((len(call.graph) for call in calls), default=0)
    unit = max((len(step.unit) for step in body.steps), default=0)
    for step in body.steps:
        match step:
            case Call():
                values = _arrow(step.reads, step.writes)
                yield f"  call    {step.graph:<{graph}}  {step.unit:<{unit}}  {values}".rstrip()
            case Reduce():
                over = f" over {' '.join(step.axes)}" if step.axes else ""
                rounded = f" in {step.dtype}" if step.dtype != "fp32" else ""
                yield f"  reduce  {step.unit}{over}{rounded}"


def _arrow(reads: tuple[str, ...], writes: tuple[str, ...]) -> str:
    return " ".join((*reads, *(("->", *writes) if writes else ())))
