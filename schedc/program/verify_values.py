"""Which value each operand holds or wants, as one number, and which kinds of buffers may hold it.

A value is (class, stage, microbatch): the activation that F of a stage produced, the gradient that
its I or B produced, its saved, owed or loss, or a microbatch's tokens or labels (stage 0).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import numpy as np

from schedc.ir.order import Op
from schedc.program.body import Body
from schedc.program.instructions import BODY, CODE, MICROBATCH, OP, STAGE, Code
from schedc.program.kept import kept_by_F, kept_by_I
from schedc.program.program import Buffer, BufferKind, RankProgram
from schedc.program.signature import Model, Role, Value
from schedc.program.verify_columns import Columns, Findings, Ints

if TYPE_CHECKING:
    from schedc.program.verify_buffers import Events

NOTHING = -1
ANY_LOSS = -2

ACTIVATION, GRADIENT, SAVED, OWED, LOSS, TOKENS, LABELS = range(7)
_CLASS = {
    "x": ACTIVATION,
    "y": ACTIVATION,
    "dy": GRADIENT,
    "dx": GRADIENT,
    "saved": SAVED,
    "owed": OWED,
    "loss": LOSS,
    "tokens": TOKENS,
    "labels": LABELS,
}
"""The class of the value in a buffer of a kind, or under a name of a body's interface."""

_SHIFT = {"x": -1, "dy": 1}
"""The stage that made what a body reads under a name, relative to its own."""

_READ_FROM = {"x": ("x", "y"), "dy": ("dy", "dx")}
"""The kinds of buffers a name may be read from, where not only its own: a neighbour stage on the
same rank hands over its output."""


def value_text(value: int, columns: Columns) -> str:
    """``the activation of F(stage 0, microbatch 3)``."""
    if value == ANY_LOSS:
        return "a loss"
    if value == NOTHING:
        return "nothing"
    rest, microbatch = divmod(value, columns.microbatches)
    kind, stage = divmod(rest, columns.stages)
    match kind:
        case 0:
            return f"the activation of stage {stage}, microbatch {microbatch}"
        case 1:
            return f"the gradient from stage {stage}, microbatch {microbatch}"
        case 2 | 3 | 4:
            name = ("saved", "owed", "loss")[kind - 2]
            return f"`{name}` of stage {stage}, microbatch {microbatch}"
        case _:
            return f"the {'tokens' if kind == 5 else 'labels'} of microbatch {microbatch}"


def _encode(columns: Columns, kind: Ints, stage: Ints, microbatch: Ints) -> Ints:
    return (kind * columns.stages + stage) * columns.microbatches + microbatch


def produced_values(columns: Columns, program: RankProgram, events: Events) -> Ints:
    """What each event leaves in its slot; meaningful where it fills it."""
    table = program.stream.table[events.row].astype(np.int64)
    kinds = np.array([_CLASS[buffer.kind] for buffer in program.buffers], dtype=np.int64)
    kind = kinds[events.buffer]
    stage = np.where(table[:, CODE] == Code.LOAD, 0, table[:, STAGE])
    receive = table[:, CODE] == Code.RECV
    kind = np.where(receive, np.where(table[:, OP] == Op.F, ACTIVATION, GRADIENT), kind)
    return _encode(columns, kind, stage, table[:, MICROBATCH])


def expected_values(columns: Columns, program: RankProgram, events: Events) -> Ints:
    """What each reading event wants in its slot; NOTHING where it does not care."""
    table = program.stream.table[events.row].astype(np.int64)
    code = table[:, CODE]
    result: Ints = np.full(len(events), NOTHING, dtype=np.int64)
    runs = ((code == Code.RUN) & ~events.fills).nonzero()[0]
    if len(runs):
        kinds, shifts = _interfaces(program.bodies)
        body, position = table[runs, BODY], events.position[runs]
        kind = kinds[body, position]
        stage = np.where(kind >= TOKENS, 0, table[runs, STAGE] + shifts[body, position])
        result[runs] = _encode(columns, kind, stage, table[runs, MICROBATCH])
    sends = code == Code.SEND
    kind = np.where(table[:, OP] == Op.F, ACTIVATION, GRADIENT)
    sent = _encode(columns, kind, table[:, STAGE], table[:, MICROBATCH])
    result = np.where(sends, sent, result)
    return np.where((code == Code.REPORT) & ~events.fills, ANY_LOSS, result)


def _interfaces(bodies: tuple[Body, ...]) -> tuple[Ints, Ints]:
    """Class and stage shift of each body's reads, padded."""
    width = max((len(body.reads) for body in bodies), default=0)
    kinds: Ints = np.zeros((len(bodies), width), dtype=np.int64)
    shifts: Ints = np.zeros((len(bodies), width), dtype=np.int64)
    for index, body in enumerate(bodies):
        for position, name in enumerate(body.reads):
            kinds[index, position] = _CLASS[name]
            shifts[index, position] = _SHIFT.get(name, 0)
    return kinds, shifts


def check_kinds(
    columns: Columns, program: RankProgram, events: Events, model: Model | None, findings: Findings
) -> None:
    """Operands are of the kinds that their instructions want; with a model, also of its shapes.

    Saved and owed tensors of different stages have different sizes, so each such buffer serves one.
    """
    code = program.stream.table[events.row, CODE]
    runs = (code == Code.RUN).nonzero()[0]
    body = program.stream.table[events.row[runs], BODY].astype(np.int64)
    width = 2 * (1 + max((max(len(b.reads), len(b.writes)) for b in program.bodies), default=0))
    where = (body * width + 2 * events.position[runs] + events.fills[runs]) * len(program.buffers)
    keys, first = np.unique(where + events.buffer[runs], return_index=True)
    owners: dict[str, tuple[int, bool]] = {}
    found: list[tuple[int, int]] = list(zip(keys.tolist(), runs[first].tolist(), strict=True))
    for key, event in found:
        rest, buffer_index = divmod(key, len(program.buffers))
        body_index, place = divmod(rest, width)
        its: Body = program.bodies[body_index]
        buffer: Buffer = program.buffers[buffer_index]
        fills = bool(place % 2)
        name: str = (its.writes if fills else its.reads)[place // 2]
        at = (program.rank, int(events.row[event]))
        allowed = (name,) if fills else _READ_FROM.get(name, (name,))
        does = "writes" if fills else "reads"
        said = f"`{its.name}` {does} `{name}` in the buffer {buffer.name}"
        if buffer.kind not in allowed:
            findings.add("E505", f"rank {program.rank}: {said}, whose kind is {buffer.kind}", at)
        elif name in ("saved", "owed"):
            is_new = buffer.name not in owners
            other = owners.setdefault(buffer.name, (its.stage, its.tail))
            if other != (its.stage, its.tail):
                served = f"stage {other[0]}" + " of the smaller last microbatch" * other[1]
                findings.add("E505", f"rank {program.rank}: {said}, which serves {served}", at)
            elif is_new and model is not None:
                _check_kept(program, its.stage, buffer, model.of(its.tail), findings)
        elif model is not None:
            _check_shape(program, its, name, buffer, model.of(its.tail), at, findings)
    _check_others(program, events, findings)


def _check_others(program: RankProgram, events: Events, findings: Findings) -> None:
    """The kinds of buffers that loads, messages and the report use."""
    names = get_args(BufferKind)
    kinds = np.array([names.index(buffer.kind) for buffer in program.buffers])[events.buffer]
    table = program.stream.table[events.row]
    forward = table[:, OP] == Op.F
    for code, wanted, mask in (
        (Code.LOAD, ("tokens", "labels"), None),
        (Code.SEND, ("y",), forward),
        (Code.SEND, ("dx",), ~forward),
        (Code.RECV, ("x",), forward),
        (Code.RECV, ("dy",), ~forward),
        (Code.REPORT, ("loss",), None),
    ):
        bad = (table[:, CODE] == code) & ~np.isin(kinds, [names.index(name) for name in wanted])
        bad = bad if mask is None else bad & mask
        message = f"rank {program.rank} needs a buffer of kind {' or '.join(wanted)} here"
        for row in events.row[bad].tolist():
            findings.add("E505", message, (program.rank, row))


def _check_kept(
    program: RankProgram, stage: int, buffer: Buffer, model: Model, findings: Findings
) -> None:
    """A slot of saved or owed tensors has the bytes that the stage's graphs keep."""
    units = tuple(model.unit(name) for name in dict(program.stages)[stage])
    size = (kept_by_F if buffer.kind == "saved" else kept_by_I)(model, units)
    if buffer.bytes != size:
        where = f"rank {program.rank}: buffer {buffer.name}"
        said = f"is said to hold {buffer.bytes} bytes, but stage {stage} keeps {size}"
        findings.add("E505", f"{where} {said}")


def _check_shape(
    program: RankProgram,
    body: Body,
    name: str,
    buffer: Buffer,
    model: Model,
    at: tuple[int, int],
    findings: Findings,
) -> None:
    """A single tensor's buffer has the shape and dtype of the graph's input or output."""
    units = dict(program.stages)[body.stage]
    value = _value_of(model, units, name)
    if value is None or (buffer.shape, buffer.dtype) == (value.shape, value.dtype):
        return
    wanted = f"{value.dtype}{list(value.shape)}"
    findings.add(
        "E508",
        f"rank {program.rank}: the buffer {buffer.name} is {buffer.dtype}{list(buffer.shape)}, and "
        f"`{name}` of `{body.name}` is {wanted}",
        at,
    )


def _value_of(model: Model, units: tuple[str, ...], name: str) -> Value | None:
    """The graph value that a name of a stage's interface stands for; None for saved and owed."""
    first, last = (model.graphs[f"{model.unit(unit).graphs}.F"] for unit in (units[0], units[-1]))
    roles: dict[str, tuple[tuple[Value, ...], Role]] = {
        "x": (first.inputs, "x"),
        "dx": (first.inputs, "x"),
        "tokens": (first.inputs, "tokens"),
        "labels": (last.inputs, "labels"),
        "y": (last.outputs, "y"),
        "dy": (last.outputs, "y"),
        "loss": (last.outputs, "loss"),
    }
    if name not in roles:
        return None
    values, role = roles[name]
    return next((value for value in values if value.role == role), None)
