"""PyTorch's schedule CSV (``torch.distributed.pipelining``, 2.13): a row a rank, a cell an action.

``2F0`` is the forward of stage 2 and microbatch 0; ``F B I W`` mean what they mean here. An empty
cell is idle. ``(0F1;3B0)OVERLAP_F_B`` is a slot of two. In the form with messages there are also
``1RECV_F0`` (the input of 1F0 arrives) and ``0SEND_F0`` (the result of 0F0 leaves), ``SEND_B`` and
``RECV_B`` likewise, and, of a whole stage, ``UNSHARD``, ``RESHARD`` and ``REDUCE_GRAD``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from schedc.diagnostics import Diagnostic, DiagnosticError, Source, Span
from schedc.ir.order import Op, Order, Table, make_table
from schedc.program.instructions import CODE, MICROBATCH, OP, STAGE, Code
from schedc.program.program import Programs

_ACTION = re.compile(r"([0-9]{1,9})([A-Z_]+?)([0-9]{0,9})")
_PAIR = re.compile(r"\(([^;()]*);([^;()]*)\)OVERLAP_F_B")
_COMPUTE = {op.name: op for op in Op if op is not Op.R}
_MESSAGES = ("SEND_F", "RECV_F", "SEND_B", "RECV_B")
DERIVED = ("UNSHARD", "RESHARD", "REDUCE_GRAD")
"""What a program does of itself: gathering parameters, dropping them, summing gradients."""


@dataclass(frozen=True, slots=True)
class Message:
    """A cell that sends or receives: ``word`` is one of SEND_F, RECV_F, SEND_B, RECV_B.

    ``after`` is the number of operations of the rank that stand before it.
    """

    word: str
    stage: int
    microbatch: int
    rank: int
    after: int
    span: Span

    def __str__(self) -> str:
        return f"{self.stage}{self.word}{self.microbatch}"


@dataclass(frozen=True, eq=False)
class TorchSchedule:
    """What a CSV says: the order, the messages if it has any, and the cells that are derived."""

    order: Order
    messages: tuple[tuple[Message, ...], ...]
    derived: tuple[str, ...]

    @property
    def communicates(self) -> bool:
        return any(self.messages)


# ---- reading ------------------------------------------------------------------------------------


class _Reader:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.rows: list[list[tuple[int, int, int, int]]] = []
        self.pairs: list[list[int]] = []
        self.messages: list[list[Message]] = []
        self.derived: dict[str, None] = {}
        self.spans: list[Span] = []
        self.mistakes: list[Diagnostic] = []

    def read(self) -> None:
        lines = self.source.text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        while lines and not lines[-1].strip():
            lines.pop()
        for line, text in enumerate(lines, 1):
            self.rows.append([])
            self.pairs.append([])
            self.messages.append([])
            column = 1
            for number, cell in enumerate(text.split(","), 1):
                word = cell.strip()
                start = column + len(cell) - len(cell.lstrip())
                if word:
                    span = Span(self.source, line, start, line, start + len(word))
                    self._cell(word, span, f"row {line} (rank {line - 1}), cell {number}")
                column += len(cell) + 1

    def _cell(self, word: str, span: Span, where: str) -> None:
        pair = _PAIR.fullmatch(word)
        if pair is not None:
            halves = [self._action(half.strip(), span, where) for half in pair.groups()]
            if None in halves:
                return
            if any(half is None or half[0] not in _COMPUTE for half in halves):
                self._refuse(f"{where}: `{word}` overlaps something that is no F, B, I or W", span)
                return
            self.pairs[-1].append(len(self.rows[-1]))
        else:
            halves = [self._action(word, span, where)]
        for half in halves:
            if half is not None:
                self._add(*half, span)

    def _action(self, word: str, span: Span, where: str) -> tuple[str, int, int] | None:
        """The word, stage and microbatch (-1: of the whole stage) of an action."""
        match = _ACTION.fullmatch(word)
        name = match[2] if match is not None else ""
        if match is None or name not in (*_COMPUTE, *_MESSAGES, *DERIVED):
            help = "an action is a stage, a word and a microbatch: 2F0, 1RECV_F0, 0REDUCE_GRAD"
            self._refuse(f"{where}: `{word}` is no action", span, help)
            return None
        if (name in DERIVED) != (match[3] == ""):
            words = "is of a whole stage and has" if name in DERIVED else "needs"
            amount = "no microbatch" if name in DERIVED else "a microbatch"
            self._refuse(f"{where}: `{word}`: {name} {words} {amount}", span)
            return None
        return name, int(match[1]), int(match[3] or -1)

    def _add(self, name: str, stage: int, microbatch: int, span: Span) -> None:
        rank = len(self.rows) - 1
        if name in DERIVED:
            self.derived[name] = None
        elif name in _COMPUTE:
            self.rows[rank].append((int(_COMPUTE[name]), stage, microbatch, len(self.spans)))
            self.spans.append(span)
        else:
            after = len(self.rows[rank])
            self.messages[rank].append(Message(name, stage, microbatch, rank, after, span))

    def _refuse(self, message: str, span: Span, help: str | None = None) -> None:
        self.mistakes.append(Diagnostic("E310", message, span, help=help))


def read_torch_csv(text: str, name: str, schedule: str) -> TorchSchedule:
    """The schedule that a CSV's ``text`` says; ``name`` is what errors call the file (E310).

    Whether the order is complete and free of deadlock is not checked here.
    """
    reader = _Reader(Source(name, text))
    reader.read()
    rows = [row for ranks in reader.rows for row in ranks]
    if not rows and not reader.mistakes:
        span = Span(reader.source, 1, 1, 1, 2)
        reader.mistakes.append(Diagnostic("E310", "the file has no operation", span))
    if reader.mistakes:
        raise DiagnosticError(reader.mistakes)
    rank_of = dict[int, int]()
    for rank, ops in enumerate(reader.rows):
        for _, stage, _, _ in ops:
            rank_of.setdefault(stage, rank)
    stages = max(rank_of) + 1
    absent = [stage for stage in range(stages) if stage not in rank_of]
    if absent:
        raise DiagnosticError(
            Diagnostic(
                "E310",
                f"no row has an operation of stage {absent[0]}, but there are stages up to "
                f"{stages - 1}",
                Span(reader.source, 1, 1, 1, 2),
            )
        )
    tables: tuple[Table, ...] = tuple(make_table(row) for row in reader.rows)
    order = Order(
        name=schedule,
        ranks=len(tables),
        microbatches=1 + max(microbatch for _, _, microbatch, _ in rows),
        rank_of=tuple(rank_of[stage] for stage in range(stages)),
        tables=tables,
        spans=tuple(reader.spans),
        pairs=tuple(map(tuple, reader.pairs)) if any(reader.pairs) else (),
    )
    return TorchSchedule(order, tuple(map(tuple, reader.messages)), tuple(reader.derived))


# ---- writing ------------------------------------------------------------------------------------


def write_torch_csv(order: Order, programs: Programs | None = None) -> str:
    """``order`` as PyTorch's CSV; with ``programs``, their sends and receives are in it.

    Slots of an F and a B become OVERLAP_F_B; PyTorch has no word for others (E310), nor for
    recompute. In the form with messages every slot stands as its two operations, one after another.
    """
    if programs is not None:
        return "".join(",".join(cells) + "\n" for cells in _with_messages(order, programs))
    return "".join(",".join(_cells(order, rank)) + "\n" for rank in range(order.ranks))


def _cells(order: Order, rank: int) -> Iterator[str]:
    firsts = set(order.pairs[rank]) if order.pairs else set[int]()
    tasks = list(order.tasks(rank))
    row = 0
    while row < len(tasks):
        span = order.span(rank, row)
        slot = tasks[row : row + 2] if row in firsts else tasks[row : row + 1]
        words = [f"{task.stage}{task.op.name}{task.microbatch}" for task in slot]
        if len(slot) == 1 and slot[0].op is not Op.R:
            yield words[0]
        elif [task.op for task in slot] in ([Op.F, Op.B], [Op.B, Op.F]):
            forward_first = words if slot[0].op is Op.F else words[::-1]
            yield f"({';'.join(forward_first)})OVERLAP_F_B"
        else:
            shown = " with ".join(map(str, slot))
            raise DiagnosticError(
                Diagnostic("E310", f"PyTorch's format has no word for {shown} on rank {rank}", span)
            )
        row += len(slot)


def _with_messages(order: Order, programs: Programs) -> Iterator[list[str]]:
    """Each rank's operations and messages in the order its program posts and runs them.

    As PyTorch's own lowering does it, parameters are there first and gradients, which are scaled
    when they are reduced, are reduced once a stage has its last one.
    """
    letters = {Op.F: "F", Op.B: "B", Op.I: "B"}
    for program in programs:
        stages = [stage for stage, _ in program.stages]
        left = dict.fromkeys(stages, 0)
        for op, stage, _, _ in order.tables[program.rank].tolist():
            left[stage] += op in (Op.B, Op.W)
        cells = [f"{stage}UNSHARD" for stage in stages]
        table = program.stream.table
        for code, op, stage, m in table[:, [CODE, OP, STAGE, MICROBATCH]].tolist():
            if code == Code.SEND:
                cells.append(f"{stage}SEND_{letters[Op(op)]}{m}")
            elif code == Code.RECV:
                reader = stage + 1 if op == Op.F else stage - 1
                cells.append(f"{reader}RECV_{letters[Op(op)]}{m}")
            elif code == Code.RUN:
                cells.append(f"{stage}{Op(op).name}{m}")
                if op in (Op.B, Op.W):
                    left[stage] -= 1
                    if not left[stage]:
                        cells += [f"{stage}REDUCE_GRAD", f"{stage}RESHARD"]
        yield cells
