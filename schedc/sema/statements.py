"""Statements of an ``order`` body compiled to closures that issue operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from schedc.diagnostics import Span
from schedc.ir.order import Op
from schedc.sema.expressions import (
    Evaluate,
    Store,
    compile_binding,
    compile_expression,
    compile_pattern,
)
from schedc.sema.issue import MOST_OPERATIONS, Issue
from schedc.sema.scope import Scope
from schedc.sema.values import Frame, elements, fault, spend, truth, whole
from schedc.syntax import ast

Run = Callable[[Frame, Issue], None]

LATER = {
    "solve": "`solve` (an order found by a solver)",
    "copies": "`copies` (several copies of the stages)",
    "copy": "`of copy` (several copies of the stages)",
    "split": "`split sequence` (chunks of the sequence)",
    "cluster": "`cluster` (a description of a machine)",
}
"""What later versions will understand, by its first word."""


def report_later(node: ast.Reserved, scope: Scope) -> None:
    span = node.span
    length = len("place" if node.word == "copy" else node.word)
    word = Span(span.source, span.line, span.column, span.line, span.column + length)
    scope.layout.report("E110", f"{LATER[node.word]} is not supported yet", word)


def compile_block(statements: tuple[ast.Statement, ...], scope: Scope, counting: bool) -> Run:
    """A closure that runs ``statements`` in a scope of their own.

    ``counting`` says whether the order uses counters, so that operations must be recorded.
    """
    inner = scope.inner()
    steps = [_statement(statement, inner, counting) for statement in statements]
    match steps:
        case []:
            return lambda frame, issue: None
        case [only]:
            return only
        case [first, second]:

            def run_both(frame: Frame, issue: Issue) -> None:
                first(frame, issue)
                second(frame, issue)

            return run_both
        case _:

            def run_all(frame: Frame, issue: Issue) -> None:
                for step in steps:
                    step(frame, issue)

            return run_all


def uses_counters(statements: tuple[ast.Statement, ...]) -> bool:
    """Whether a counter stands anywhere in ``statements``."""
    for statement in statements:
        match statement:
            case ast.Counter():
                return True
            case ast.Overlap() if uses_counters((statement.first, statement.second)):
                return True
            case ast.For() | ast.Repeat() if uses_counters(statement.body):
                return True
            case ast.If() if uses_counters(statement.then) or uses_counters(statement.otherwise):
                return True
            case _:
                pass
    return False


def _statement(node: ast.Statement, scope: Scope, counting: bool) -> Run:
    match node:
        case ast.Let():
            value = compile_expression(node.value, scope)
            store = compile_pattern(node.pattern, scope)
            return lambda frame, issue: store(frame, value(frame))
        case ast.For():
            inner = scope.inner()
            bindings = [compile_binding(binding, inner) for binding in node.bindings]
            run = compile_block(node.body, inner, counting)
            for source, store, span in reversed(bindings):
                run = _loop(source, store, span, run)
            return run
        case ast.If():
            return _if(node, scope, counting)
        case ast.Repeat():
            return _repeat(node, scope, counting)
        case ast.Operation():
            return _operation(node, scope, counting)
        case ast.Counter():
            return _counter(node, scope)
        case ast.Overlap():
            return _overlap(node, scope, counting)
        case ast.Reserved():
            report_later(node, scope)
            return lambda frame, issue: None
        case ast.Slot() | ast.Holes():
            raise AssertionError("the grammar has no slots outside a pattern")
        case _:
            assert_never(node)


def _loop(source: Evaluate, store: Store, span: Span, body: Run) -> Run:
    def run(frame: Frame, issue: Issue) -> None:
        items = elements(source(frame), "what `in` goes through", span)
        spend(frame, len(items), span)
        for item in items:
            store(frame, item)
            body(frame, issue)
            if len(issue.rows) > issue.room:
                raise _too_many(span)

    return run


def _repeat(node: ast.Repeat, scope: Scope, counting: bool) -> Run:
    count, span = compile_expression(node.count, scope), node.count.span
    body = compile_block(node.body, scope, counting)

    def run(frame: Frame, issue: Issue) -> None:
        times = whole(count(frame), "the count of `repeat`", span)
        if times < 0:
            raise fault("E204", f"`repeat` {times} times; a count is 0 or more", span)
        spend(frame, times, span)
        for _ in range(times):
            body(frame, issue)
            if len(issue.rows) > issue.room:
                raise _too_many(span)

    return run


def _too_many(span: Span) -> Exception:
    return fault(
        "E209",
        f"the schedule has more than {MOST_OPERATIONS} operations, the most allowed",
        span,
    )


def _if(node: ast.If, scope: Scope, counting: bool) -> Run:
    condition, span = compile_expression(node.condition, scope), node.condition.span
    then = compile_block(node.then, scope, counting)
    otherwise = compile_block(node.otherwise, scope, counting)

    def run(frame: Frame, issue: Issue) -> None:
        if truth(condition(frame), "the condition", span):
            then(frame, issue)
        else:
            otherwise(frame, issue)

    return run


def _operation(node: ast.Operation, scope: Scope, counting: bool) -> Run:
    layout, span = scope.layout, node.span
    operands = [compile_expression(operand.value, scope) for operand in node.operands]
    if node.letter == "R":
        layout.report("E110", "`R` (recompute) is not supported yet", span)
    for operand in node.operands:
        if operand.name is not None:
            layout.report("E110", f"`{operand.name} = …` is not supported yet", operand.span)
            return lambda frame, issue: None
    if len(operands) != 2:
        help = "chunks of the sequence are not supported yet" if len(operands) == 3 else None
        layout.report(
            "E203",
            f"`{node.letter}` takes a stage and a microbatch, {len(operands)} given",
            span,
            help,
        )
        return lambda frame, issue: None
    stage_of, microbatch_of = operands
    op, at = Op[node.letter], _span_index(span, scope)
    code = int(op)

    def run(frame: Frame, issue: Issue) -> None:
        stage, microbatch = stage_of(frame), microbatch_of(frame)
        if (
            type(stage) is not int
            or type(microbatch) is not int
            or stage not in issue.held
            or not 0 <= microbatch < issue.microbatches
        ):
            raise issue.check(op, stage, microbatch, span)
        issue.rows.extend((code, stage, microbatch, at))
        if counting:
            issue.record(op, stage, microbatch)

    return run


def _overlap(node: ast.Overlap, scope: Scope, counting: bool) -> Run:
    first, second = (_statement(half, scope, counting) for half in (node.first, node.second))

    def run(frame: Frame, issue: Issue) -> None:
        issue.pairs.append(len(issue.rows) // 4)
        first(frame, issue)
        second(frame, issue)

    return run


def _counter(node: ast.Counter, scope: Scope) -> Run:
    stage_of = compile_expression(node.stage, scope) if node.stage else None
    span = node.span
    if node.letter == "R":
        scope.layout.report("E203", "there is no counter `R*`", span, "write `R(s, m)`")
        return lambda frame, issue: None
    op, at = Op[node.letter], _span_index(span, scope)
    code = int(op)

    def run(frame: Frame, issue: Issue) -> None:
        stage, microbatch = issue.next(op, stage_of(frame) if stage_of else None, span)
        issue.rows.extend((code, stage, microbatch, at))
        issue.record(op, stage, microbatch)

    return run


def _span_index(span: Span, scope: Scope) -> int:
    return scope.layout.span_indices.setdefault(span, len(scope.layout.span_indices))
