"""A compiled schedule instantiated for one P, M and choice of parameters: its order.

Computes lets, placement and every rank's operations; a mistake that several ranks share comes out
once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from schedc.diagnostics import Diagnostic, DiagnosticError, Source, Span
from schedc.ir.order import Order, Table
from schedc.sema import scope as names
from schedc.sema.claims import Claim
from schedc.sema.compile import CompiledSchedule
from schedc.sema.expressions import compile_expression
from schedc.sema.issue import MOST_OPERATIONS, Issue, refuse_large
from schedc.sema.scope import Layout, Scope
from schedc.sema.values import Frame, Value, exact, fault, kind, show
from schedc.syntax import ast
from schedc.syntax.hints import did_you_mean
from schedc.syntax.parse import parse_setting

if TYPE_CHECKING:
    from schedc.sema.library import Library

MOST_RANKS = 65_536
MOST_MICROBATCHES = 4_000_000

Arguments: TypeAlias = dict[str, tuple[Value, Span | None]]
"""Values for parameters, and where they were written."""


@dataclass(frozen=True, eq=False)
class Instance:
    """A schedule for one P, M and choice of parameters.

    ``title`` is what a diagram calls it: ``interleaved(V=2)``. ``claims`` are its ``check`` lines,
    to be evaluated with :func:`schedc.sema.claims.evaluate_claims` once figures are known.
    """

    name: str
    parameters: dict[str, Value]
    order: Order
    claims: tuple[Claim, ...]
    notes: tuple[str, ...]
    title: str
    frame: tuple[Value, ...]
    figures: dict[str, int]


def instantiate(
    library: Library, name: str, P: int, M: int, arguments: Mapping[str, object]
) -> Instance:
    """The schedule ``name`` for ``P`` ranks and ``M`` microbatches.

    ``arguments`` maps parameters to values, or to texts that are read as expressions (what
    ``--set V=3`` gives). Raises :class:`DiagnosticError`.
    """
    values = read_arguments(library.schedule(name), arguments)
    return instantiate_with(library, name, P, M, values)


def instantiate_with(library: Library, name: str, P: int, M: int, values: Arguments) -> Instance:
    """As :func:`instantiate`, the values of parameters being known already."""
    compiled = library.compiled(name)
    for letter, value, most in (("P", P, MOST_RANKS), ("M", M, MOST_MICROBATCHES)):
        _require_size(letter, value, most)
    frame: Frame = [0] * compiled.layout.size
    frame[names.P], frame[names.M], frame[names.S] = P, M, P
    frame[names.TRUE], frame[names.FALSE] = True, False
    try:
        return _instantiate(compiled, frame, values)
    except RecursionError:
        raise fault(
            "E109", f"schedule `{name}` is nested too deeply", compiled.source.name_span
        ) from None


def _require_size(letter: str, value: object, most: int) -> None:
    if type(value) is not int or not 1 <= value <= most:
        shown = show(value) if isinstance(value, int | str | Fraction) else str(value)
        raise DiagnosticError(
            Diagnostic(
                "E217",
                f"{letter} = {shown}; it must be a whole number from 1 to {most}",
            )
        )


def read_arguments(schedule: ast.Schedule, arguments: Mapping[str, object]) -> Arguments:
    """Values for parameters; texts are read as expressions. Unknown parameters are errors."""
    known = [parameter.name for parameter in schedule.parameters]
    found: Arguments = {}
    mistakes: list[Diagnostic] = []
    for name, value in arguments.items():
        source = Source("--set", f"{name}={value}") if isinstance(value, str) else None
        span = Span(source, 1, 1, 1, len(name) + 1) if source is not None else None
        if name not in known:
            mistakes.append(unknown_parameter(schedule, name, span))
            continue
        try:
            found[name] = _argument(name, value, source, span)
        except DiagnosticError as error:
            mistakes += error.diagnostics
    if mistakes:
        raise DiagnosticError(mistakes)
    return found


def unknown_parameter(schedule: ast.Schedule, name: str, span: Span | None) -> Diagnostic:
    known = [parameter.name for parameter in schedule.parameters]
    listed = ", ".join(f"`{parameter}`" for parameter in known)
    return Diagnostic(
        "E216",
        f"schedule `{schedule.name}` has no parameter `{name}`",
        span,
        notes=(f"its parameters are {listed}" if known else "it has no parameters",),
        help=did_you_mean(name, known),
    )


def _argument(
    name: str, value: object, source: Source | None, span: Span | None
) -> tuple[Value, Span | None]:
    if isinstance(value, str):
        assert source is not None
        return read_setting(source, len(name) + 1), span
    if isinstance(value, int | Fraction):
        return exact(value), None
    if isinstance(value, range | tuple | list):
        return value, None  # pyright: ignore[reportUnknownVariableType]
    raise DiagnosticError(Diagnostic("E204", f"parameter `{name}` cannot be {value!r}"))


def read_setting(source: Source, skip: int) -> Value:
    """The value of a source that is an expression without names, behind ``skip`` characters."""
    try:
        return evaluate_node(parse_setting(source, skip))
    except RecursionError:
        span = Span(source, 1, 1, 1, 2)
        raise fault("E109", "the expression is nested too deeply", span) from None


def evaluate_node(node: ast.Expression) -> Value:
    """The value of an expression that names no variables."""
    layout = Layout(stages_known=False)
    scope = Scope(layout)
    for name in ("P", "M", "S"):
        del scope.names[name]
    compute = compile_expression(node, scope)
    layout.raise_mistakes()
    frame: Frame = [0] * layout.size
    frame[names.TRUE], frame[names.FALSE] = True, False
    return compute(frame)


def _instantiate(compiled: CompiledSchedule, frame: Frame, values: Arguments) -> Instance:
    P, M = _int(frame[names.P]), _int(frame[names.M])
    at = f"P = {P}, M = {M}"
    parameters: dict[str, Value] = {}
    try:
        for parameter, slot, default in compiled.parameters:
            value = values[parameter.name][0] if parameter.name in values else default(frame)
            parameters[parameter.name] = frame[slot] = value
        if parameters:
            at += "".join(f", {name} = {show(value)}" for name, value in parameters.items())
        refuse_large(1, M, compiled.source.name_span)
        for step in compiled.prologue:
            step(frame)
        notes = tuple(note(frame) for note in compiled.notes)
        refuse_large(_int(frame[names.S]), M, compiled.source.name_span)
        rank_of = _placement(compiled, frame)
    except DiagnosticError as error:
        raise DiagnosticError(_with_note(d, at) for d in error.diagnostics) from None
    tables = _all_ranks(compiled, frame, rank_of, at)
    order = Order(
        name=compiled.source.name,
        ranks=P,
        microbatches=M,
        rank_of=rank_of,
        tables=tables,
        spans=tuple(compiled.layout.span_indices),
    )
    title = compiled.source.name
    if parameters:
        title += f"({', '.join(f'{name}={show(value)}' for name, value in parameters.items())})"
    return Instance(
        name=compiled.source.name,
        parameters=parameters,
        order=order,
        claims=compiled.claims,
        notes=notes,
        title=title,
        frame=tuple(frame),
        figures=compiled.layout.figures,
    )


def _int(value: Value) -> int:
    assert isinstance(value, int)
    return value


def _with_note(diagnostic: Diagnostic, where: str) -> Diagnostic:
    return replace(diagnostic, notes=(*diagnostic.notes, f"at {where}"))


def _placement(compiled: CompiledSchedule, frame: Frame) -> tuple[int, ...]:
    ranks, span = _int(frame[names.P]), compiled.place_span
    found: list[int] = []
    for stage in range(_int(frame[names.S])):
        frame[compiled.stage_slot] = stage
        rank = compiled.rank_of(frame)
        if type(rank) is not int or not 0 <= rank < ranks:
            shown = show(rank) if type(rank) is int else f"{show(rank)} ({kind(rank)})"
            raise fault(
                "E305",
                f"stage {stage} is placed on rank {shown}, but the ranks are 0..{ranks}",
                span,
            )
        found.append(rank)
    return tuple(found)


def _all_ranks(
    compiled: CompiledSchedule, frame: Frame, rank_of: tuple[int, ...], at: str
) -> tuple[Table, ...]:
    """Every rank's table. A mistake made on several ranks is reported once, for the first."""
    ranks, microbatches = _int(frame[names.P]), _int(frame[names.M])
    held: list[list[int]] = [[] for _ in range(ranks)]
    for stage, rank in enumerate(rank_of):
        held[rank].append(stage)
    tables: list[Table] = []
    mistakes: dict[tuple[str, Span | None], list[tuple[int, Diagnostic]]] = {}
    room = 4 * MOST_OPERATIONS
    for rank in range(ranks):
        issue = Issue(rank, len(rank_of), microbatches, tuple(held[rank]), room)
        frame[compiled.rank_slot] = rank
        try:
            compiled.order(frame, issue)
        except DiagnosticError as error:
            for mistake in error.diagnostics:
                mistakes.setdefault((mistake.code, mistake.span), []).append((rank, mistake))
            if any(mistake.code == "E209" for mistake in error.diagnostics):
                break
            continue
        room -= len(issue.rows)
        tables.append(np.frombuffer(issue.rows, dtype=np.int32).reshape(-1, 4))
    if mistakes:
        raise DiagnosticError(_shared(found, at) for found in mistakes.values())
    return tuple(tables)


def _shared(found: list[tuple[int, Diagnostic]], at: str) -> Diagnostic:
    (rank, mistake), *others = found
    mistake = _with_note(mistake, f"rank {rank}, {at}")
    if not others:
        return mistake
    count = len(others)
    also = f"likewise on {count} other rank{'s' if count > 1 else ''}: {_ranks(others)}"
    return replace(mistake, notes=(*mistake.notes, also))


def _ranks(found: list[tuple[int, Diagnostic]]) -> str:
    ranks = [rank for rank, _ in found]
    if len(ranks) > 2 and all(b == a + 1 for a, b in pairwise(ranks)):
        return f"{ranks[0]} to {ranks[-1]}"
    return ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")
