"""``pattern every N on rank r { … }``: where one microbatch's operations stand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import assert_never

from schedc.diagnostics import Diagnostic, DiagnosticError, Label, Span
from schedc.sema.body import Arranged, Body, Mistake, Placed, raise_shared
from schedc.sema.expressions import (
    Evaluate,
    Store,
    compile_binding,
    compile_expression,
    compile_pattern,
)
from schedc.sema.scope import Scope
from schedc.sema.statements import report_later
from schedc.sema.values import Frame, elements, fault, show, spend, truth, whole
from schedc.solve.pattern import Pattern, Slot, draw_together
from schedc.solve.problem import BACKWARD, FORWARD, WEIGHT, make_problem
from schedc.syntax import ast

_KINDS = {"F": FORWARD, "B": BACKWARD, "I": BACKWARD, "W": WEIGHT}


@dataclass(slots=True)
class _Slots:
    """The slots of one rank while its body runs: by kind and stage, with where they stand."""

    rank: int
    held: tuple[int, ...]
    stages: int
    found: dict[tuple[int, int], tuple[int, Span]] = field(
        default_factory=dict[tuple[int, int], tuple[int, Span]]
    )


Run = Callable[[Frame, _Slots], None]


@dataclass(slots=True)
class _Letters:
    """Which operations a pattern names, and where first; where ``W(*) in holes`` stands."""

    first: dict[str, Span] = field(default_factory=dict[str, Span])
    holes: Span | None = None


def compile_pattern_body(node: ast.PatternBody, scope: Scope) -> Body:
    """The body of a ``pattern``; its order depends on costs."""
    period = compile_expression(node.period, scope)
    inner = scope.inner()
    rank_slot = inner.bind(node.variable, node.span)
    letters = _Letters()
    run = _block(node.body, inner, letters)
    split = _check_letters(letters, node, scope)
    indices = scope.layout.span_indices
    holes_at = -1
    if letters.holes is not None:
        holes_at = indices.setdefault(letters.holes, len(indices))
    for span in letters.first.values():
        indices.setdefault(span, len(indices))

    def arrange(frame: Frame, placed: Placed) -> Arranged:
        every = whole(period(frame), "the period", node.period.span)
        if every < 1:
            raise fault("E309", f"the period is {show(every)}; 1 or more", node.period.span)
        ranks: list[_Slots] = []
        mistakes: list[Mistake] = []
        for rank, held in enumerate(placed.stages_of):
            slots = _Slots(rank, held, len(placed.rank_of))
            frame[rank_slot] = rank
            try:
                run(frame, slots)
            except DiagnosticError as error:
                mistakes += [(rank, mistake) for mistake in error.diagnostics]
                continue
            in_holes = letters.holes is not None
            mistakes += [(rank, m) for m in _check_rank(slots, every, split, in_holes, node)]
            ranks.append(slots)
        raise_shared(mistakes, placed.at)
        raise_shared(_check_dependencies(ranks, len(placed.rank_of), split), placed.at)
        problem = make_problem(
            placed.ranks, placed.microbatches, placed.rank_of, placed.costs, split=split
        )
        pattern = Pattern(every, tuple(map(_as_slots, ranks)), letters.holes is not None)
        lists = draw_together(problem, pattern)
        spans = [holes_at] * (len(problem.kinds) * problem.stages)
        for slots in ranks:
            for (kind, stage), (_, span) in slots.found.items():
                spans[kind * problem.stages + stage] = indices[span]
        return Arranged(tuple(problem.table(line, spans) for line in lists))

    return Body(arrange, by_costs=True)


def _as_slots(slots: _Slots) -> tuple[Slot, ...]:
    return tuple(Slot(kind, stage, at) for (kind, stage), (at, _) in slots.found.items())


# ---- statements ---------------------------------------------------------------------------------


def _block(statements: tuple[ast.Statement, ...], scope: Scope, letters: _Letters) -> Run:
    inner = scope.inner()
    steps = [_statement(statement, inner, letters) for statement in statements]

    def run(frame: Frame, slots: _Slots) -> None:
        for step in steps:
            step(frame, slots)

    return run


def _statement(node: ast.Statement, scope: Scope, letters: _Letters) -> Run:
    match node:
        case ast.Let():
            value = compile_expression(node.value, scope)
            store = compile_pattern(node.pattern, scope)
            return lambda frame, slots: store(frame, value(frame))
        case ast.For():
            return _for(node, scope, letters)
        case ast.If():
            condition, span = compile_expression(node.condition, scope), node.condition.span
            then, otherwise = (_block(b, scope, letters) for b in (node.then, node.otherwise))

            def branch(frame: Frame, slots: _Slots) -> None:
                chosen = then if truth(condition(frame), "the condition", span) else otherwise
                chosen(frame, slots)

            return branch
        case ast.Slot():
            return _slot(node, scope, letters)
        case ast.Holes():
            if letters.holes is not None:
                scope.layout.report("E202", "`in holes` stands twice", node.span)
            letters.holes = node.span
            if node.letter != "W":
                scope.layout.report(
                    "E309", f"only W can be put in holes, not {node.letter}", node.span
                )
            return lambda frame, slots: None
        case ast.Reserved():
            report_later(node, scope)
            return lambda frame, slots: None
        case ast.Repeat() | ast.Operation() | ast.Counter() | ast.Overlap():
            raise AssertionError("the grammar has no such statement in a pattern")
        case _:
            assert_never(node)


def _for(node: ast.For, scope: Scope, letters: _Letters) -> Run:
    inner = scope.inner()
    bindings = [compile_binding(binding, inner) for binding in node.bindings]
    run = _block(node.body, inner, letters)
    for source, store, span in reversed(bindings):
        run = _loop(source, store, span, run)
    return run


def _loop(source: Evaluate, store: Store, span: Span, body: Run) -> Run:
    def run(frame: Frame, slots: _Slots) -> None:
        items = elements(source(frame), "what `in` goes through", span)
        spend(frame, len(items), span)
        for item in items:
            store(frame, item)
            body(frame, slots)

    return run


def _slot(node: ast.Slot, scope: Scope, letters: _Letters) -> Run:
    stage_of, offset_of = (compile_expression(x, scope) for x in (node.stage, node.offset))
    letter, span = node.letter, node.span
    if letter == "R":
        scope.layout.report("E110", "`R` (recompute) is not supported yet", span)
        return lambda frame, slots: None
    letters.first.setdefault(letter, span)
    scope.layout.span_indices.setdefault(span, len(scope.layout.span_indices))
    kind = _KINDS[letter]

    def run(frame: Frame, slots: _Slots) -> None:
        stage = whole(stage_of(frame), "a stage", node.stage.span)
        offset = whole(offset_of(frame), "where a slot stands", node.offset.span)
        if not 0 <= stage < slots.stages:
            raise fault(
                "E207",
                f"{letter}({show(stage)}) names stage {show(stage)}, but the stages are "
                f"0..{slots.stages}",
                span,
            )
        if stage not in slots.held:
            raise fault(
                "E303",
                f"{letter}({stage}) stands on rank {slots.rank}, which does not hold stage "
                f"{stage}: it holds {', '.join(map(str, slots.held)) or 'none'}",
                span,
            )
        earlier = slots.found.get((kind, stage))
        if earlier is not None:
            raise DiagnosticError(
                Diagnostic(
                    "E302",
                    f"{letter}({stage}) has two slots",
                    span,
                    (Label(earlier[1], "first here"),),
                )
            )
        slots.found[kind, stage] = offset, span

    return run


# ---- what is checked ----------------------------------------------------------------------------


def _check_letters(letters: _Letters, node: ast.PatternBody, scope: Scope) -> bool:
    """Whether backwards are split; reports a mixture."""
    split = bool(letters.first.keys() & {"I", "W"}) or letters.holes is not None
    both = letters.first.get("B")
    if split and both is not None:
        scope.layout.report(
            "E304", "a pattern has either B, or I and W, not both", both, "delete one of them"
        )
    return split


def _check_rank(
    slots: _Slots, every: int, split: bool, in_holes: bool, node: ast.PatternBody
) -> Iterator[Diagnostic]:
    """What is missing on a rank, or falls together."""
    names = _names(split)
    kinds = [FORWARD, BACKWARD, *([WEIGHT] if split and not in_holes else [])]
    missing = [(k, s) for s in slots.held for k in kinds if (k, s) not in slots.found]
    if missing:
        kind, stage = missing[0]
        help = "or write `W(*) in holes`" if kind == WEIGHT else None
        yield Diagnostic("E301", f"{names[kind]}({stage}) has no slot", _head(node), help=help)
        return
    taken: dict[int, tuple[int, int]] = {}
    for key, (at, span) in slots.found.items():
        other = taken.setdefault(at % every, key)
        if other != key:
            (kind, stage), (first, second) = key, other
            yield Diagnostic(
                "E309",
                f"{names[kind]}({stage}) at {at} and {names[first]}({second}) at "
                f"{slots.found[other][0]} fall together: they are the same modulo {every}",
                span,
                (Label(slots.found[other][1], "with this one"),),
            )
    weights = len(slots.held) if in_holes else 0
    if len(taken) + weights > every:
        yield Diagnostic(
            "E309",
            f"a period of {every} leaves {every - len(taken)} of its slots free, and "
            f"{weights} are needed for W",
            node.period.span,
            help=f"the period must be {len(taken) + weights} at least",
        )


def _check_dependencies(ranks: list[_Slots], stages: int, split: bool) -> Iterator[Mistake]:
    """Slots that stand before the result they need is there."""
    names = _names(split)
    found = {key: value for slots in ranks for key, value in slots.found.items()}
    for slots in ranks:
        for (kind, stage), (at, span) in slots.found.items():
            needed = _needed(kind, stage, stages)
            if needed is None or found[needed][0] < at:
                continue
            other, other_span = found[needed]
            label = (Label(other_span, "what it needs"),) if other_span != span else ()
            yield (
                slots.rank,
                Diagnostic(
                    "E309",
                    f"{names[kind]}({stage}) at {at} needs the result of "
                    f"{names[needed[0]]}({needed[1]}), which stands at {other}",
                    span,
                    label,
                ),
            )


def _needed(kind: int, stage: int, stages: int) -> tuple[int, int] | None:
    """The slot whose result a slot needs."""
    if kind == FORWARD:
        return (FORWARD, stage - 1) if stage > 0 else None
    if kind == WEIGHT:
        return BACKWARD, stage
    return (BACKWARD, stage + 1) if stage + 1 < stages else (FORWARD, stage)


def _names(split: bool) -> dict[int, str]:
    return {FORWARD: "F", BACKWARD: "I" if split else "B", WEIGHT: "W"}


def _head(node: ast.PatternBody) -> Span:
    span = node.span
    return Span(span.source, span.line, span.column, span.line, span.column + len("pattern"))
