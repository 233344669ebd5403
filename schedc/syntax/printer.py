"""AST to canonical source text: four blanks an indent, one statement a line, least parentheses.

``parse_file(print_file(tree))`` equals ``tree``. Comments are not part of the tree.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import assert_never

from schedc.syntax import ast
from schedc.syntax.text import escape

_INDENT = "    "

# Binding strength, loosest first; an operand that binds looser than its place needs parentheses.
_RANGE, _OR, _AND, _NOT, _COMPARE, _SUM, _TERM, _SIGN, _POWER, _ATOM = range(10)
_STRENGTH: dict[ast.ArithmeticOperator, int] = {
    "+": _SUM,
    "-": _SUM,
    "*": _TERM,
    "/": _TERM,
    "//": _TERM,
    "%": _TERM,
    "**": _POWER,
}


def print_file(file: ast.File) -> str:
    """The text of a file, its items a blank line apart."""
    return "\n".join("\n".join(_file_item(item)) + "\n" for item in file.items)


def print_expression(node: ast.Expression) -> str:
    """The text of an expression, on one line."""
    return _expression(node, _RANGE)


# ---- files, schedules, statements ---------------------------------------------------------------


def _file_item(item: ast.FileItem) -> list[str]:
    match item:
        case ast.Import():
            return [f"import {escape(item.path.value)}"]
        case ast.Schedule():
            return _schedule(item)
        case ast.Plan():
            lines = [line for entry in item.entries for line in _entry(entry)]
            return [f"plan {item.name} {{", *_indented(lines), "}"]
        case ast.Reserved():
            return [item.text]
        case _:
            assert_never(item)


def _schedule(schedule: ast.Schedule) -> list[str]:
    parameters = ", ".join(
        f"{parameter.name} = {print_expression(parameter.default)}"
        for parameter in schedule.parameters
    )
    head = f"schedule {schedule.name}" + (f"({parameters})" if parameters else "")
    lines = [line for item in schedule.items for line in _schedule_item(item)]
    return [head + " {", *_indented(lines), "}"]


def _schedule_item(item: ast.ScheduleItem) -> list[str]:
    match item:
        case ast.Let():
            return [_let(item)]
        case ast.Stages():
            return [f"stages {print_expression(item.count)}"]
        case ast.Place():
            return [f"place stage {item.variable} on rank {print_expression(item.rank)}"]
        case ast.Require():
            condition = print_expression(item.condition)
            return [f"require {condition} else {escape(item.message.value)}"]
        case ast.Check():
            when = f"  when {print_expression(item.when)}" if item.when is not None else ""
            return [f"check {print_expression(item.condition)}{when}"]
        case ast.Note():
            return [f"note {escape(item.message.value)}"]
        case ast.OrderBody():
            return [f"order on rank {item.variable} {{", *_block(item.body), "}"]
        case ast.PolicyBody():
            return ["policy {", *_indented(map(_policy_item, item.items)), "}"]
        case ast.PatternBody():
            head = f"pattern every {print_expression(item.period)} on rank {item.variable} {{"
            return [head, *_block(item.body), "}"]
        case ast.Reserved():
            return [item.text]
        case _:
            assert_never(item)


def _policy_item(item: ast.PolicyItem) -> str:
    match item:
        case ast.SplitBackward():
            return "split backward"
        case ast.Prefer():
            return f"prefer {', '.join(item.letters)}"
        case ast.TieBreak():
            return f"tie {', '.join(f'{rule.which} {rule.what}' for rule in item.rules)}"
        case ast.Limit():
            return f"limit activations <= {print_expression(item.amount)}"
        case ast.Reserve():
            return f"reserve {print_expression(item.count)} for last local stage"
        case ast.Lookahead():
            return "lookahead"
        case _:
            assert_never(item)


def _indented(lines: Iterable[str]) -> list[str]:
    return [_INDENT + line for line in lines]


def _block(statements: tuple[ast.Statement, ...]) -> list[str]:
    return _indented(line for statement in statements for line in _statement(statement))


def _statement(node: ast.Statement) -> list[str]:
    match node:
        case ast.Let():
            return [_let(node)]
        case ast.For():
            return [f"for {_bindings(node.bindings)} {{", *_block(node.body), "}"]
        case ast.If():
            return _if(node)
        case ast.Repeat():
            return [f"repeat {print_expression(node.count)} {{", *_block(node.body), "}"]
        case ast.Operation():
            operands = ", ".join(_operand(operand) for operand in node.operands)
            return [f"{node.letter}({operands})"]
        case ast.Counter():
            stage = f"({print_expression(node.stage)})" if node.stage is not None else ""
            return [f"{node.letter}*{stage}"]
        case ast.Overlap():
            (first,), (second,) = _statement(node.first), _statement(node.second)
            return [f"overlap {{ {first} | {second} }}"]
        case ast.Slot():
            stage, offset = print_expression(node.stage), print_expression(node.offset)
            return [f"{node.letter}({stage}) at {offset}"]
        case ast.Holes():
            return [f"{node.letter}(*) in holes"]
        case ast.Reserved():
            return [node.text]
        case _:
            assert_never(node)


def _let(node: ast.Let) -> str:
    return f"let {_pattern(node.pattern)} = {print_expression(node.value)}"


def _if(node: ast.If) -> list[str]:
    lines = [f"if {print_expression(node.condition)} {{", *_block(node.then)]
    match node.otherwise:
        case ():
            return [*lines, "}"]
        case (ast.If() as only,):
            first, *rest = _if(only)
            return [*lines, f"}} else {first}", *rest]
        case _:
            return [*lines, "} else {", *_block(node.otherwise), "}"]


def _operand(operand: ast.Operand) -> str:
    value = print_expression(operand.value)
    return value if operand.name is None else f"{operand.name} = {value}"


def _pattern(pattern: ast.Pattern) -> str:
    match pattern:
        case ast.NamePattern():
            return pattern.name
        case ast.TuplePattern():
            return f"({_comma([_pattern(element) for element in pattern.elements])})"
        case _:
            assert_never(pattern)


def _comma(parts: list[str]) -> str:
    """``a, b``, or ``a,`` for one: what stands in a tuple's parentheses."""
    return f"{parts[0]}," if len(parts) == 1 else ", ".join(parts)


def _bindings(bindings: tuple[ast.Binding, ...]) -> str:
    return ", ".join(
        f"{_pattern(binding.pattern)} in {print_expression(binding.values)}" for binding in bindings
    )


# ---- plans --------------------------------------------------------------------------------------


def _entry(entry: ast.Entry) -> list[str]:
    separator = ", " if entry.key == "freeze" else " "
    values = separator.join(_entry_value(value) for value in entry.values)
    return [f"{entry.key} {values}".rstrip()]


def _entry_value(value: ast.EntryValue) -> str:
    match value:
        case ast.Batch():
            total, each = print_expression(value.total), print_expression(value.each)
            return f"{total} in microbatches of {each}"
        case ast.Mesh():
            return ", ".join(f"{axis.name} = {print_expression(axis.size)}" for axis in value.axes)
        case ast.ScheduleUse():
            arguments = ", ".join(
                f"{argument.name} = {print_expression(argument.value)}"
                for argument in value.arguments
            )
            return value.name + (f"({arguments})" if arguments else "")
        case ast.PrecisionUse():
            options = ", ".join(f"{o.name} {print_expression(o.value)}" for o in value.options)
            return value.name + (f" {{ {options} }}" if options else "")
        case ast.Word():
            return value.word
        case ast.Raw():
            return value.text
        case _:
            return print_expression(value)


# ---- expressions --------------------------------------------------------------------------------


def _expression(node: ast.Expression, place: int) -> str:
    text, strength = _unbracketed(node)
    return f"({text})" if strength < place else text


def _unbracketed(node: ast.Expression) -> tuple[str, int]:
    """The text without parentheses around it, and how strongly it binds."""
    match node:
        case ast.Unary():
            if node.operator == "not":
                return f"not {_expression(node.operand, _NOT)}", _NOT
            return f"{node.operator}{_expression(node.operand, _SIGN)}", _SIGN
        case ast.Binary():
            return _binary(node), _STRENGTH[node.operator]
        case ast.Compare():
            first, *rest = (_expression(operand, _SUM) for operand in node.operands)
            pairs = zip(node.operators, rest, strict=True)
            return first + "".join(f" {symbol} {operand}" for symbol, operand in pairs), _COMPARE
        case ast.Logic():
            strength = _AND if node.operator == "and" else _OR
            left, right = _expression(node.left, strength), _expression(node.right, strength + 1)
            return f"{left} {node.operator} {right}", strength
        case ast.RangeOf():
            parts = [node.lower, node.upper] + ([node.stride] if node.stride is not None else [])
            lower, upper, *stride = (_expression(part, _OR) for part in parts)
            return f"{lower}..{upper}" + "".join(f" step {s}" for s in stride), _RANGE
        case _:
            return _atom(node), _ATOM


def _binary(node: ast.Binary) -> str:
    if node.operator == "**":
        # `**` binds looser than a sign on its right and groups to the right.
        return f"{_expression(node.left, _ATOM)} ** {_expression(node.right, _SIGN)}"
    strength = _STRENGTH[node.operator]
    left, right = _expression(node.left, strength), _expression(node.right, strength + 1)
    return f"{left} {node.operator} {right}"


def _atom(
    node: ast.Int
    | ast.Decimal
    | ast.Text
    | ast.Quantity
    | ast.Name
    | ast.Call
    | ast.Dotted
    | ast.Index
    | ast.Slice
    | ast.Conditional
    | ast.TupleOf
    | ast.ListOf
    | ast.Comprehension,
) -> str:
    match node:
        case ast.Int():
            return str(node.value)
        case ast.Decimal():
            return _decimal(node.value)
        case ast.Text():
            return escape(node.value)
        case ast.Quantity():
            return f"{_atom(node.number)} {node.unit}"
        case ast.Name():
            return node.name
        case ast.Call():
            return f"{node.function}({_list(node.arguments)})"
        case ast.Dotted():
            argument = f"({print_expression(node.argument)})" if node.argument is not None else ""
            return f"{node.base}.{node.member}{argument}"
        case ast.Index():
            return f"{_expression(node.sequence, _ATOM)}[{print_expression(node.index)}]"
        case ast.Slice():
            lower = print_expression(node.lower) if node.lower is not None else ""
            upper = print_expression(node.upper) if node.upper is not None else ""
            return f"{_expression(node.sequence, _ATOM)}[{lower}:{upper}]"
        case ast.Conditional():
            parts = (node.then, node.condition, node.otherwise)
            then, condition, otherwise = (print_expression(part) for part in parts)
            return f"({then} if {condition} else {otherwise})"
        case ast.TupleOf():
            elements = [print_expression(element) for element in node.elements]
            return f"({_comma(elements)})"
        case ast.ListOf():
            return f"[{_list(node.elements)}]"
        case ast.Comprehension():
            condition = f" if {print_expression(node.condition)}" if node.condition else ""
            element = print_expression(node.element)
            return f"[{element} for {_bindings(node.bindings)}{condition}]"
        case _:
            assert_never(node)


def _list(nodes: tuple[ast.Expression, ...]) -> str:
    return ", ".join(print_expression(node) for node in nodes)


def _decimal(value: Fraction) -> str:
    """A decimal literal: its expansion ends, having been written as one."""
    digits = 1
    while 10**digits % value.denominator:
        digits += 1
    whole, part = divmod(value.numerator * (10**digits // value.denominator), 10**digits)
    return f"{whole}.{part:0{digits}}"
