"""Parse the stream of a program text: instructions into rows of the table."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import numpy as np

from schedc.diagnostics import Diagnostic
from schedc.ir.order import Op
from schedc.program.body import Body
from schedc.program.instructions import BODY, Code, Operand, Stream, StreamBuilder
from schedc.program.lines import NUMBER, Line
from schedc.program.print import PLAIN_PLACE, OpenPosts
from schedc.program.program import Buffer, Queue

OPERAND = re.compile(r"(.+)\.(\d{1,9})(!?)", re.ASCII)
_NO_TASK = (-1, -1, -1)
_NO_LINK = (-1, -1, -1)

Row = tuple[int, ...]
BodyKey = tuple[int, int, bool] | int
"""(op, stage, last), or a body's number."""


class StreamParser:
    """Collects the rows of a stream line by line; ``finish`` makes the stream."""

    def __init__(
        self, units: tuple[str, ...], buffers: tuple[Buffer, ...], queues: tuple[Queue, ...]
    ) -> None:
        self._builder = StreamBuilder(units)
        self._units = {unit: index for index, unit in enumerate(units)}
        self._buffers = {buffer.name for buffer in buffers}
        self._queues = {str(queue): index for index, queue in enumerate(queues)}
        self._posts = OpenPosts()
        self._operands: dict[str, int] = {"": 0}
        self._places: dict[str, int] = {"": -1}
        self._tags: dict[str, int] = {}
        self._wanted: dict[BodyKey, tuple[int, Line, int]] = {}
        self._parsers: dict[str, Callable[[Line, int], Row]] = {
            **{op.name: self._run for op in Op},
            "load": self._load,
            "send": self._send,
            "recv": self._recv,
            "wait": self._wait,
            "report": self._report,
            "tie": self._tie,
            "count": self._bare(Code.COUNT),
            "norm": self._bare(Code.NORM),
            "step": self._bare(Code.STEP),
        }

    def add(self, line: Line) -> None:
        """Parse one instruction; raises what ``line`` refuses."""
        at = 1 if NUMBER.fullmatch(line.words[0]) else 0
        parser = self._parsers.get(line.word(at, "an instruction"))
        if parser is None:
            raise line.refuse(at, f"an instruction ({' '.join(self._parsers)})")
        row = parser(line, at)
        place = self._places.get(line.comment)
        if place is None:
            place = self._places[line.comment] = self._place(line.comment)
        self._builder.rows.append((*row, place))

    def finish(self, bodies: tuple[Body, ...]) -> tuple[Stream, list[Diagnostic]]:
        """The stream, with runs resolved to ``bodies``; and the runs whose body is missing."""
        known: dict[BodyKey, int] = {}
        for index, body in enumerate(bodies):
            known.setdefault((int(body.op), body.stage, body.last), index)
            known[index] = index
        refused: list[Diagnostic] = []
        found = np.full(len(self._wanted) + 1, -1, dtype=np.int32)
        for key, (provisional, line, at) in self._wanted.items():
            if isinstance(key, int):
                found[provisional] = key
            elif key in known:
                found[provisional] = known[key]
            else:
                op, stage, last = key
                name = f"{Op(op).name} s{stage}" + (" last" if last else "")
                names = [body.name for body in bodies]
                refused.append(line.unknown(at, "body", name, names).diagnostic)
        stream = self._builder.build()
        stream.table[:, BODY] = found[stream.table[:, BODY]]
        return stream, refused

    def _place(self, comment: str) -> int:
        text = comment.strip()
        if text.startswith('"'):
            try:
                place = json.loads(text)
            except json.JSONDecodeError:
                return -1
            return self._builder.place(place) if isinstance(place, str) else -1
        return self._builder.place(text) if PLAIN_PLACE.fullmatch(text) else -1

    def _tag(self, line: Line, at: int, letter: str, expected: str) -> int:
        """``s3`` or ``m7``."""
        word = line.word(at, expected)
        value = self._tags.get(word)
        if value is None or word[0] != letter:
            value = self._tags[word] = line.integer(at, expected, letter)
        return value

    def _task(self, line: Line, at: int) -> tuple[int, int, int]:
        """``F s0 m3``."""
        name = line.word(at, "an operation (F, B, I, W or R)")
        if name not in Op.__members__:
            raise line.refuse(at, "an operation (F, B, I, W or R)")
        stage = self._tag(line, at + 1, "s", "a stage, such as s0")
        return Op[name], stage, self._tag(line, at + 2, "m", "a microbatch, such as m0")

    def _some_operands(self, line: Line, start: int, stop: int) -> int:
        """The index of the operands in words ``start`` to ``stop``."""
        text = " ".join(line.words[start:stop])
        index = self._operands.get(text)
        if index is None:
            operands = tuple(self._operand(line, at) for at in range(start, stop))
            index = self._operands[text] = self._builder.operands(operands)
        return index

    def _operand(self, line: Line, at: int) -> Operand:
        expected = "a slot of a buffer, such as x.0"
        match = OPERAND.fullmatch(line.word(at, expected))
        if match is None:
            raise line.refuse(at, expected)
        if match[1] not in self._buffers:
            raise line.unknown(at, "buffer", match[1], sorted(self._buffers))
        return Operand(match[1], int(match[2]), bool(match[3]))

    def _one_operand(self, line: Line, at: int) -> int:
        line.word(at, "a slot of a buffer, such as x.0")
        return self._some_operands(line, at, at + 1)

    def _run(self, line: Line, at: int) -> Row:
        task = self._task(line, at)
        words = line.words
        key: BodyKey = (task[0], task[1], False)
        start = at + 3
        if start < len(words) and words[start] == "last":
            key, start = (task[0], task[1], True), start + 1
        elif start < len(words) and words[start] == "body":
            key = line.integer(start + 1, "the number of a body")
            start += 2
        wanted = self._wanted.get(key)
        if wanted is None:
            wanted = self._wanted[key] = (len(self._wanted), line, at)
        arrow = words.index("->", start) if "->" in words else len(words)
        reads = self._some_operands(line, start, arrow)
        writes = self._some_operands(line, arrow + 1, len(words))
        if arrow == len(words) - 1:
            raise line.refuse(len(words), "what is written")
        return (Code.RUN, *task, *_NO_LINK, wanted[0], reads, writes, -1)

    def _load(self, line: Line, at: int) -> Row:
        writes = self._one_operand(line, at + 1)
        line.keyword(at + 2, "<-")
        microbatch = self._tag(line, at + 3, "m", "a microbatch, such as m0")
        line.end(at + 4)
        return (Code.LOAD, -1, -1, microbatch, *_NO_LINK, -1, 0, writes, -1)

    def _message(self, line: Line, at: int, arrow: str) -> tuple[int, Row]:
        """The operand of a message, and its task and link."""
        operand = self._one_operand(line, at + 1)
        if line.word(at + 2, f"`{arrow}`") != arrow:
            raise line.refuse(at + 2, f"`{arrow}`")
        line.keyword(at + 3, "rank")
        peer = line.integer(at + 4, "a rank")
        task = self._task(line, at + 5)
        line.keyword(at + 8, "queue")
        name = line.word(at + 9, "a queue")
        queue = self._queues.get(name)
        if queue is None:
            raise line.unknown(at + 9, "queue", name, self._queues)
        line.keyword(at + 10, "seq")
        sequence = line.integer(at + 11, "the number of the message in its queue")
        line.end(at + 12)
        self._posts.post(line.words[at + 1].rstrip("!"), len(self._builder.rows))
        return operand, (*task, peer, queue, sequence)

    def _send(self, line: Line, at: int) -> Row:
        operand, message = self._message(line, at, "->")
        return (Code.SEND, *message, -1, operand, 0, -1)

    def _recv(self, line: Line, at: int) -> Row:
        operand, message = self._message(line, at, "<-")
        return (Code.RECV, *message, -1, 0, operand, -1)

    def _wait(self, line: Line, at: int) -> Row:
        what = line.word(at + 1, "what to wait for")
        code = _WAITS.get(what)
        if code is not None:
            line.end(at + 2)
            return (code, *_NO_TASK, *_NO_LINK, -1, 0, 0, -1)
        if what == "reduce":
            unit = self._unit(line, at + 2)
            line.end(at + 3)
            return (Code.WAIT_REDUCE, *_NO_TASK, *_NO_LINK, -1, 0, 0, unit)
        if OPERAND.fullmatch(what) is None:
            expected = "a slot such as x.0, or reduce, count, tie, norm or report"
            raise line.refuse(at + 1, expected)
        operand = self._one_operand(line, at + 1)
        slot = what.rstrip("!")
        if at + 2 < len(line.words):
            row = line.integer(at + 2, "the row of a post, such as @12", "@")
            line.end(at + 3)
        else:
            row = self._posts.latest(slot)
        self._posts.close(slot, row)
        return (Code.WAIT_MESSAGE, *_NO_TASK, *_NO_LINK, -1, operand, 0, row)

    def _unit(self, line: Line, at: int) -> int:
        unit = line.word(at, "a unit of this rank")
        if unit not in self._units:
            raise line.unknown(at, "unit", unit, self._units)
        return self._units[unit]

    def _tie(self, line: Line, at: int) -> Row:
        unit = self._unit(line, at + 1)
        line.keyword(at + 2, "<->")
        line.keyword(at + 3, "rank")
        peer = line.integer(at + 4, "a rank")
        line.end(at + 5)
        return (Code.TIE, *_NO_TASK, peer, -1, -1, -1, 0, 0, unit)

    def _report(self, line: Line, at: int) -> Row:
        reads = self._some_operands(line, at + 1, len(line.words))
        return (Code.REPORT, *_NO_TASK, *_NO_LINK, -1, reads, 0, -1)

    @staticmethod
    def _bare(code: Code) -> Callable[[Line, int], Row]:
        row = (code, *_NO_TASK, *_NO_LINK, -1, 0, 0, -1)

        def parse(line: Line, at: int) -> Row:
            line.end(at + 1)
            return row

        return parse


_WAITS = {
    "count": Code.WAIT_COUNT,
    "tie": Code.WAIT_TIE,
    "norm": Code.WAIT_NORM,
    "report": Code.WAIT_REPORT,
}
