"""Claims: the ``check`` lines of a schedule, evaluated exactly once figures are known."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from schedc.diagnostics import Diagnostic, DiagnosticError, Span
from schedc.ir.cost import StageCosts
from schedc.ir.timeline import Figures
from schedc.sema.expressions import Evaluate, NotApplicable, compile_expression
from schedc.sema.scope import Scope
from schedc.sema.values import Frame, Value, exact, show, truth
from schedc.syntax import ast
from schedc.syntax.text import text_of

if TYPE_CHECKING:
    from schedc.sema.schedule import Instance


@dataclass(frozen=True, slots=True)
class Side:
    """One operand of a claim: its text, and whether that already is its value."""

    text: str
    value: Evaluate
    literal: bool


@dataclass(frozen=True, slots=True)
class Claim:
    """A compiled ``check`` line. ``rank_slot`` is set where the claim speaks of every rank."""

    text: str
    span: Span
    condition: Evaluate
    condition_span: Span
    when: Evaluate | None
    when_text: str
    sides: tuple[Side, ...]
    rank_slot: int | None


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """Whether a claim holds; None where it does not apply, with the reason.

    ``found`` gives the values of both sides, on the first rank that fails if one does.
    """

    text: str
    holds: bool | None
    reason: str | None
    found: str
    span: Span


def compile_claim(node: ast.Check, scope: Scope) -> Claim:
    """A claim over the variables of ``scope``, figures and, as ``r``, every rank."""
    inner = scope.for_checks()
    layout = scope.layout
    rank = inner.rank = layout.slot()
    condition = compile_expression(node.condition, inner)
    when = compile_expression(node.when, inner) if node.when is not None else None
    text = text_of(node.condition.span)
    when_text = text_of(node.when.span) if node.when is not None else ""
    if when_text:
        text += f" when {when_text}"
    return Claim(
        text=text,
        span=node.span,
        condition=condition,
        condition_span=node.condition.span,
        when=when,
        when_text=when_text,
        sides=_sides(node.condition, inner),
        rank_slot=rank if inner.rank_used else None,
    )


def _sides(node: ast.Expression, scope: Scope) -> tuple[Side, ...]:
    """The operands of the comparisons of a claim, each once."""
    match node:
        case ast.Compare():
            return tuple(
                Side(text_of(part.span), compile_expression(part, scope), _is_literal(part))
                for part in node.operands
            )
        case ast.Logic():
            found = (*_sides(node.left, scope), *_sides(node.right, scope))
            return tuple({side.text: side for side in found}.values())
        case ast.Unary() if node.operator == "not":
            return _sides(node.operand, scope)
        case _:
            return ()


def _is_literal(node: ast.Expression) -> bool:
    return isinstance(node, ast.Int | ast.Decimal)


# ---- evaluation ---------------------------------------------------------------------------------


def _figure_values(
    figures: Figures, costs: StageCosts, ranks: int
) -> dict[str, Callable[[], Value]]:
    """How each figure that a claim may name is computed, by the name of its slot."""
    return {
        "makespan": lambda: exact(figures.makespan),
        "longest_stage": lambda: exact(figures.longest_stage),
        "lower_bound": lambda: exact(figures.lower_bound),
        "bubble": lambda: exact(figures.bubble),
        "bubble_rate": lambda: exact(figures.bubble_rate),
        "bubble_rate_longest_stage": lambda: exact(figures.bubble_rate_longest_stage),
        "messages": lambda: figures.messages,
        "uniform": lambda: costs.uniform,
        "peak_activations(r)": lambda: [exact(peak) for peak in figures.peak_activations],
        "busy(r)": lambda: [exact(busy) for busy in figures.busy],
        "bubble(r)": lambda: [exact(figures.bubble_of(rank)) for rank in range(ranks)],
        "T.F": lambda: [exact(cost) for cost in costs.F],
        "T.I": lambda: [exact(cost) for cost in costs.I],
        "T.W": lambda: [exact(cost) for cost in costs.W],
        "T.B": lambda: [exact(i + w) for i, w in zip(costs.I, costs.W, strict=True)],
    }


def evaluate_claims(
    instance: Instance, figures: Figures, costs: StageCosts
) -> tuple[ClaimResult, ...]:
    """Every claim of ``instance`` for these figures and costs.

    Raises :class:`DiagnosticError` where a claim cannot be evaluated (say, divides by zero).
    """
    frame: Frame = list(instance.frame)
    known = _figure_values(figures, costs, instance.order.ranks)
    for name, slot in instance.figures.items():
        frame[slot] = known[name]()
    results: list[ClaimResult] = []
    mistakes: list[Diagnostic] = []
    for claim in instance.claims:
        try:
            results.append(_evaluate(claim, frame, instance.order.ranks))
        except DiagnosticError as error:
            mistakes += error.diagnostics
    if mistakes:
        raise DiagnosticError(mistakes)
    return tuple(results)


def _evaluate(claim: Claim, frame: Frame, ranks: int) -> ClaimResult:
    applies = False
    values: list[list[Value]] = []
    for rank in range(ranks) if claim.rank_slot is not None else (0,):
        if claim.rank_slot is not None:
            frame[claim.rank_slot] = rank
        try:
            if claim.when is not None and not truth(claim.when(frame), "`when`", claim.span):
                continue
            applies = True
            holds = truth(claim.condition(frame), "a claim", claim.condition_span)
            values.append(_side_values(claim, frame))
        except NotApplicable as reason:
            return ClaimResult(claim.text, None, str(reason), "", claim.span)
        if not holds:
            found = _found(claim, [values[-1]])
            if claim.rank_slot is not None:
                found = f"on rank {rank}: {found}"
            return ClaimResult(claim.text, False, None, found, claim.span)
    if not applies:
        reason = f"not the case here: {claim.when_text}"
        return ClaimResult(claim.text, None, reason, "", claim.span)
    return ClaimResult(claim.text, True, None, _found(claim, values), claim.span)


def _side_values(claim: Claim, frame: Frame) -> list[Value]:
    """The values of the sides; a side that short-circuiting skipped may have none."""
    found: list[Value] = []
    for side in claim.sides:
        try:
            found.append(side.value(frame))
        except (DiagnosticError, NotApplicable):
            found.append("not computed")
    return found


def _found(claim: Claim, values: list[list[Value]]) -> str:
    """``bubble is 9, (P - 1) * T.F is 6``; for several ranks the values one after another."""
    if not claim.sides:
        return "the claim is not a comparison"
    parts: list[str] = []
    for index, side in enumerate(claim.sides):
        if side.literal:
            continue
        column = [show(row[index]) for row in values]
        shown = column[:1] if len(set(column)) == 1 else column[:16]
        more = " …" if len(shown) > 1 and len(column) > 16 else ""
        parts.append(f"{side.text} is {' '.join(shown)}{more}")
    return ", ".join(parts)


def claims_to_diagnostics(results: Iterable[ClaimResult]) -> tuple[Diagnostic, ...]:
    """An error for each claim that is false, with the values found."""
    return tuple(
        Diagnostic(
            "E701", f"the claim does not hold: {result.text}", result.span, notes=(result.found,)
        )
        for result in results
        if result.holds is False
    )
