"""Lark's errors in human words: what was expected, what was found, what was probably meant."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import cast

from lark import Token
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from schedc.diagnostics import Diagnostic, Label, Source, Span
from schedc.syntax.hints import FOREIGN, UNITS, did_you_mean, nearest

_EXPRESSION = frozenset(
    {"NAME", "INT", "DECIMAL", "STRING", "LPAR", "LSQB", "PLUS", "MINUS", "NOT"}
)
_OPERATORS = frozenset(
    {"PLUS", "MINUS", "STAR", "SLASH", "FLOOR", "PERCENT", "POWER", "_DOTDOT", "AND", "OR"}
    | {"EQUAL", "UNEQUAL", "LESS", "AT_MOST", "GREATER", "AT_LEAST"}
)
_SYMBOLS: dict[str, str] = {
    "LPAR": "(",
    "RPAR": ")",
    "LSQB": "[",
    "RSQB": "]",
    "LBRACE": "{",
    "RBRACE": "}",
    "COMMA": ",",
    "COLON": ":",
    "DOT": ".",
    "VBAR": "|",
    "_DOTDOT": "..",
    "EQUAL": "==",
    "UNEQUAL": "!=",
    "LESS": "<",
    "AT_MOST": "<=",
    "GREATER": ">",
    "AT_LEAST": ">=",
    "PLUS": "+",
    "MINUS": "-",
    "STAR": "*",
    "SLASH": "/",
    "FLOOR": "//",
    "PERCENT": "%",
    "POWER": "**",
}
_LATER = frozenset({"_COPIES", "_SOLVE", "_SPLIT", "_CLUSTER"})
"""Words that are recognised but not supported yet: not offered as what may stand somewhere."""
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_BRACKET = re.compile(r'"(?:[^"\\\n]|\\.)*"|#[^\n]*|[()\[\]{}]')
_NUMBER = re.compile(r"[0-9](?:[0-9A-Za-z_.]|[eE][+-])*")
_CHARACTERS = {
    "'": 'texts stand in double quotes: "…"',
    ";": "statements need nothing between them; delete it",
    "!": "write `not`, or `!=` to compare",
    "&": "write `and`",
    "~": "write `not`",
    "“": 'write a straight quote: "',
    "”": 'write a straight quote: "',
}


@dataclass(frozen=True, slots=True)
class Text:
    """A source and what the lexer saw of it."""

    source: Source
    text: str


def explain(error: UnexpectedInput, text: Text) -> Diagnostic:
    """The diagnostic for an error of the lexer or parser."""
    if isinstance(error, UnexpectedToken):
        return _unexpected_token(error, text)
    assert isinstance(error, UnexpectedCharacters)
    return _unexpected_character(error, text)


# ---- characters ---------------------------------------------------------------------------------


def _unexpected_character(error: UnexpectedCharacters, text: Text) -> Diagnostic:
    at = cast(int, error.pos_in_stream)
    character = text.text[at]

    def span(length: int) -> Span:
        return _span(text.source, error.line, error.column, length)

    if character == '"':
        line = text.text[at:].split("\n", 1)[0]
        bad = re.match(r'"(?:[^"\\]|\\["\\])*(\\.)', line)
        if bad is not None:
            return Diagnostic(
                "E103",
                f"`{bad.group(1)}` means nothing in a text",
                span(bad.end()),
                help='`\\\\` is a backslash, `\\"` a quote; there are no other escapes',
            )
        return Diagnostic(
            "E103",
            "the text is not closed on its line",
            span(len(line)),
            help='end it with `"`',
        )
    number = _NUMBER.match(text.text, at)
    if number is not None:
        return bad_number(number.group(), span(len(number.group())))
    help = _CHARACTERS.get(character)
    name = unicodedata.name(character, "a control character").lower()
    plain = unicodedata.normalize("NFKC", character)
    if help is None and len(plain) == 1 and plain.isascii() and plain.isprintable():
        help = f"write `{plain}`"
    shown = f"`{character}`" if character.isprintable() else "a character"
    if not character.isascii() or not character.isprintable():
        shown += f" (U+{ord(character):04X}, {name})"
    notes = ("names are made of the letters a-z and A-Z, digits and `_`",)
    return Diagnostic(
        "E101",
        f"{shown} has no meaning here",
        span(1),
        notes=notes if character.isalnum() else (),
        help=help,
    )


def bad_number(written: str, span: Span) -> Diagnostic:
    """The diagnostic for something that begins like a number and is none."""
    help = "a number is digits, or digits with a point between digits"
    digits = re.match(r"[0-9]+(?:\.[0-9]+)?", written)
    assert digits is not None
    rest = written[digits.end() :]
    exponent = re.fullmatch(r"[eE]\+?([0-9]{1,3})", rest)
    if exponent is not None and "." not in digits.group() and int(exponent.group(1)) <= 18:
        whole = int(digits.group()) * 10 ** int(exponent.group(1))
        help = f"there are no exponents; write {whole}"
    elif exponent is not None or re.fullmatch(r"[eE]-[0-9]+", rest):
        help = "there are no exponents; write all digits"
    elif re.fullmatch(r"[0-9_]+", written):
        help = f"write {written.replace('_', '')}"
    elif rest == ".":
        help = f"a point has digits on both sides: {digits.group()}.0"
    elif rest == "B":
        help = "there is no unit `B` (B is an operation); write KB, MB, GB or KiB, MiB, GiB"
    elif rest.isalpha():
        unit = nearest(rest, UNITS)
        help = f"did you mean `{digits.group()} {unit}`?" if unit else f"no unit: `{rest}`"
    return Diagnostic("E104", f"`{written}` is not a number", span, help=help)


# ---- tokens -------------------------------------------------------------------------------------


def _unexpected_token(error: UnexpectedToken, text: Text) -> Diagnostic:
    token = cast(Token, error.token)  # pyright: ignore[reportUnknownMemberType]
    accepted = frozenset(error.accepts or error.expected)
    if token.type == "$END":
        return _unexpected_end(accepted, text)
    span = _span(text.source, token.line or 1, token.column or 1, len(str(token)))
    before = text.text[: token.start_pos or 0]
    if token.type == "OPERATION" and "NAME" in accepted:
        return Diagnostic(
            "E108",
            f"`{token}` is reserved: it is an operation",
            span,
            help="F, B, I, W and R cannot be names; choose another one",
        )
    after_number = re.search(r"(?<![A-Za-z0-9_.])[0-9]+(?:\.[0-9]+)?\Z", before)
    if token.type == "DOT" and after_number is not None:
        written = after_number.group() + "."
        place = _span(text.source, span.line, span.column - len(written) + 1, len(written))
        return bad_number(written, place)
    return Diagnostic(
        "E102",
        f"expected {_expected(accepted)}, found {_found(token)}",
        span,
        help=_token_help(token, accepted, text),
    )


def _token_help(token: Token, accepted: frozenset[str], text: Text) -> str | None:
    word = str(token)
    after = text.text[token.end_pos or 0 :].lstrip(" \t\n\u00a0")
    if word == "=" and "EQUAL" in accepted:
        return "write `==` to compare"
    if word == "|":
        return "write `or`" if accepted & _OPERATORS else None
    if token.type == "DOT":
        return "a range has two points: `a..b`; a number has digits on both sides of its point"
    if not re.fullmatch(r"[A-Za-z_]\w*", word):
        return None
    if word in FOREIGN:
        return FOREIGN[word]
    if "_LET" in accepted and after.startswith("=") and not after.startswith("=="):
        return f"write `let {word} = …`"
    keywords = [_keyword(terminal) for terminal in accepted if _is_keyword(terminal)]
    if token.type == "NAME" and keywords:
        return did_you_mean(word, keywords)
    return None


def _unexpected_end(accepted: frozenset[str], text: Text) -> Diagnostic:
    lines = text.text.split("\n")
    # Point behind the last thing written, not at blank lines or comments.
    last = max((i for i, line in enumerate(lines) if line.split("#")[0].strip()), default=0)
    column = len(lines[last].split("#")[0].rstrip()) + 1
    span = _span(text.source, last + 1, column, 1)
    opened = unclosed(text)
    message = f"the text ends where {_expected(accepted)} is expected"
    if opened is None:
        return Diagnostic("E105", message, span)
    bracket = text.source.line(opened.line)[opened.column - 1]
    return Diagnostic(
        "E105",
        message,
        span,
        labels=(Label(opened, f"this `{bracket}` is not closed"),),
        help=f"add `{_CLOSING[bracket]}`",
    )


def unclosed(text: Text) -> Span | None:
    """The innermost bracket that is never closed."""
    stack: list[re.Match[str]] = []
    for match in _BRACKET.finditer(text.text):
        bracket = match.group()
        if bracket in _CLOSING:
            stack.append(match)
        elif stack and bracket in ")]}" and _CLOSING[stack[-1].group()] == bracket:
            stack.pop()
    if not stack:
        return None
    at = stack[-1].start()
    line = text.text.count("\n", 0, at) + 1
    return _span(text.source, line, at - text.text.rfind("\n", 0, at), 1)


# ---- words for terminals ------------------------------------------------------------------------


def _is_keyword(terminal: str) -> bool:
    return terminal in ("AND", "OR", "NOT") or (
        terminal.startswith("_") and not terminal.startswith("__") and terminal != "_DOTDOT"
    )


def _keyword(terminal: str) -> str:
    return terminal.lstrip("_").lower()


def _expected(accepted: frozenset[str]) -> str:
    """``a, b or c``: the shortest true list of what may stand here."""
    words: list[str] = []
    rest = set(accepted) - {"UNIT", "$END"} - _LATER
    if rest >= {"NAME", "INT", "LPAR"}:
        words.append("an expression")
        rest -= _EXPRESSION
    if len(rest & _OPERATORS) > 4:
        rest -= _OPERATORS
        rest -= {"LPAR", "LSQB", "DOT"}
        operators = True
    else:
        operators = False
    if "NAME" in rest:
        words.append("a name")
    if rest & {"INT", "DECIMAL"}:
        words.append("a number")
    if "STRING" in rest:
        words.append('a text in "quotes"')
    keywords = sorted(_keyword(t) for t in rest if _is_keyword(t))
    words += [f"`{word}`" for word in keywords]
    if "OPERATION" in rest:
        words.append("an operation (F B I W R)")
    symbols = rest - {"NAME", "INT", "DECIMAL", "STRING", "OPERATION"}
    words += [f"`{_symbol(t)}`" for t in sorted(symbols) if not _is_keyword(t)]
    if operators:
        words.append("an operator")
    if "$END" in accepted:
        words.append("the end")
    if not words:
        return "nothing more"
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " or " + words[-1]


def _symbol(terminal: str) -> str:
    return _SYMBOLS.get(terminal, "=")


def _found(token: Token) -> str:
    if token.type == "STRING":
        return f"the text {token}"
    if token.type in ("INT", "DECIMAL"):
        return f"the number {token}"
    return f"`{token}`"


def _span(source: Source, line: int, column: int, length: int) -> Span:
    return Span(source, line, column, line, column + length)
