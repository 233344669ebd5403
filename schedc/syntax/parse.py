"""Text to AST. Errors come out as diagnostics, one for each broken item of the file."""

from __future__ import annotations

import functools
import importlib.resources
import re

from lark import Lark, Token, Tree
from lark.exceptions import UnexpectedInput

from schedc.diagnostics import Diagnostic, DiagnosticError, Source, Span
from schedc.syntax import ast
from schedc.syntax.build import Builder
from schedc.syntax.errors import Text, explain
from schedc.syntax.text import BYTE_ORDER_MARK, normalise

_ITEM = re.compile(r'"(?:[^"\\\n]|\\.)*"|#[^\n]*|[{}]|[A-Za-z_][A-Za-z0-9_]*')
_ITEM_WORDS = ("import", "schedule", "cluster", "plan")

LONGEST_NUMBER = 1000
"""Digits of a number literal."""


@functools.cache
def _parser() -> Lark:
    grammar = importlib.resources.files("schedc.grammar").joinpath("sched.lark")
    return Lark(
        grammar.read_text(encoding="utf-8"),
        parser="lalr",
        lexer="contextual",
        propagate_positions=True,
        maybe_placeholders=False,
        start=["file", "expression", "schedule_use", "precision_use"],
    )


def _run(text: str, start: str) -> Tree[Token]:
    return _parser().parse(text, start=start)  # pyright: ignore[reportUnknownMemberType]


def parse_file(source: Source) -> ast.File:
    """The tree of a whole file.

    Raises :class:`DiagnosticError` with one diagnostic for each broken item (schedule, plan, …).
    """
    text = normalise(source.text)
    builder = Builder(source, text.split("\n"))
    try:
        _refuse_long_numbers(source, text)
        file = builder.file(_run(text, "file"))
    except UnexpectedInput as error:
        raise DiagnosticError(_all_errors(source, text, error)) from None
    except RecursionError:
        raise DiagnosticError(_too_deep(Span(source, 1, 1, 1, 2))) from None
    if not file.items:
        raise DiagnosticError(
            Diagnostic(
                "E106",
                "the file says nothing: there is no schedule and no plan in it",
                Span(source, 1, 1, 1, 2),
                help="a file holds `schedule NAME { … }` or `plan NAME { … }`",
            )
        )
    return file


def parse_setting(source: Source, skip: int) -> ast.Expression:
    """The tree of the expression behind ``skip`` characters, as in ``--set``'s ``V=3``."""
    return _expression(source, " " * skip + normalise(source.text)[skip:])


def parse_embedded(source: Source, line: int, column: int, text: str) -> ast.Expression:
    """The tree of an expression that stands inside a text of ``source``, as in ``"{P * M}"``."""
    return _expression(source, "\n" * (line - 1) + " " * (column - 1) + text)


def parse_schedule_use(source: Source, skip: int) -> ast.ScheduleUse:
    """The tree of a schedule and its arguments behind ``skip`` characters: ``zb_1p(K = 2)``."""
    text = " " * skip + normalise(source.text)[skip:]
    return Builder(source, text.split("\n")).schedule_use(_parse(source, text, "schedule_use"))


def parse_precision_use(source: Source, skip: int) -> ast.PrecisionUse:
    """The tree of a precision and its options behind ``skip`` characters: ``bf16 { … }``."""
    text = " " * skip + normalise(source.text)[skip:]
    return Builder(source, text.split("\n")).precision_use(_parse(source, text, "precision_use"))


def _expression(source: Source, text: str) -> ast.Expression:
    tree = _parse(source, text, "expression")
    try:
        return Builder(source, text.split("\n")).expression(tree)
    except RecursionError:
        raise DiagnosticError(_too_deep(Span(source, 1, 1, 1, 2))) from None


def _parse(source: Source, text: str, start: str) -> Tree[Token]:
    try:
        _refuse_long_numbers(source, text)
        return _run(text, start)
    except UnexpectedInput as error:
        raise DiagnosticError(explain(error, Text(source, text))) from None


def _all_errors(source: Source, text: str, first: UnexpectedInput) -> list[Diagnostic]:
    """An error for each item that is broken, each item parsed by itself.

    An item is cut off by blanking all before it, so that positions stay.
    """
    starts = _item_starts(text)
    if len(starts) < 2:
        return [explain(first, Text(source, text))]
    found: list[Diagnostic] = []
    starts[0] = 0
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        line = text.count("\n", 0, start)
        column = start - (text.rfind("\n", 0, start) + 1)
        item = "\n" * line + " " * column + text[start:end]
        try:
            _run(item, "file")
        except UnexpectedInput as error:
            found.append(explain(error, Text(source, item)))
    return found or [explain(first, Text(source, text))]


def _item_starts(text: str) -> list[int]:
    """Where the items of a file begin: their words outside all braces."""
    depth = 0
    starts: list[int] = []
    for match in _ITEM.finditer(text):
        word = match.group()
        if word == "{":
            depth += 1
        elif word == "}":
            depth = max(0, depth - 1)
        elif depth == 0 and word in _ITEM_WORDS:
            starts.append(match.start())
    return starts


def _refuse_long_numbers(source: Source, text: str) -> None:
    """Python refuses to read numbers of many thousand digits; say so before it does."""
    match = re.search(f"[0-9]{{{LONGEST_NUMBER},}}", text)
    if match is None:
        return
    line = text.count("\n", 0, match.start()) + 1
    column = match.start() - text.rfind("\n", 0, match.start())
    raise DiagnosticError(
        Diagnostic(
            "E104",
            f"a number of {len(match.group())} digits; at most {LONGEST_NUMBER - 1} are read",
            Span(source, line, column, line, column + len(match.group())),
        )
    )


def _too_deep(span: Span) -> Diagnostic:
    return Diagnostic("E109", "the text is nested too deeply to be read", span)


def make_source(name: str, text: str) -> Source:
    """A source without its byte-order mark, so that columns count what is seen."""
    return Source(name, text.removeprefix(BYTE_ORDER_MARK))
