"""Diagnostics as data: what is wrong, where, and what would mend it.

Every stage of the compiler reports mistakes of the user as :class:`Diagnostic` values, collects
them, and raises them together in one :class:`DiagnosticError`. They become text in one place,
:func:`render`. Anything else that escapes is a bug of ours.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A text that spans point into. ``name`` is what messages call it (a path as the user gave it).

    Sources are compared by identity: two files of one name are two sources.
    """

    name: str
    text: str = field(repr=False)

    def line(self, number: int) -> str:
        """The source line ``number`` (1-based) without its line end; empty past the end."""
        lines = self.text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        return lines[number - 1] if 1 <= number <= len(lines) else ""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a source, 1-based, columns counted in characters, the end exclusive."""

    source: Source
    line: int
    column: int
    end_line: int
    end_column: int

    def __str__(self) -> str:
        return f"{self.source.name}:{self.line}:{self.column}"

    @property
    def place(self) -> str:
        """``file.sched:5``, the short form that programs and reports carry."""
        return f"{self.source.name}:{self.line}"


@dataclass(frozen=True, slots=True)
class Label:
    """A second place that a diagnostic points to, with a few words on its part in it."""

    span: Span
    text: str


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One mistake: its code in the catalogue, a sentence, the place, other places, and the fix."""

    code: str
    message: str
    span: Span | None = None
    labels: tuple[Label, ...] = ()
    notes: tuple[str, ...] = ()
    help: str | None = None


class DiagnosticError(Exception):
    """Carries one or more diagnostics up to whoever prints them."""

    def __init__(self, diagnostics: Diagnostic | Iterable[Diagnostic]) -> None:
        if isinstance(diagnostics, Diagnostic):
            diagnostics = (diagnostics,)
        self.diagnostics: tuple[Diagnostic, ...] = tuple(diagnostics)
        assert self.diagnostics, "a DiagnosticError carries at least one diagnostic"
        super().__init__("\n".join(f"{d.code}: {d.message}" for d in self.diagnostics))


def render(diagnostics: Iterable[Diagnostic], color: bool = False) -> str:
    """Diagnostics as text: headline, place, source line with a caret, notes, help.

    Tabs in the source line are kept in the caret line, so that the caret stands under its column
    at any tab width; wide characters count two.
    """
    return "\n\n".join(_render_one(diagnostic, color) for diagnostic in diagnostics)


def _render_one(diagnostic: Diagnostic, color: bool) -> str:
    def paint(code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if color else text

    lines = [f"{paint('1;31', f'error[{diagnostic.code}]')}: {paint('1', diagnostic.message)}"]
    places = list(diagnostic.labels)
    if diagnostic.span is not None and diagnostic.span not in [p.span for p in places]:
        places.insert(0, Label(diagnostic.span, ""))
    width = max((len(str(label.span.line)) for label in places), default=1)
    for label in places:
        span = label.span
        line = span.source.line(span.line)
        lead = "".join(c if c == "\t" else " " * _width(c) for c in line[: span.column - 1])
        end = span.end_column if span.end_line == span.line else len(line) + 1
        carets = "^" * max(1, sum(map(_width, line[span.column - 1 : end - 1])))
        lines.append(f"{' ' * width}{paint('34', '-->')} {span}")
        lines.append(f"{paint('34', f'{span.line:>{width}} |')} {line}")
        lines.append(
            f"{paint('34', ' ' * width + ' |')} {lead}{paint('31', carets)}"
            + (f" {label.text}" if label.text else "")
        )
    lines += [f"{' ' * width} = note: {note}" for note in diagnostic.notes]
    if diagnostic.help is not None:
        lines.append(f"{' ' * width} = {paint('32', 'help')}: {diagnostic.help}")
    return "\n".join(lines)


def _width(character: str) -> int:
    """The columns a terminal gives to a character."""
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
