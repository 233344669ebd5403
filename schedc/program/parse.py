"""Parse the text form of a rank program (``schedc.program.text`` describes it)."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import get_args

from schedc.diagnostics import Diagnostic, DiagnosticError, Source, Span
from schedc.ir.order import Op
from schedc.program.body import REDUCE_DTYPES, VARIANTS, Body, Call, Reduce, Step
from schedc.program.lines import Line, Refused
from schedc.program.parse_stream import StreamParser
from schedc.program.program import Buffer, BufferKind, Queue, RankProgram

MOST_ERRORS = 20
SHAPE = re.compile(r"(\w*)\[((?:\d+(?:,\d+)*)?)\]", re.ASCII)
QUEUE = re.compile(r"(act|grad)\.(\d{1,9})-(\d{1,9})", re.ASCII)
_ANY_SIZE = 2**63 - 1


def parse_program(text: str, name: str) -> RankProgram:
    """The program that ``text`` describes; ``name`` is what errors call the text.

    Raises DiagnosticError (E507) with the line, the column and what was expected; errors of
    several lines come together.
    """
    return _Parser(text, name).parse()


class _Parser:
    def __init__(self, text: str, name: str) -> None:
        self.source = Source(name, text.removeprefix("\ufeff"))
        text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
        self.lines = text.split("\n")
        self.refused: list[Diagnostic] = []
        self.rank: tuple[int, int, int, str] | None = None
        self.evaluates = False
        self.stages: list[tuple[int, tuple[str, ...]]] = []
        self.buffers: list[Buffer] = []
        self.queues: list[Queue] = []
        self.bodies: list[Body] = []
        self.steps: list[list[Step]] = []

    def parse(self) -> RankProgram:
        start = self._header()
        units = tuple(unit for _, names in self.stages for unit in names)
        stream = StreamParser(units, tuple(self.buffers), tuple(self.queues))
        self._stream_and_bodies(start, stream)
        bodies = tuple(
            replace(body, steps=tuple(steps))
            for body, steps in zip(self.bodies, self.steps, strict=True)
        )
        built, missing = stream.finish(bodies)
        self.refused += missing
        if self.refused:
            raise DiagnosticError(self.refused)
        assert self.rank is not None
        rank, ranks, microbatches, order = self.rank
        return RankProgram(
            rank=rank,
            ranks=ranks,
            microbatches=microbatches,
            order=order,
            stages=tuple(self.stages),
            buffers=tuple(self.buffers),
            queues=tuple(self.queues),
            stream=built,
            bodies=bodies,
            evaluates=self.evaluates,
        )

    def _header(self) -> int:
        """Reads up to ``stream``; returns the index of the line after it."""
        first = True
        for index, text in enumerate(self.lines):
            line = Line(self.source, index + 1, text, hash_starts_comment=False)
            if not line.words or line.words[0] == "#":
                continue
            try:
                if first:
                    self._title(line)
                    first = False
                elif line.words[0] == "stream":
                    line.end(1)
                    if self.rank is None:
                        raise line.error(0, "the line `rank … of …` is missing before `stream`")
                    return index + 1
                else:
                    self._declaration(line)
            except Refused as refused:
                self._refuse(refused)
                if first:
                    raise DiagnosticError(self.refused) from None
        wanted = "`schedc program 1`" if first else "`stream`"
        last = len(self.lines)
        span = Span(self.source, last, 1, last, 2)
        message = f"expected {wanted}, found the end of the text"
        raise DiagnosticError([*self.refused, Diagnostic("E507", message, span)])

    def _title(self, line: Line) -> None:
        if line.words[:2] != ["schedc", "program"]:
            raise line.refuse(0, "`schedc program 1`")
        if line.word(2, "the version of the format, 1") != "1":
            raise line.refuse(2, "version 1 of the format, which this schedc reads")
        line.end(3)

    def _declaration(self, line: Line) -> None:
        match line.words[0]:
            case "rank":
                self._rank(line)
            case "evaluation":
                line.end(1)
                if self.evaluates:
                    raise line.error(0, "the line `evaluation` stands twice")
                self.evaluates = True
            case "stage":
                stage = self._stage(line)
                self.stages.append((stage, line.names(2)))
            case "buffer":
                self._buffer(line)
            case "queue":
                match_ = QUEUE.fullmatch(line.word(1, "a queue, such as act.0-1"))
                if match_ is None:
                    raise line.refuse(1, "a queue, such as act.0-1 or grad.1-0")
                line.end(2)
                kind = "act" if match_[1] == "act" else "grad"
                queue = Queue(kind, int(match_[2]), int(match_[3]))
                if queue in self.queues:
                    raise line.error(1, f"the queue `{queue}` is declared twice")
                self.queues.append(queue)
            case _:
                raise line.refuse(0, "`rank`, `evaluation`, `stage`, `buffer`, `queue` or `stream`")

    def _stage(self, line: Line) -> int:
        word = line.word(1, "a stage's number and a colon")
        if not re.fullmatch(r"\d{1,9}:", word, re.ASCII):
            raise line.refuse(1, "a stage's number and a colon, such as `0:`")
        return int(word[:-1])

    def _rank(self, line: Line) -> None:
        if self.rank is not None:
            raise line.error(0, "the line `rank … of …` stands twice")
        rank = line.integer(1, "the rank's number")
        line.keyword(2, "of")
        ranks = line.integer(3, "the number of ranks")
        line.keyword(4, "microbatches")
        microbatches = line.integer(5, "the number of microbatches")
        line.keyword(6, "order")
        line.word(7, "the name of the order")
        order = " ".join(line.words[7:])
        if order.startswith('"'):
            order = self._quoted_order(line)
        self.rank = (rank, ranks, microbatches, order)

    def _quoted_order(self, line: Line) -> str:
        text = self.lines[line.number - 1]
        try:
            value, _ = json.JSONDecoder().raw_decode(text, text.index('"'))
        except json.JSONDecodeError:
            raise line.error(7, "the quoted name of the order does not end") from None
        return str(value)

    def _buffer(self, line: Line) -> None:
        name = line.name(1, "the buffer's name")
        kinds = get_args(BufferKind)
        kind = line.keyword(2, *kinds)
        dtype, shape, at = "", (), 3
        found = SHAPE.fullmatch(line.word(3, "a shape such as fp32[2,128], or the bytes of a slot"))
        if found is not None:
            dtype, at = found[1], 4
            shape = tuple(int(size) for size in found[2].split(",") if size)
        size = line.integer(at, "the bytes of a slot", largest=_ANY_SIZE)
        line.keyword(at + 1, "bytes")
        line.keyword(at + 2, "×", "x")
        slots = line.integer(at + 3, "the number of slots")
        line.end(at + 4)
        if any(buffer.name == name for buffer in self.buffers):
            raise line.error(1, f"the buffer `{name}` is declared twice")
        known: BufferKind = next(k for k in kinds if k == kind)
        self.buffers.append(Buffer(name, known, shape, dtype, size, slots))

    def _stream_and_bodies(self, start: int, stream: StreamParser) -> None:
        """The instructions up to the first ``body``, then the bodies."""
        for index in range(start, len(self.lines)):
            line = Line(self.source, index + 1, self.lines[index])
            if not line.words:
                continue
            try:
                if line.words[0] == "body":
                    self._body(line)
                elif self.bodies:
                    self.steps[-1].append(self._step(line))
                else:
                    stream.add(line)
            except Refused as refused:
                self._refuse(refused)

    def _body(self, line: Line) -> None:
        """A body's head. The steps that follow belong to it even where the head is refused."""
        self.bodies.append(Body(Op.F, -1, False, (), (), ()))
        self.steps.append([])
        operation = line.word(1, "an operation (F, B, I, W or R)")
        if operation not in Op.__members__:
            raise line.refuse(1, "an operation (F, B, I, W or R)")
        stage = line.integer(2, "a stage, such as s0", "s")
        (tail, last), start = line.marks(3, *VARIANTS)
        reads, writes = _arrow(line, start)
        self.bodies[-1] = Body(Op[operation], stage, last, reads, writes, (), tail)

    def _step(self, line: Line) -> Step:
        if line.keyword(0, "call", "reduce") == "call":
            graph, unit = line.name(1, "a graph"), line.name(2, "a unit")
            return Call(graph, unit, *_arrow(line, 3))
        unit = line.name(1, "a unit")
        over, dtype = len(line.words), "fp32"
        if "in" in line.words[2:]:
            over = line.words.index("in", 2)
            dtype = line.keyword(over + 1, *REDUCE_DTYPES)
            line.end(over + 2)
        if over == 2:
            return Reduce(unit, (), dtype)
        line.keyword(2, "over")
        if over == 3:
            line.name(over, "the axes to sum over")
        return Reduce(unit, line.names(3, over), dtype)

    def _refuse(self, refused: Refused) -> None:
        self.refused.append(refused.diagnostic)
        if len(self.refused) >= MOST_ERRORS:
            raise DiagnosticError(self.refused)


def _arrow(line: Line, start: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names read and written, ``x labels -> loss saved``."""
    if "->" not in line.words[start:]:
        return line.names(start), ()
    at = line.words.index("->", start)
    if at == len(line.words) - 1:
        raise line.refuse(len(line.words), "what is written")
    return line.names(start, at), line.names(at + 1)
