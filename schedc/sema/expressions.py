"""Expressions compiled to closures: names are resolved once, evaluation only runs.

``compile_expression`` reports what can be known without values (unknown names, wrong numbers of
arguments) to the layout and always returns a closure; the closures raise
:class:`DiagnosticError` for what only values show.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import assert_never

from schedc.diagnostics import Span
from schedc.sema import values
from schedc.sema.scope import (
    FUNCTIONS,
    RANK_FIGURES,
    STAGE_COSTS,
    Scope,
    not_available_yet,
)
from schedc.sema.values import (
    LONGEST_LIST,
    Frame,
    Value,
    elements,
    exact,
    fault,
    is_number,
    kind,
    show,
    spend,
    truth,
)
from schedc.syntax import ast
from schedc.syntax.hints import FOREIGN, did_you_mean

Evaluate = Callable[[Frame], Value]
Store = Callable[[Frame, Value], None]


class NotApplicable(Exception):
    """A claim that says nothing here; the message is the reason."""


def compile_expression(node: ast.Expression, scope: Scope) -> Evaluate:
    """A closure that computes ``node`` from a frame."""
    match node:
        case ast.Int() | ast.Decimal():
            return _constant(exact(node.value))
        case ast.Text():
            return _constant(node.value)
        case ast.Quantity():
            scope.layout.report(
                "E219", f"a quantity ({node.number.value} {node.unit}) has no place here", node.span
            )
            return _constant(0)
        case ast.Name():
            slot = scope.slot_of(node.name, node.span)
            return _constant(0) if slot is None else _variable(slot)
        case ast.Call():
            return _call(node, scope)
        case ast.Dotted():
            return _stage_cost(node, scope)
        case ast.Index():
            return _index(node, scope)
        case ast.Slice():
            return _slice(node, scope)
        case ast.Unary():
            return _unary(node, scope)
        case ast.Binary():
            return _binary(node, scope)
        case ast.Compare():
            return _compare(node, scope)
        case ast.Logic():
            return _logic(node, scope)
        case ast.Conditional():
            return _conditional(node, scope)
        case ast.RangeOf():
            return _range(node, scope)
        case ast.TupleOf() | ast.ListOf():
            return _collection(node, scope)
        case ast.Comprehension():
            return _comprehension(node, scope)
        case _:
            assert_never(node)


def _constant(value: Value) -> Evaluate:
    return lambda frame: value


def _variable(slot: int) -> Evaluate:
    return lambda frame: frame[slot]


# ---- operators ----------------------------------------------------------------------------------


def _unary(node: ast.Unary, scope: Scope) -> Evaluate:
    operand, span, symbol = compile_expression(node.operand, scope), node.span, node.operator
    if symbol == "not":
        return lambda frame: not truth(operand(frame), "the operand of `not`", span)
    return lambda frame: values.negative(operand(frame), symbol, span)


def _binary(node: ast.Binary, scope: Scope) -> Evaluate:
    left, right = compile_expression(node.left, scope), compile_expression(node.right, scope)
    symbol, span = node.operator, node.span
    arithmetic = values.arithmetic
    # Whole numbers take the short way; all else, and all errors, go through `arithmetic`.
    match symbol:
        case "+":

            def add(frame: Frame) -> Value:
                x, y = left(frame), right(frame)
                if type(x) is int and type(y) is int:
                    return x + y
                sum_or_list = arithmetic("+", x, y, span)
                if isinstance(sum_or_list, list):
                    spend(frame, len(sum_or_list), span)
                return sum_or_list

            return add
        case "-":

            def subtract(frame: Frame) -> Value:
                x, y = left(frame), right(frame)
                if type(x) is int and type(y) is int:
                    return x - y
                return arithmetic("-", x, y, span)

            return subtract
        case "*":
            small = 1 << 62

            def multiply(frame: Frame) -> Value:
                x, y = left(frame), right(frame)
                if type(x) is int and type(y) is int and -small < x < small > y > -small:
                    return x * y
                return arithmetic("*", x, y, span)

            return multiply
        case "//" | "%" | "/" | "**":
            return lambda frame: arithmetic(symbol, left(frame), right(frame), span)
        case _:
            assert_never(symbol)


def _compare(node: ast.Compare, scope: Scope) -> Evaluate:
    operands = [compile_expression(operand, scope) for operand in node.operands]
    span, compare = node.span, values.compare
    if len(operands) == 2:
        (left, right), symbol = operands, node.operators[0]
        return lambda frame: compare(symbol, left(frame), right(frame), span)
    pairs = list(zip(node.operators, operands[1:], strict=True))

    def chain(frame: Frame) -> Value:
        value = operands[0](frame)
        for symbol, operand in pairs:
            following = operand(frame)
            if not compare(symbol, value, following, span):
                return False
            value = following
        return True

    return chain


def _logic(node: ast.Logic, scope: Scope) -> Evaluate:
    left, right = compile_expression(node.left, scope), compile_expression(node.right, scope)
    what = f"an operand of `{node.operator}`"
    at_left, at_right = node.left.span, node.right.span
    if node.operator == "and":
        return lambda frame: (
            truth(left(frame), what, at_left) and truth(right(frame), what, at_right)
        )
    return lambda frame: truth(left(frame), what, at_left) or truth(right(frame), what, at_right)


def _conditional(node: ast.Conditional, scope: Scope) -> Evaluate:
    then, otherwise = (
        compile_expression(node.then, scope),
        compile_expression(node.otherwise, scope),
    )
    condition, span = compile_expression(node.condition, scope), node.condition.span

    def choose(frame: Frame) -> Value:
        if truth(condition(frame), "the condition", span):
            return then(frame)
        return otherwise(frame)

    return choose


# ---- ranges, lists, tuples ----------------------------------------------------------------------


def _range(node: ast.RangeOf, scope: Scope) -> Evaluate:
    lower, upper = compile_expression(node.lower, scope), compile_expression(node.upper, scope)
    stride = compile_expression(node.stride, scope) if node.stride else _constant(1)
    span = node.span
    return lambda frame: values.make_range(lower(frame), upper(frame), stride(frame), span)


def _collection(node: ast.TupleOf | ast.ListOf, scope: Scope) -> Evaluate:
    parts = [compile_expression(element, scope) for element in node.elements]
    if isinstance(node, ast.ListOf):
        return lambda frame: [part(frame) for part in parts]
    if len(parts) == 2:
        first, second = parts
        return lambda frame: (first(frame), second(frame))
    return lambda frame: tuple([part(frame) for part in parts])


def _index(node: ast.Index, scope: Scope) -> Evaluate:
    sequence, position = (
        compile_expression(node.sequence, scope),
        compile_expression(node.index, scope),
    )
    span, index = node.span, values.index

    def at(frame: Frame) -> Value:
        items, i = sequence(frame), position(frame)
        if type(items) is list and type(i) is int and 0 <= i < len(items):
            return items[i]
        return index(items, i, span)

    return at


def _slice(node: ast.Slice, scope: Scope) -> Evaluate:
    sequence, span = compile_expression(node.sequence, scope), node.span
    lower = compile_expression(node.lower, scope) if node.lower else None
    upper = compile_expression(node.upper, scope) if node.upper else None

    def cut(frame: Frame) -> Value:
        items = elements(sequence(frame), "what is sliced", span)
        first = values.whole(lower(frame), "the start of the slice", span) if lower else None
        last = values.whole(upper(frame), "the end of the slice", span) if upper else None
        found = items[first:last]
        if not isinstance(found, range):
            spend(frame, len(found), span)
        assert isinstance(found, range | list | tuple)
        return found

    return cut


def compile_pattern(pattern: ast.Pattern, scope: Scope) -> Store:
    """A closure that stores a value in the variables of ``pattern``."""
    if isinstance(pattern, ast.NamePattern):
        slot = scope.bind(pattern.name, pattern.span)

        def store(frame: Frame, value: Value) -> None:
            frame[slot] = value

        return store
    names = [name.name for name in pattern.elements if isinstance(name, ast.NamePattern)]
    for name in sorted({name for name in names if names.count(name) > 1}):
        scope.layout.report("E202", f"`{name}` stands twice in one pattern", pattern.span)
    stores = [compile_pattern(element, scope) for element in pattern.elements]
    count, span = len(stores), pattern.span

    def take_apart(frame: Frame, value: Value) -> None:
        parts = elements(value, "what is taken apart", span)
        if len(parts) != count:
            raise fault(
                "E220",
                f"the pattern has {count} names, the value {len(parts)} elements: {show(value)}",
                span,
            )
        for store, part in zip(stores, parts, strict=True):
            store(frame, part)

    return take_apart


def compile_binding(node: ast.Binding, scope: Scope) -> tuple[Evaluate, Store, Span]:
    """What is gone through, where each element is stored, and the place; binds its names."""
    source = compile_expression(node.values, scope)
    return source, compile_pattern(node.pattern, scope), node.values.span


def _comprehension(node: ast.Comprehension, scope: Scope) -> Evaluate:
    inner = scope.inner()
    bindings = [compile_binding(binding, inner) for binding in node.bindings]
    condition = compile_expression(node.condition, inner) if node.condition else None
    element, span = compile_expression(node.element, inner), node.span
    condition_span = node.condition.span if node.condition else span

    def collect(frame: Frame, depth: int, found: list[Value]) -> None:
        if depth == len(bindings):
            if condition is None or truth(condition(frame), "the condition", condition_span):
                found.append(element(frame))
            return
        source, store, at = bindings[depth]
        items = elements(source(frame), "what `in` goes through", at)
        spend(frame, len(items), at)
        if depth == len(bindings) - 1 and len(found) + len(items) > LONGEST_LIST:
            raise fault("E209", f"the list would have more than {LONGEST_LIST} elements", span)
        for item in items:
            store(frame, item)
            collect(frame, depth + 1, found)

    def build(frame: Frame) -> Value:
        found: list[Value] = []
        collect(frame, 0, found)
        return found

    return build


# ---- functions and figures ----------------------------------------------------------------------


def _call(node: ast.Call, scope: Scope) -> Evaluate:
    arguments = [compile_expression(argument, scope) for argument in node.arguments]
    name, span, layout = node.function, node.span, scope.layout
    if name in RANK_FIGURES and scope.checks:
        if len(arguments) != 1:
            layout.report("E203", f"`{name}` takes one rank, {len(arguments)} given", span)
            return _constant(0)
        slot, rank = layout.figure(f"{name}(r)"), arguments[0]
        return lambda frame: values.index(frame[slot], rank(frame), span)
    if name not in FUNCTIONS:
        _report_unknown_function(name, span, scope)
        return _constant(0)
    if (not arguments) if name in ("min", "max") else len(arguments) != 1:
        takes = "at least one argument" if name in ("min", "max") else "one argument"
        layout.report("E203", f"`{name}` takes {takes}, {len(arguments)} given", span)
        return _constant(0)
    if name in ("min", "max"):
        return _extreme(name == "max", arguments, span)
    argument = arguments[0]
    match name:
        case "len":
            return lambda frame: len(elements(argument(frame), "the argument of `len`", span))
        case "sum":
            return _sum(argument, span)
        case _:
            compute = {"abs": abs, "ceil": math.ceil, "floor": math.floor}[name]

            def apply(frame: Frame) -> Value:
                value = argument(frame)
                if not is_number(value):
                    raise fault("E204", f"`{name}` cannot take {kind(value)}", span)
                return compute(value)

            return apply


def _report_unknown_function(name: str, span: Span, scope: Scope) -> None:
    known = [*FUNCTIONS, *(RANK_FIGURES if scope.checks else ())]
    report = scope.layout.report
    if not_available_yet(name):
        report("E110", f"`{name}` is not available yet: it needs a plan's program", span)
    elif name in RANK_FIGURES:
        report("E201", f"`{name}` is a figure: only `check` may name it", span)
    elif scope.find(name) is not None:
        report("E204", f"`{name}` is a variable, not a function", span, f"index with `{name}[…]`")
    else:
        help = FOREIGN.get(name) or did_you_mean(name, known)
        report("E201", f"unknown function `{name}`", span, help)


def _numbers(
    items: Sequence[Value], name: str, frame: Frame, span: Span
) -> Sequence[values.Number]:
    spend(frame, len(items), span)
    found: list[values.Number] = []
    for item in items:
        if not is_number(item):
            raise fault("E204", f"`{name}` cannot take {kind(item)}, {show(item)}", span)
        found.append(item)
    return found


def _extreme(largest: bool, arguments: list[Evaluate], span: Span) -> Evaluate:
    choose, name = (max, "max") if largest else (min, "min")
    if len(arguments) == 1:
        argument = arguments[0]

        def of_elements(frame: Frame) -> Value:
            items = elements(argument(frame), f"the only argument of `{name}`", span)
            if not items:
                raise fault("E206", f"`{name}` of no elements", span)
            if isinstance(items, range):
                return choose(items[0], items[-1])
            return choose(_numbers(items, name, frame, span))

        return of_elements
    return lambda frame: choose(_numbers([a(frame) for a in arguments], name, frame, span))


def _sum(argument: Evaluate, span: Span) -> Evaluate:
    def total(frame: Frame) -> Value:
        items = elements(argument(frame), "the argument of `sum`", span)
        if isinstance(items, range):
            return len(items) * (items[0] + items[-1]) // 2 if items else 0
        found: values.Number = 0
        for item in _numbers(items, "sum", frame, span):
            found = values.bounded(found + item, span)
        return found

    return total


def _stage_cost(node: ast.Dotted, scope: Scope) -> Evaluate:
    argument = compile_expression(node.argument, scope) if node.argument else None
    layout, span = scope.layout, node.span
    if node.base != "T" or node.member not in STAGE_COSTS or not scope.checks:
        if node.base == "T" and not scope.checks:
            layout.report("E201", "costs are known only in `check`", span)
        else:
            layout.report(
                "E201",
                f"unknown `{node.base}.{node.member}`",
                span,
                "the costs of a stage are `T.F`, `T.B`, `T.I` and `T.W`",
            )
        return _constant(0)
    slot, alike = layout.figure(f"T.{node.member}"), layout.figure("uniform")
    if argument is not None:
        return lambda frame: values.index(frame[slot], argument(frame), span)

    def of_any_stage(frame: Frame) -> Value:
        if not frame[alike]:
            raise NotApplicable(f"`T.{node.member}` needs stages that are alike (uniform)")
        return values.index(frame[slot], 0, span)

    return of_any_stage
