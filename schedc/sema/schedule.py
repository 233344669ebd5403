"""A compiled schedule instantiated for one P, M and choice of parameters: its order.

Computes lets, placement and every rank's operations; a mistake that several ranks share comes out
once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, TypeAlias

from schedc.diagnostics import Diagnostic, DiagnosticError, Source, Span
from schedc.ir.cost import Costs, StageCosts
from schedc.ir.order import Order
from schedc.sema import scope as names
from schedc.sema.body import Placed, with_note
from schedc.sema.claims import Claim
from schedc.sema.compile import CompiledSchedule
from schedc.sema.expressions import compile_expression
from schedc.sema.issue import refuse_large
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
    compiled: CompiledSchedule
    placed: Placed

    @property
    def by_costs(self) -> bool:
        """Whether the order depends on costs: that of a ``policy`` or ``pattern`` does."""
        return self.compiled.body.by_costs

    def for_costs(self, costs: StageCosts) -> Instance:
        """The schedule with the order that a ``policy`` or ``pattern`` has under ``costs``."""
        if not self.by_costs:
            return self
        placed = replace(self.placed, costs=costs)
        return replace(self, order=_order(self.compiled, self.frame, placed), placed=placed)


def instantiate(
    library: Library,
    name: str,
    P: int,
    M: int,
    arguments: Mapping[str, object],
    costs: Costs | None = None,
) -> Instance:
    """The schedule ``name`` for ``P`` ranks and ``M`` microbatches.

    ``arguments`` maps parameters to values, or to texts that are read as expressions (what
    ``--set V=3`` gives). ``costs`` (those of :class:`Costs` by default) are what a ``policy`` or
    ``pattern`` makes its order for. Raises :class:`DiagnosticError`.
    """
    values = read_arguments(library.schedule(name), arguments)
    return instantiate_with(library, name, P, M, values, costs)


def instantiate_with(
    library: Library, name: str, P: int, M: int, values: Arguments, costs: Costs | None = None
) -> Instance:
    """As :func:`instantiate`, the values of parameters being known already."""
    compiled = library.compiled(name)
    for letter, value, most in (("P", P, MOST_RANKS), ("M", M, MOST_MICROBATCHES)):
        _require_size(letter, value, most)
    frame: Frame = [0] * compiled.layout.size
    frame[names.P], frame[names.M], frame[names.S] = P, M, P
    frame[names.TRUE], frame[names.FALSE] = True, False
    try:
        return _instantiate(compiled, frame, values, costs or Costs())
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


def _instantiate(
    compiled: CompiledSchedule, frame: Frame, values: Arguments, costs: Costs
) -> Instance:
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
        raise DiagnosticError(with_note(d, at) for d in error.diagnostics) from None
    placed = Placed(P, M, rank_of, costs.of_stages(P, len(rank_of)), at)
    title = compiled.source.name
    if parameters:
        title += f"({', '.join(f'{name}={show(value)}' for name, value in parameters.items())})"
    return Instance(
        name=compiled.source.name,
        parameters=parameters,
        order=_order(compiled, frame, placed),
        claims=compiled.claims,
        notes=notes,
        title=title,
        frame=tuple(frame),
        figures=compiled.layout.figures,
        compiled=compiled,
        placed=placed,
    )


def _order(compiled: CompiledSchedule, frame: Sequence[Value], placed: Placed) -> Order:
    arranged = compiled.body.arrange(list(frame), placed)
    return Order(
        name=compiled.source.name,
        ranks=placed.ranks,
        microbatches=placed.microbatches,
        rank_of=placed.rank_of,
        tables=arranged.tables,
        pairs=arranged.pairs,
        spans=tuple(compiled.layout.span_indices),
    )


def _int(value: Value) -> int:
    assert isinstance(value, int)
    return value


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
