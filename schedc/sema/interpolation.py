"""Texts with values in them: ``"V = {V} does not divide M = {M}"``; ``{{`` is a brace."""

from __future__ import annotations

import re
from collections.abc import Callable

from schedc.diagnostics import DiagnosticError, Span
from schedc.sema.expressions import Evaluate, compile_expression
from schedc.sema.scope import Scope
from schedc.sema.values import Frame, show
from schedc.syntax import ast
from schedc.syntax.parse import parse_embedded
from schedc.syntax.text import normalise, slice_lines, unescape

_PIECE = re.compile(r"\{\{|\}\}|\{[^{}]*\}|[{}]")


def compile_text(text: ast.Text, scope: Scope) -> Callable[[Frame], str]:
    """A closure that fills in the values of the expressions in braces."""
    span = text.span
    lines = normalise(span.source.text).split("\n")
    raw = slice_lines(lines, span)[1:-1]
    parts: list[str | Evaluate] = []
    at = 0
    for match in _PIECE.finditer(raw):
        parts.append(_plain(raw[at : match.start()]))
        at = match.end()
        piece = match.group()
        column = span.column + 1 + match.start()
        if piece in ("{{", "}}"):
            parts.append(piece[0])
        elif len(piece) == 1:
            place = Span(span.source, span.line, column, span.line, column + 1)
            scope.layout.report(
                "E103", f"a single `{piece}` in a text", place, f"a brace is written `{piece * 2}`"
            )
        else:
            try:
                node = parse_embedded(span.source, span.line, column + 1, piece[1:-1])
            except DiagnosticError as error:
                scope.layout.diagnostics += error.diagnostics
                continue
            parts.append(compile_expression(node, scope))
    parts.append(_plain(raw[at:]))

    def fill(frame: Frame) -> str:
        found: list[str] = []
        for part in parts:
            if isinstance(part, str):
                found.append(part)
                continue
            value = part(frame)
            found.append(value if isinstance(value, str) else show(value))
        return "".join(found)

    return fill


def _plain(raw: str) -> str:
    return unescape(f'"{raw}"')
