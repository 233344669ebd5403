"""Lines of a program text as words, and the diagnostics (E507) that point into them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches

from schedc.diagnostics import Diagnostic, Source, Span

NUMBER = re.compile(r"-?\d+", re.ASCII)
COMMENT = re.compile(r"(?:^|(?<=\s))#(?=\s|$)")
WORD = re.compile(r'[^\s#"!,:\[\]]+')
"""The name of a buffer, unit, graph, axis or value."""

LARGEST = 2**31 - 1


class Refused(Exception):
    """A line that does not parse; carries its diagnostic."""

    def __init__(self, diagnostic: Diagnostic) -> None:
        super().__init__(diagnostic.message)
        self.diagnostic = diagnostic


class Line:
    """One line: its words without comment, and errors that point at a word.

    ``hash_starts_comment``: any ``#`` starts a comment; else only one between white space does (in
    a header, where the name of the order may hold a ``#``).
    """

    __slots__ = ("comment", "number", "source", "text", "words")

    def __init__(
        self, source: Source, number: int, text: str, hash_starts_comment: bool = True
    ) -> None:
        self.source = source
        self.number = number
        if hash_starts_comment:
            self.text, _, self.comment = text.partition("#")
        else:
            found = COMMENT.search(text)
            self.text = text[: found.start()] if found else text
            self.comment = text[found.end() :] if found else ""
        self.words = self.text.split()

    def word(self, index: int, expected: str) -> str:
        """The word at ``index``; refuses a line that ends before it."""
        if index < len(self.words):
            return self.words[index]
        raise self.refuse(index, expected)

    def name(self, index: int, expected: str) -> str:
        """The name at ``index``."""
        word = self.word(index, expected)
        if not WORD.fullmatch(word) or word == "->":
            raise self.refuse(index, expected)
        return word

    def names(self, start: int, stop: int | None = None) -> tuple[str, ...]:
        """The names from ``start`` on."""
        end = len(self.words) if stop is None else stop
        return tuple(self.name(index, "a name") for index in range(start, end))

    def keyword(self, index: int, *choices: str) -> str:
        word = self.word(index, " or ".join(f"`{choice}`" for choice in choices))
        if word not in choices:
            raise self.refuse(index, " or ".join(f"`{choice}`" for choice in choices))
        return word

    def integer(self, index: int, expected: str, prefix: str = "", largest: int = LARGEST) -> int:
        """The whole number at ``index``, after ``prefix``."""
        word = self.word(index, expected)
        digits = word[len(prefix) :]
        if not word.startswith(prefix) or not NUMBER.fullmatch(digits):
            raise self.refuse(index, expected)
        value = int(digits) if len(digits) < 40 else largest + 1
        if value > largest:
            raise self.refuse(index, f"{expected} of at most {largest}")
        return value

    def end(self, index: int) -> None:
        """Refuses words from ``index`` on."""
        if index < len(self.words):
            raise self.refuse(index, "the end of the line")

    def refuse(self, index: int, expected: str, help: str | None = None) -> Refused:
        """The error that word ``index`` (or the line's end) is not what was expected."""
        found = f"`{self.words[index]}`" if index < len(self.words) else "the end of the line"
        return self.error(index, f"expected {expected}, found {found}", help)

    def unknown(self, index: int, what: str, word: str, known: Iterable[str]) -> Refused:
        """The error that a name is not declared."""
        names = list(known)
        close = get_close_matches(word, names, 1)
        help = f"did you mean `{close[0]}`?" if close else None
        if help is None and names:
            shown = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
            help = f"the program has {shown}"
        return self.error(index, f"there is no {what} `{word}` in this program", help)

    def error(self, index: int, message: str, help: str | None = None) -> Refused:
        places = [match.span() for match in re.finditer(r"\S+", self.text)]
        end = len(self.text.rstrip())
        start, stop = places[index] if index < len(places) else (end, end + 1)
        span = Span(self.source, self.number, start + 1, self.number, stop + 1)
        return Refused(Diagnostic("E507", message, span, help=help))
