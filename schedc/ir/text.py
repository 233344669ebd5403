"""Orders as canonical text, and back; their digest.

::

    schedc order 1
    schedule "zb_h1"
    ranks 2   microbatches 3
    placement 0 1
    rank 0
      F(0,0) F(0,1) I(0,0) W(0,0) F(0,2) I(0,1) W(0,1) I(0,2) W(0,2)
    rank 1
      ...

``placement`` names the rank of each stage, in model order; ``F(s,m)`` is the forward of stage s
and microbatch m, ``F(s,m)|B(t,n)`` two operations that share a slot. White space separates and
otherwise means nothing, except that each heading starts a line; ``#`` starts a comment. Source
spans are not part of the text.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import NoReturn

import numpy as np

from schedc.diagnostics import Diagnostic, DiagnosticError, Source, Span
from schedc.ir.order import MICROBATCH, OP, STAGE, Op, Order, Table, make_table

HEADER = "schedc order 1"

_WIDTH = 100
_TOKEN = re.compile(r'#[^\n]*|"(?:[^"\\\n]|\\.)*"|[^\s#"]+|"')
_NUMBER = re.compile(r"[0-9]{1,10}")
_OPERATION = re.compile(r"([FBIWR])\(([0-9]{1,10}),([0-9]{1,10})\)")
_LARGEST = int(np.iinfo(np.int32).max)


def print_order(order: Order) -> str:
    """The canonical text of ``order``: equal orders print alike, whatever their spans."""
    lines = [
        HEADER,
        f"schedule {json.dumps(order.name)}",
        f"ranks {order.ranks}   microbatches {order.microbatches}",
        *_wrap("placement", [str(rank) for rank in order.rank_of]),
    ]
    for rank, table in enumerate(order.tables):
        words = [f"{Op(op).name}({stage},{m})" for op, stage, m, _ in table.tolist()]
        for row in reversed(order.pairs[rank] if order.pairs else ()):
            words[row : row + 2] = ["|".join(words[row : row + 2])]
        lines.append(f"rank {rank}")
        lines += _wrap("", words) if words else []
    return "".join(f"{line}\n" for line in lines)


def parse_order(text: str, name: str) -> Order:
    """The order that ``text`` says; ``name`` is what errors call the text (E307).

    What the operations are is not checked: :func:`schedc.ir.verify.verify_order` does that.
    """
    reader = _Reader(Source(name, text))
    for word in HEADER.split():
        reader.word(word)
    reader.word("schedule")
    schedule = reader.string()
    reader.word("ranks")
    ranks = reader.number(at_least=1)
    reader.word("microbatches")
    microbatches = reader.number(at_least=1)
    reader.word("placement")
    rank_of: list[int] = []
    while reader.peek() != "rank":
        rank_of.append(reader.number())
    tables: list[Table] = []
    pairs: list[tuple[int, ...]] = []
    for rank in range(ranks):
        reader.word("rank")
        reader.word(str(rank))
        table, firsts = reader.operations()
        tables.append(table)
        pairs.append(firsts)
    if reader.peek() is not None:
        reader.fail(f"expected the end after rank {ranks - 1} of {ranks}")
    paired = tuple(pairs) if any(pairs) else ()
    return Order(schedule, ranks, microbatches, tuple(rank_of), tuple(tables), pairs=paired)


def order_digest(order: Order) -> str:
    """Twelve hexadecimal digits for what ``order`` says: sizes, placement, operations; no names."""
    digest = hashlib.sha256()
    sizes = [order.ranks, order.microbatches, order.stages, *order.rank_of]
    sizes += [len(table) for table in order.tables]
    digest.update(np.array(sizes, dtype="<i8").tobytes())
    for table in order.tables:
        columns = table[:, [OP, STAGE, MICROBATCH]].astype("<i4")
        digest.update(np.ascontiguousarray(columns).tobytes())
    for rows in order.pairs:
        digest.update(np.array([len(rows), *rows], dtype="<i8").tobytes())
    return digest.hexdigest()[:12]


def _wrap(head: str, words: list[str]) -> list[str]:
    """``head``, then ``words``, on indented lines that are not too long."""
    lines: list[str] = []
    line = head or " "
    for word in words:
        if len(line) + 1 + len(word) > _WIDTH:
            lines.append(line)
            line = " "
        line += f" {word}"
    return [*lines, line]


class _Reader:
    """The tokens of an order's text, one after another; errors point at the current one."""

    def __init__(self, source: Source) -> None:
        self._source = source
        found = [(m.group(), m.start()) for m in _TOKEN.finditer(source.text)]
        self._tokens = [token for token in found if not token[0].startswith("#")]
        self._at = 0

    def peek(self) -> str | None:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else None

    def word(self, expected: str) -> None:
        if self.peek() != expected:
            self.fail(f"expected '{expected}'")
        self._at += 1

    def string(self) -> str:
        token = self.peek()
        try:
            value = json.loads(token) if token is not None and token[0] == '"' else None
        except ValueError:
            value = None
        if not isinstance(value, str):
            self.fail("expected a name in quotes")
        self._at += 1
        return value

    def number(self, at_least: int = 0) -> int:
        token = self.peek()
        if token is None or not _NUMBER.fullmatch(token):
            self.fail("expected a number")
        if not at_least <= int(token) <= _LARGEST:
            self.fail(f"expected a number from {at_least} to {_LARGEST}")
        self._at += 1
        return int(token)

    def operations(self) -> tuple[Table, tuple[int, ...]]:
        """All operations up to the next heading or the end; which share a slot with the next."""
        rows: list[tuple[int, int, int, int]] = []
        pairs: list[int] = []
        codes = {op.name: int(op) for op in Op}
        while (token := self.peek()) is not None and token != "rank":
            halves = token.split("|")
            if len(halves) == 2:
                pairs.append(len(rows))
            for half in halves:
                match = _OPERATION.fullmatch(half) if len(halves) <= 2 else None
                if match is None:
                    self.fail("expected an operation such as F(0,3), or the next rank")
                op, stage, microbatch = match.groups()
                if max(int(stage), int(microbatch)) > _LARGEST:
                    self.fail(f"expected numbers up to {_LARGEST}")
                rows.append((codes[op], int(stage), int(microbatch), -1))
            self._at += 1
        return make_table(rows), tuple(pairs)

    def fail(self, expected: str) -> NoReturn:
        text, token = self._source.text, self.peek()
        start = self._tokens[self._at][1] if token is not None else len(text.rstrip())
        line = text.count("\n", 0, start) + 1
        column = start - (text.rfind("\n", 0, start) + 1) + 1
        span = Span(self._source, line, column, line, column + max(1, len(token or "")))
        found = f"found '{token}'" if token is not None else "the text ends here"
        raise DiagnosticError(Diagnostic("E307", f"malformed order: {expected}, {found}", span))
