"""``policy { … }``: what matters, from which an order is made by list scheduling."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import TypeVar

from schedc.diagnostics import Diagnostic, DiagnosticError, Label, Span
from schedc.sema.body import Arranged, Body, Mistake, Placed, raise_shared, with_note
from schedc.sema.expressions import Evaluate, compile_expression
from schedc.sema.scope import Scope
from schedc.sema.values import Frame, exact, fault, is_number, kind, show, whole
from schedc.solve.greedy import Listing, Preference, Tie, list_schedule
from schedc.solve.lookahead import look_ahead
from schedc.solve.problem import BACKWARD, FORWARD, WEIGHT, Problem, make_problem
from schedc.syntax import ast
from schedc.syntax.hints import did_you_mean

_TIES = {
    "stage": {"deepest": True, "shallowest": False},
    "microbatch": {"oldest": True, "newest": False},
}
_LISTED = 8
"""How many ranks, or microbatches of a stage, an error names."""

_Item = TypeVar("_Item", bound=ast.PolicyItem)


def compile_policy(node: ast.PolicyBody, scope: Scope) -> Body:
    """The body of a ``policy``; its order depends on costs."""
    _refuse_repeated(node, scope)
    split = _find(node, ast.SplitBackward) is not None
    ties = _ties(_find(node, ast.TieBreak), scope)
    kinds, span = _kinds(node, split, scope)
    at = scope.layout.span_indices.setdefault(span, len(scope.layout.span_indices))
    reserve, limit = _find(node, ast.Reserve), _find(node, ast.Limit)
    held_back, limits = _reserve(reserve, scope), _limits(limit, scope)
    lookahead = _find(node, ast.Lookahead) is not None

    def arrange(frame: Frame, placed: Placed) -> Arranged:
        preference = Preference(kinds, (ties, ties, ties), held_back(frame))
        problem = make_problem(
            placed.ranks,
            placed.microbatches,
            placed.rank_of,
            placed.costs,
            split=split,
            limits=limits(frame, placed),
        )
        if lookahead:
            lists = look_ahead(problem, preference)
        else:
            listing = list_schedule(problem, preference)
            lists = listing.lists if listing.complete else None
        if lists is None:
            where = limit.span if limit is not None else span
            wedge = _wedge(problem, preference, where)
            raise DiagnosticError(with_note(wedge, placed.at))
        spans = [at] * (len(problem.kinds) * problem.stages)
        return Arranged(tuple(problem.table(line, spans) for line in lists))

    return Body(arrange, by_costs=True)


def _find(node: ast.PolicyBody, what: type[_Item]) -> _Item | None:
    return next((item for item in node.items if isinstance(item, what)), None)


def _refuse_repeated(node: ast.PolicyBody, scope: Scope) -> None:
    first: dict[type[ast.PolicyItem], ast.PolicyItem] = {}
    for item in node.items:
        earlier = first.setdefault(type(item), item)
        if earlier is not item:
            scope.layout.diagnostics.append(
                Diagnostic(
                    "E202",
                    "a policy says this twice",
                    item.span,
                    (Label(earlier.span, "first here"),),
                )
            )


# ---- what a policy says -------------------------------------------------------------------------


def _kinds(node: ast.PolicyBody, split: bool, scope: Scope) -> tuple[tuple[int, ...], Span]:
    """The kinds of operations in order of preference, and where that is said."""
    known = {"F": FORWARD, "I": BACKWARD, "W": WEIGHT} if split else {"F": FORWARD, "B": BACKWARD}
    prefer = _find(node, ast.Prefer)
    if prefer is None:
        span = node.span
        head = Span(span.source, span.line, span.column, span.line, span.column + len("policy"))
        example = "`prefer I, F, W`" if split else "`prefer B, F`"
        scope.layout.report(
            "E222", "the policy does not say what goes first", head, f"add {example}"
        )
        return (), head
    if sorted(prefer.letters) != sorted(known):
        what = "I and W are the two halves of a backward" if split else "the backward is not split"
        help = f"the operations here are {', '.join(known)}"
        if not split and set(prefer.letters) & {"I", "W"}:
            help += "; write `split backward` to have I and W"
        scope.layout.report(
            "E222",
            f"`prefer` must name each of {', '.join(known)} once: {what}",
            prefer.span,
            help,
        )
        return (), prefer.span
    return tuple(known[letter] for letter in prefer.letters), prefer.span


def _ties(node: ast.TieBreak | None, scope: Scope) -> Tie:
    if node is None:
        return Tie()
    found: dict[str, bool] = {}
    for rule in node.rules:
        choices = _TIES.get(rule.what)
        if choices is None:
            help = did_you_mean(rule.what, _TIES) or "a tie is between stages or microbatches"
            scope.layout.report("E222", f"a tie knows no `{rule.what}`", rule.span, help)
        elif rule.which not in choices:
            help = did_you_mean(rule.which, choices) or f"write `{' or '.join(choices)}`"
            scope.layout.report(
                "E222", f"a tie knows no `{rule.which} {rule.what}`", rule.span, help
            )
        elif rule.what in found:
            scope.layout.report("E222", f"the tie decides by {rule.what} twice", rule.span)
        else:
            found[rule.what] = choices[rule.which]
    stage_first = next(iter(found), "stage") == "stage"
    return Tie(found.get("stage", True), found.get("microbatch", True), stage_first)


def _reserve(node: ast.Reserve | None, scope: Scope) -> Callable[[Frame], int]:
    """The microbatches that room is kept for."""
    if node is None:
        return lambda frame: 0
    count, span = compile_expression(node.count, scope), node.count.span

    def evaluate(frame: Frame) -> int:
        value = whole(count(frame), "what `reserve` keeps free", span)
        if value < 0:
            raise fault("E204", f"`reserve` {show(value)} microbatches; 0 or more", span)
        return value

    return evaluate


Limits = Callable[[Frame, Placed], list[Fraction] | None]


def _limits(node: ast.Limit | None, scope: Scope) -> Limits:
    """Every rank's limit; ``r`` in it is the rank, unless the schedule has a variable ``r``."""
    if node is None:
        return lambda frame, placed: None
    if isinstance(node.amount, ast.Quantity):
        scope.layout.report(
            "E110",
            "a limit in bytes is not supported yet",
            node.amount.span,
            "give it in activations: one is what a microbatch keeps for 1/P of the model",
        )
        return lambda frame, placed: None
    inner = scope.inner()
    slot = inner.bind("r", node.span) if scope.find("r") is None else None
    amount = compile_expression(node.amount, inner)

    def evaluate(frame: Frame, placed: Placed) -> list[Fraction]:
        found: list[Fraction] = []
        mistakes: list[Mistake] = []
        for rank in range(placed.ranks):
            if slot is not None:
                frame[slot] = rank
            try:
                found.append(_limit(node, amount, frame, placed, rank))
            except DiagnosticError as error:
                mistakes += [(rank, mistake) for mistake in error.diagnostics]
        raise_shared(mistakes, placed.at)
        return found

    return evaluate


def _limit(node: ast.Limit, amount: Evaluate, frame: Frame, placed: Placed, rank: int) -> Fraction:
    value = amount(frame)
    if not is_number(value):
        raise fault(
            "E204", f"the limit is {kind(value)}, {show(value)}; it must be a number", node.span
        )
    least = exact(sum(placed.costs.units[stage] for stage in placed.stages_of[rank]))
    if value < least:
        raise fault(
            "E402",
            f"no order keeps the limit of {show(value)}: one microbatch alone keeps "
            f"{show(least)} on rank {rank}",
            node.span,
            f"the limit must be {show(least)} at least",
        )
    return Fraction(value)


# ---- a wedge ------------------------------------------------------------------------------------


def _wedge(problem: Problem, preference: Preference, span: Span) -> Diagnostic:
    """The error for lists that are stuck: who holds what, and what does not fit."""
    listing = list_schedule(problem, preference)
    beside = " beside the reserve" if preference.reserve else ""
    notes = [
        _stuck(problem, listing, rank) + (beside if listing.blocked[rank] else "")
        for rank in range(problem.ranks)
        if problem.stages_of[rank] and (listing.blocked[rank] or rank == 0)
    ]
    if len(notes) > _LISTED:
        notes[_LISTED:] = [f"… and {len(notes) - _LISTED} more ranks"]
    several = any(len(stages) > 1 for stages in problem.stages_of)
    help = "raise the limit"
    if several and not preference.reserve:
        help = f"keep room for what comes back, `reserve 1 for last local stage`; or {help}"
    return Diagnostic(
        "E403",
        "the policy wedges: every rank waits, for memory or for one that does",
        span,
        notes=tuple(notes),
        help=help,
    )


def _stuck(problem: Problem, listing: Listing, rank: int) -> str:
    """``rank 1 keeps 2 of 2: stage 1: microbatches 0, 1; F(6, 0) does not fit``."""
    M, S, unit = problem.microbatches, problem.stages, problem.memory_unit
    kept = sum(problem.change[operation] for operation in listing.lists[rank])
    held: dict[int, set[int]] = {stage: set() for stage in problem.stages_of[rank]}
    for operation in listing.lists[rank]:
        task, m = divmod(operation, M)
        kind, stage = divmod(task, S)
        if kind == FORWARD:
            held[stage].add(m)
        elif kind == (WEIGHT if problem.split else BACKWARD):
            held[stage].discard(m)
    parts = [f"stage {stage}: {_microbatches(sorted(m))}" for stage, m in held.items() if m]
    assert problem.limits is not None, "only a limit can wedge"
    of = f"{show(exact(unit * kept))} of {show(exact(unit * problem.limits[rank]))}"
    text = f"rank {rank} keeps {of} activations ({'; '.join(parts) or 'none'})"
    if blocked := listing.blocked[rank]:
        stage, m = divmod(blocked[0], M)
        text += f"; F({stage}, {m}) is ready and does not fit"
    return text


def _microbatches(found: list[int]) -> str:
    shown = ", ".join(map(str, found[:_LISTED])) + (", …" if len(found) > _LISTED else "")
    return f"microbatch{'es' if len(found) > 1 else ''} {shown}"
