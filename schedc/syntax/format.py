"""The formatter: a source with canonical spacing, indentation and alignment.

Only white space changes. Comments, line ends inside a line's worth of statements, and single blank
lines are the author's; see :mod:`schedc.syntax.format_lines` for lines and
:mod:`schedc.syntax.format_columns` for alignment.
"""

from __future__ import annotations

from schedc.diagnostics import Diagnostic, DiagnosticError, Source, Span
from schedc.syntax import ast
from schedc.syntax.format_columns import write_lines
from schedc.syntax.format_lines import LineBreaker
from schedc.syntax.format_pieces import Pieces, read_pieces
from schedc.syntax.parse import make_source, parse_file
from schedc.syntax.text import normalise


def format_source(source: Source) -> str:
    """The formatted text of ``source``: `\\n` line ends, no byte-order mark.

    Formatting the result again changes nothing. Raises :class:`DiagnosticError` where the source
    has errors, and AssertionError (a bug) where the result would mean something else.
    """
    file = parse_file(source)
    try:
        before = read_pieces(normalise(source.text))
        breaker = LineBreaker(before)
        lines = breaker.lines()
        formatted = write_lines(before.pieces, lines, breaker.open)
        _check_same(file, before, formatted)
    except RecursionError:
        raise DiagnosticError(
            Diagnostic("E109", "the text is nested too deeply", Span(source, 1, 1, 1, 2))
        ) from None
    return formatted


def _check_same(file: ast.File, before: Pieces, formatted: str) -> None:
    """The text must say what it said, in the same words, with the same comments."""
    try:
        assert parse_file(make_source("formatted", formatted)) == file, "another meaning"
    except DiagnosticError as error:
        raise AssertionError("formatting would break the file") from error
    after = read_pieces(formatted)
    assert [p.text for p in after.pieces] == [p.text for p in before.pieces], "other words"
    assert [c.text for group in after.comments for c in group] == [
        c.text for group in before.comments for c in group
    ], "other comments"
