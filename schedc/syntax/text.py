"""The text of a source: line ends, slices by span, escapes."""

from __future__ import annotations

import re

from schedc.diagnostics import Span

BYTE_ORDER_MARK = "\ufeff"

_PIECE = re.compile(r'"(?:[^"\\\n]|\\.)*"|#[^\n]*|[ \t\n\f\u00a0\u202f]+')


def normalise(text: str) -> str:
    """``text`` with `\\n` as its only line end and a blank for a byte-order mark.

    Lines and columns stay those of the source.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return " " + text[1:] if text.startswith(BYTE_ORDER_MARK) else text


def slice_lines(lines: list[str], span: Span) -> str:
    """What stands in ``span``, line ends as `\\n`."""
    if span.line == span.end_line:
        return lines[span.line - 1][span.column - 1 : span.end_column - 1]
    return "\n".join(
        (
            lines[span.line - 1][span.column - 1 :],
            *lines[span.line : span.end_line - 1],
            lines[span.end_line - 1][: span.end_column - 1],
        )
    )


def compact(lines: list[str], span: Span) -> str:
    """What stands in ``span`` on one line: no comments, single spaces, texts in quotes intact."""

    def piece(match: re.Match[str]) -> str:
        return match.group() if match.group().startswith('"') else " "

    found = _PIECE.sub(piece, slice_lines(lines, span))
    # A comment and the blanks beside it leave several spaces.
    parts = re.split(r'("(?:[^"\\\n]|\\.)*")', found)
    return "".join(p if i % 2 else re.sub(r" +", " ", p) for i, p in enumerate(parts)).strip()


def text_of(span: Span) -> str:
    """What the source says at ``span``, on one line."""
    return compact(normalise(span.source.text).split("\n"), span)


def unescape(quoted: str) -> str:
    """The text that a quoted one stands for."""
    return re.sub(r"\\(.)", r"\1", quoted[1:-1])


def escape(text: str) -> str:
    """``text`` in quotes. A text of the language has no line ends."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
