"""Lark's parse tree to the AST: one method a grammar rule, named after it."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from typing import cast

from lark import Token, Tree

from schedc.diagnostics import Source, Span
from schedc.syntax import ast
from schedc.syntax.text import compact, unescape

Node = Tree[Token] | Token


class Builder:
    """Turns the trees of one source into AST nodes."""

    def __init__(self, source: Source, lines: list[str]) -> None:
        self.source = source
        self.lines = lines
        self._expressions: dict[str, Callable[[Tree[Token]], ast.Expression]] = {
            "int": lambda tree: self._int(_token(tree.children[0])),
            "decimal": lambda tree: self._decimal(_token(tree.children[0])),
            "quantity": self._quantity,
            "text": lambda tree: self._text(tree.children[0]),
            "name": lambda tree: ast.Name(str(tree.children[0]), self.span(tree)),
            "call": self._call,
            "dotted": self._dotted,
            "index": self._index,
            "slice": self._slice,
            "unary": self._unary,
            "binary": self._binary,
            "compare": self._compare,
            "logic": self._logic,
            "conditional": self._conditional,
            "range": self._range,
            "tuple": lambda tree: ast.TupleOf(self._all(tree.children), self.span(tree)),
            "list": lambda tree: ast.ListOf(self._all(tree.children), self.span(tree)),
            "comprehension": self._comprehension,
        }
        self._statements: dict[str, Callable[[Tree[Token]], ast.Statement]] = {
            "let": self._let,
            "for_loop": self._for,
            "if_else": self._if,
            "repeat": self._repeat,
            "operation": self._operation,
            "counter": self._counter,
            "slot": self._slot,
            "holes": lambda tree: ast.Holes(self._letter(tree.children[0]), self.span(tree)),
            "overlap": self._overlap,
        }
        self._items: dict[str, Callable[[Tree[Token]], ast.ScheduleItem]] = {
            "let": self._let,
            "stages": lambda tree: ast.Stages(self._only(tree), self.span(tree)),
            "place": self._place,
            "require": self._require,
            "check": self._check,
            "note": lambda tree: ast.Note(self._text(tree.children[0]), self.span(tree)),
            "order": self._order,
            "policy": self._policy,
            "pattern": self._pattern_body,
            "reserved": self._reserved,
        }
        self._policy_items: dict[str, Callable[[Tree[Token]], ast.PolicyItem]] = {
            "split_backward": lambda tree: ast.SplitBackward(self.span(tree)),
            "prefer": self._prefer,
            "tie": self._tie,
            "limit": lambda tree: ast.Limit(self.expression(tree.children[-1]), self.span(tree)),
            "reserve": lambda tree: ast.Reserve(self._only(tree), self.span(tree)),
            "lookahead": lambda tree: ast.Lookahead(self.span(tree)),
        }
        self._file_items: dict[str, Callable[[Tree[Token]], ast.FileItem]] = {
            "import_file": lambda tree: ast.Import(self._text(tree.children[0]), self.span(tree)),
            "schedule": self._schedule,
            "plan": self._plan,
            "cluster": self._reserved,
        }

    # ---- files and schedules --------------------------------------------------------------

    def file(self, tree: Tree[Token]) -> ast.File:
        items = tuple(self._file_items[t.data](t) for t in map(_tree, tree.children))
        whole = Span(self.source, 1, 1, len(self.lines), len(self.lines[-1]) + 1)
        return ast.File(items, whole)

    def _schedule(self, tree: Tree[Token]) -> ast.Schedule:
        name, *rest = tree.children
        trees = [_tree(node) for node in rest]
        parameters: tuple[ast.Parameter, ...] = ()
        if trees and trees[0].data == "parameters":
            parameters = tuple(self._parameter(_tree(child)) for child in trees[0].children)
            trees = trees[1:]
        items = tuple(self._items[item.data](item) for item in trees)
        return ast.Schedule(str(name), parameters, items, self.span(tree), self.span(name))

    def _parameter(self, tree: Tree[Token]) -> ast.Parameter:
        name, default = tree.children
        return ast.Parameter(str(name), self.expression(default), self.span(tree))

    def _place(self, tree: Tree[Token]) -> ast.Place:
        variable, rank = tree.children
        return ast.Place(str(variable), self.expression(rank), self.span(tree))

    def _require(self, tree: Tree[Token]) -> ast.Require:
        condition, message = tree.children
        return ast.Require(self.expression(condition), self._text(message), self.span(tree))

    def _check(self, tree: Tree[Token]) -> ast.Check:
        condition, *when = self._all(tree.children)
        return ast.Check(condition, when[0] if when else None, self.span(tree))

    def _order(self, tree: Tree[Token]) -> ast.OrderBody:
        variable, body = tree.children
        return ast.OrderBody(str(variable), self._block(body), self.span(tree))

    def _policy(self, tree: Tree[Token]) -> ast.PolicyBody:
        trees = [_tree(item) for item in _tree(tree.children[0]).children]
        items = tuple(self._policy_items[item.data](item) for item in trees)
        return ast.PolicyBody(items, self.span(tree))

    def _prefer(self, tree: Tree[Token]) -> ast.Prefer:
        return ast.Prefer(tuple(self._letter(child) for child in tree.children), self.span(tree))

    def _tie(self, tree: Tree[Token]) -> ast.TieBreak:
        rules = [_tree(child) for child in tree.children]
        return ast.TieBreak(
            tuple(
                ast.TieRule(str(rule.children[0]), str(rule.children[1]), self.span(rule))
                for rule in rules
            ),
            self.span(tree),
        )

    def _pattern_body(self, tree: Tree[Token]) -> ast.PatternBody:
        period, variable, body = tree.children
        return ast.PatternBody(
            self.expression(period), str(variable), self._block(body), self.span(tree)
        )

    def _reserved(self, tree: Tree[Token]) -> ast.Reserved:
        span = self.span(tree)
        text = self._slice_text(span)
        word = re.split("[^a-z]", text, maxsplit=1)[0]
        return ast.Reserved("copy" if word == "place" else word, text, span)

    # ---- statements -----------------------------------------------------------------------

    def _block(self, node: Node) -> tuple[ast.Statement, ...]:
        return tuple(self._statements[t.data](t) for t in map(_tree, _tree(node).children))

    def _pattern(self, node: Node) -> ast.Pattern:
        tree = _tree(node)
        if tree.data == "name_pattern":
            return ast.NamePattern(str(tree.children[0]), self.span(tree))
        elements = tuple(self._pattern(child) for child in tree.children)
        return ast.TuplePattern(elements, self.span(tree))

    def _bindings(self, node: Node) -> tuple[ast.Binding, ...]:
        found: list[ast.Binding] = []
        for child in _tree(node).children:
            pattern, values = _tree(child).children
            found.append(
                ast.Binding(self._pattern(pattern), self.expression(values), self.span(child))
            )
        return tuple(found)

    def _let(self, tree: Tree[Token]) -> ast.Let:
        pattern, value = tree.children
        return ast.Let(self._pattern(pattern), self.expression(value), self.span(tree))

    def _for(self, tree: Tree[Token]) -> ast.For:
        bindings, body = tree.children
        return ast.For(self._bindings(bindings), self._block(body), self.span(tree))

    def _if(self, tree: Tree[Token]) -> ast.If:
        condition, then, *rest = tree.children
        otherwise: tuple[ast.Statement, ...] = ()
        if rest:
            last = _tree(rest[0])
            otherwise = (self._if(last),) if last.data == "if_else" else self._block(last)
        return ast.If(self.expression(condition), self._block(then), otherwise, self.span(tree))

    def _repeat(self, tree: Tree[Token]) -> ast.Repeat:
        count, body = tree.children
        return ast.Repeat(self.expression(count), self._block(body), self.span(tree))

    def _operation(self, tree: Tree[Token]) -> ast.Operation:
        letter, *operands = tree.children
        return ast.Operation(
            self._letter(letter),
            tuple(self._operand(_tree(operand)) for operand in operands),
            self.span(tree),
        )

    def _operand(self, tree: Tree[Token]) -> ast.Operand:
        *name, value = tree.children
        return ast.Operand(str(name[0]) if name else None, self.expression(value), self.span(tree))

    def _overlap(self, tree: Tree[Token]) -> ast.Overlap:
        halves: list[ast.Operation | ast.Counter] = []
        for child in map(_tree, tree.children):
            halves.append(
                self._operation(child) if child.data == "operation" else self._counter(child)
            )
        first, second = halves
        return ast.Overlap(first, second, self.span(tree))

    def _slot(self, tree: Tree[Token]) -> ast.Slot:
        letter, stage, offset = tree.children
        return ast.Slot(
            self._letter(letter), self.expression(stage), self.expression(offset), self.span(tree)
        )

    def _letter(self, node: Node) -> ast.Letter:
        return cast(ast.Letter, str(node))

    def _counter(self, tree: Tree[Token]) -> ast.Counter:
        letter, *stage = tree.children
        return ast.Counter(
            self._letter(letter),
            self.expression(stage[0]) if stage else None,
            self.span(tree),
        )

    # ---- plans ----------------------------------------------------------------------------

    def _plan(self, tree: Tree[Token]) -> ast.Plan:
        name, *entries = tree.children
        return ast.Plan(
            str(name),
            tuple(self._entry(_tree(entry)) for entry in entries),
            self.span(tree),
            self.span(name),
        )

    def _entry(self, tree: Tree[Token]) -> ast.Entry:
        span = self.span(tree)
        if tree.data == "unknown_key":
            name = str(tree.children[0])
            key_span = self.span(tree.children[0])
            after = Span(
                self.source, key_span.end_line, key_span.end_column, span.end_line, span.end_column
            )
            text = self._slice_text(after)
            return ast.Entry(name, (ast.Raw(text, after),) if text else (), span, key_span)
        key = {"use": "schedule", "on_cluster": "cluster"}.get(tree.data, str(tree.data))
        key_span = Span(self.source, span.line, span.column, span.line, span.column + len(key))
        return ast.Entry(key, self._entry_values(tree), span, key_span)

    def _entry_values(self, tree: Tree[Token]) -> tuple[ast.EntryValue, ...]:
        span = self.span(tree)
        match tree.data:
            case "batch":
                total, each = self._all(tree.children)
                return (ast.Batch(total, each, span),)
            case "mesh":
                axes = tuple(self._axis(_tree(child)) for child in tree.children)
                return (ast.Mesh(axes, span),)
            case "use":
                return (self.schedule_use(_tree(tree.children[0])),)
            case "precision":
                return (self.precision_use(_tree(tree.children[0])),)
            case _:
                return tuple(self._entry_value(child) for child in tree.children)

    def _entry_value(self, node: Node) -> ast.EntryValue:
        if isinstance(node, Token):
            if node.type == "STRING":
                return self._text(node)
            return ast.Word(str(node), self.span(node))
        if node.data == "options":
            span = self.span(node)
            return ast.Raw(self._slice_text(span), span)
        return self.expression(node)

    def _axis(self, tree: Tree[Token]) -> ast.Axis:
        name, size = tree.children
        return ast.Axis(str(name), self.expression(size), self.span(tree))

    def schedule_use(self, tree: Tree[Token]) -> ast.ScheduleUse:
        name, *arguments = tree.children
        return ast.ScheduleUse(str(name), self._arguments(arguments), self.span(tree))

    def precision_use(self, tree: Tree[Token]) -> ast.PrecisionUse:
        name, *options = tree.children
        span, name_span = self.span(tree), self.span(name)
        return ast.PrecisionUse(str(name), self._arguments(options), span, name_span)

    def _arguments(self, nodes: list[Node]) -> tuple[ast.Argument, ...]:
        pairs = [(node, _tree(node).children) for node in nodes]
        return tuple(
            ast.Argument(str(key), self.expression(value), self.span(node))
            for node, (key, value) in pairs
        )

    # ---- expressions ----------------------------------------------------------------------

    def expression(self, node: Node) -> ast.Expression:
        tree = _tree(node)
        return self._expressions[tree.data](tree)

    def _all(self, nodes: list[Node]) -> tuple[ast.Expression, ...]:
        return tuple(self.expression(node) for node in nodes)

    def _only(self, tree: Tree[Token]) -> ast.Expression:
        return self.expression(tree.children[0])

    def _int(self, token: Token) -> ast.Int:
        return ast.Int(int(str(token)), self.span(token))

    def _decimal(self, token: Token) -> ast.Decimal:
        return ast.Decimal(Fraction(str(token)), self.span(token))

    def _text(self, node: Node) -> ast.Text:
        return ast.Text(unescape(str(_token(node))), self.span(node))

    def _quantity(self, tree: Tree[Token]) -> ast.Quantity:
        number, unit = (_token(child) for child in tree.children)
        value = self._int(number) if number.type == "INT" else self._decimal(number)
        return ast.Quantity(value, "".join(unit.split()), self.span(tree))

    def _call(self, tree: Tree[Token]) -> ast.Call:
        function, *arguments = tree.children
        return ast.Call(str(function), self._all(arguments), self.span(tree))

    def _dotted(self, tree: Tree[Token]) -> ast.Dotted:
        base, member, *argument = tree.children
        value = self.expression(argument[0]) if argument else None
        return ast.Dotted(str(base), str(member), value, self.span(tree))

    def _index(self, tree: Tree[Token]) -> ast.Index:
        sequence, index = self._all(tree.children)
        return ast.Index(sequence, index, self.span(tree))

    def _slice(self, tree: Tree[Token]) -> ast.Slice:
        sequence, *bounds = (_tree(child) for child in tree.children)
        found = {bound.data: self._only(bound) for bound in bounds}
        return ast.Slice(
            self.expression(sequence), found.get("lower"), found.get("upper"), self.span(tree)
        )

    def _unary(self, tree: Tree[Token]) -> ast.Unary:
        operator, operand = tree.children
        return ast.Unary(
            cast(ast.UnaryOperator, str(operator)), self.expression(operand), self.span(tree)
        )

    def _binary(self, tree: Tree[Token]) -> ast.Binary:
        left, operator, right = tree.children
        return ast.Binary(
            cast(ast.ArithmeticOperator, str(operator)),
            self.expression(left),
            self.expression(right),
            self.span(tree),
        )

    def _compare(self, tree: Tree[Token]) -> ast.Compare:
        operators = cast(tuple[ast.Comparator, ...], tuple(map(str, tree.children[1::2])))
        return ast.Compare(operators, self._all(tree.children[::2]), self.span(tree))

    def _logic(self, tree: Tree[Token]) -> ast.Logic:
        left, operator, right = tree.children
        return ast.Logic(
            "and" if operator == "and" else "or",
            self.expression(left),
            self.expression(right),
            self.span(tree),
        )

    def _conditional(self, tree: Tree[Token]) -> ast.Conditional:
        then, condition, otherwise = self._all(tree.children)
        return ast.Conditional(then, condition, otherwise, self.span(tree))

    def _range(self, tree: Tree[Token]) -> ast.RangeOf:
        lower, upper, *stride = self._all(tree.children)
        return ast.RangeOf(lower, upper, stride[0] if stride else None, self.span(tree))

    def _comprehension(self, tree: Tree[Token]) -> ast.Comprehension:
        element, bindings, *condition = tree.children
        return ast.Comprehension(
            self.expression(element),
            self._bindings(bindings),
            self.expression(condition[0]) if condition else None,
            self.span(tree),
        )

    # ---- positions ------------------------------------------------------------------------

    def span(self, node: Node) -> Span:
        if isinstance(node, Token):
            place = (node.line, node.column, node.end_line, node.end_column)
        else:
            meta = node.meta
            place = (meta.line, meta.column, meta.end_line, meta.end_column)
        line, column, end_line, end_column = place
        assert line is not None
        assert column is not None
        assert end_line is not None
        assert end_column is not None
        return Span(self.source, line, column, end_line, end_column)

    def _slice_text(self, span: Span) -> str:
        return compact(self.lines, span)


def _tree(node: Node) -> Tree[Token]:
    assert isinstance(node, Tree)
    return node


def _token(node: Node) -> Token:
    assert isinstance(node, Token)
    return node
