"""A source as the formatter sees it: every token with what may stand before it, and the comments.

The grammar is read with all its tokens kept, so that spacing follows from the rule a token belongs
to: ``-`` between operands or before one, ``(`` of a call or around an expression. What the language
only recognises (``solve { … }``, a plan's options) is kept as text by the parser; there only the
width of a gap may change, never whether there is one.
"""

from __future__ import annotations

import functools
import importlib.resources
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from lark import Lark, Token, Tree

Role = Literal["first", "open", "close", "plain"]
"""What a piece is to its statement: its first, the braces of its blocks, or anything else."""

TAB = 4

_AS_WRITTEN = ("reserved", "cluster", "options", "unknown_key")
_TIGHT = {
    "parameters": ("(",),
    "operation": ("(",),
    "counter": ("*", "("),
    "slot": ("(",),
    "holes": ("(",),
    "schedule_use": ("(",),
    "call": ("(",),
    "index": ("[",),
}
"""The tokens of a rule that stand right behind what is before them."""
_BRIEF = frozenset(
    {"NAME", "OPERATION", "INT", "DECIMAL", "DOT"}
    | {"PLUS", "MINUS", "STAR", "SLASH", "FLOOR", "PERCENT", "POWER"}
)
"""The tokens of bounds that stand in a range without blanks."""


@dataclass(eq=False, slots=True)
class Statement:
    """An item of a file, a schedule, a plan or a block.

    ``first`` is the index of its first piece, ``begin`` that of the first piece in the block where
    it stands; ``blocks`` are the indices of its own pairs of braces.
    """

    kind: str
    first: int
    parent: Statement | None
    begin: int
    blocks: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])


@dataclass(frozen=True, eq=False, slots=True)
class Piece:
    """A token. ``gap``: the blanks before it where it does not begin a line.

    ``line`` and ``column`` are those of the source, columns from 0 with tabs expanded. ``glued``
    pieces never begin a line, unless a comment stands before them. ``bracket`` is the index of the
    bracket it stands in, ``depth`` the braces around it in a text that is kept as written.
    """

    text: str
    gap: int
    line: int
    end_line: int
    column: int
    statement: Statement
    role: Role
    glued: bool
    bracket: int | None
    depth: int


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment; ``trailing`` where something stands before it on its line."""

    text: str
    line: int
    column: int
    trailing: bool


@dataclass(frozen=True, slots=True)
class Pieces:
    """``comments[i]`` are those before piece i; the last ones end the file."""

    pieces: tuple[Piece, ...]
    comments: tuple[tuple[Comment, ...], ...]


def read_pieces(text: str) -> Pieces:
    """The pieces of a text that the parser accepts, its line ends being `\\n`."""
    parser, seen = _parser()
    seen.clear()
    tree = parser.parse(text)  # pyright: ignore[reportUnknownMemberType]
    comments = sorted(seen, key=_start)
    tokens = sorted(_tokens(tree), key=_start)
    columns = _columns(text, sorted([*tokens, *comments], key=_start))
    walker = _Walker(columns)
    walker.container(tree, None)
    return Pieces(tuple(walker.pieces), _sorted_in(tokens, comments, columns))


def _start(token: Token) -> int:
    return token.start_pos or 0


@functools.cache
def _parser() -> tuple[Lark, list[Token]]:
    """A parser that keeps all tokens, and the list to which it adds comments."""
    seen: list[Token] = []

    def keep(token: Token) -> Token:
        seen.append(token)
        return token

    grammar = importlib.resources.files("schedc.grammar").joinpath("sched.lark")
    parser = Lark(
        grammar.read_text(encoding="utf-8"),
        parser="lalr",
        lexer="contextual",
        propagate_positions=True,
        maybe_placeholders=False,
        start="file",
        keep_all_tokens=True,
        lexer_callbacks={"COMMENT": keep},
    )
    return parser, seen


def _columns(text: str, tokens: list[Token]) -> dict[int, int]:
    """For the start of each token its column, tabs between tokens expanded."""
    found: dict[int, int] = {}
    end, column = 0, 0
    for token in tokens:
        start = token.start_pos or 0
        *above, gap = text[end:start].split("\n")
        column = 0 if above else column
        for character in gap:
            column += TAB - column % TAB if character == "\t" else 1
        found[start] = column
        column += len(token)
        end = start + len(token)
    return found


def _sorted_in(
    tokens: list[Token], comments: list[Token], columns: dict[int, int]
) -> tuple[tuple[Comment, ...], ...]:
    """The comments before each token, and those after the last."""
    found: list[list[Comment]] = [[] for _ in range(len(tokens) + 1)]
    at = 0
    for comment in comments:
        start, line = comment.start_pos or 0, comment.line or 0
        while at < len(tokens) and (tokens[at].start_pos or 0) < start:
            at += 1
        trailing = at > 0 and tokens[at - 1].end_line == line
        text = str(comment).rstrip().expandtabs(TAB)
        found[at].append(Comment(text, line, columns[start], trailing))
    return tuple(tuple(each) for each in found)


class _Walker:
    """Goes through the tree from left to right and makes a piece of every token."""

    def __init__(self, columns: dict[int, int]) -> None:
        self.pieces: list[Piece] = []
        self._columns = columns
        self._end = 0
        self._statement: Statement | None = None
        self._brackets: list[int] = []
        self._depth = 0
        self._as_written = False
        self._brief = False
        self._next_gap: int | None = None

    # ---- statements -----------------------------------------------------------------------

    def container(self, tree: Tree[Token], owner: Statement | None) -> None:
        """The children of a file, schedule, plan or block: statements, and the owner's tokens."""
        opened: int | None = None
        for child in tree.children:
            self._statement = owner
            if isinstance(child, Tree):
                if child.data == "parameters":
                    self._tree(child)
                else:
                    self._new_statement(child, owner, None if opened is None else opened + 1)
            elif child == "{":
                opened = len(self.pieces)
                self._add(child, 1, "open", glued=True)
            elif child == "}":
                assert owner is not None
                assert opened is not None
                owner.blocks.append((opened, len(self.pieces)))
                self._add(child, 1, "close")
            else:
                self._token(child)

    def _new_statement(
        self, tree: Tree[Token], parent: Statement | None, begin: int | None
    ) -> None:
        first = len(self.pieces)
        statement = Statement(tree.data, first, parent, first if begin is None else begin)
        self._statement = statement
        self._next_gap = 1 if first == statement.begin else 2
        if tree.data in ("schedule", "plan"):
            self.container(tree, statement)
        else:
            self._tree(tree)

    # ---- trees ----------------------------------------------------------------------------

    def _tree(self, tree: Tree[Token]) -> None:
        if self._as_written:
            self._children(tree)
        elif tree.data in _AS_WRITTEN:
            if self._next_gap is None:
                self._next_gap = 1
            self._as_written = True
            self._children(tree)
            self._as_written = False
        elif tree.data == "block":
            owner = self._statement
            self.container(tree, owner)
            self._statement = owner
        elif tree.data in ("range", "slice"):
            self._bounds(tree)
        else:
            self._children(tree)

    def _children(self, tree: Tree[Token]) -> None:
        tight = _TIGHT.get(tree.data, ())
        for at, child in enumerate(tree.children):
            if isinstance(child, Tree):
                self._tree(child)
            elif child in tight or (tree.data == "dotted" and at > 0):
                self._add(child, 0, glued=True)
            else:
                self._token(child, glued=tree.data == "if_else" and child == "else")
                if tree.data == "unary" and child != "not":
                    self._next_gap = 0

    def _bounds(self, tree: Tree[Token]) -> None:
        """``a..b-1``, but ``a .. f(b)`` where a bound has brackets; likewise in a slice."""
        mark = ".." if tree.data == "range" else ":"
        children = tree.children
        at = next(i for i, c in enumerate(children) if isinstance(c, Token) and c == mark)
        brief = all(_is_brief(c) for c in children[at - 1 : at + 2] if isinstance(c, Tree))
        for index, child in enumerate(children):
            if isinstance(child, Tree):
                self._brief = brief and abs(index - at) == 1
                if self._brief and index < at:
                    self._next_gap = self._place_gap()
                self._tree(child)
                self._brief = False
            elif index == at:
                self._add(child, 0 if brief or isinstance(children[at - 1], Token) else 1)
            elif child == "[":
                self._add(child, 0, glued=True)
            else:
                self._token(child)

    # ---- tokens ---------------------------------------------------------------------------

    def _token(self, token: Token, glued: bool = False) -> None:
        if token in (",", ")", "]"):
            self._add(token, 0, glued=token == ",")
        else:
            gap = 2 if token.type == "_WHEN" else None
            self._add(token, gap, glued=glued or token.type == "UNIT")

    def _is_value(self) -> bool:
        """Whether the next piece is the first behind the key of a plan."""
        statement = self._statement
        assert statement is not None
        parent = statement.parent
        in_plan = parent is not None and parent.kind == "plan"
        return in_plan and len(self.pieces) == statement.first + 1

    def _place_gap(self) -> int:
        """The gap before the next piece, by where it stands."""
        if self._next_gap is not None:
            return self._next_gap
        return 0 if self.pieces[-1].text in ("(", "[") else 1

    def _add(
        self, token: Token, gap: int | None, role: Role = "plain", glued: bool = False
    ) -> None:
        """Add a piece. Its gap is 0 if it says so, else that of its place, else its own."""
        statement = self._statement
        assert statement is not None
        start, text = token.start_pos or 0, str(token)
        if self._as_written:
            gap = int(start > self._end) if self._next_gap is None else self._next_gap
            gap = 1 if self._is_value() else gap
            glued = False
            self._depth -= text == "}"
        elif self._next_gap is not None and gap != 0:
            gap = self._next_gap
        elif gap is None:
            gap = 0 if self._brief else self._place_gap()
        if token.type == "UNIT":
            text = (" " if self._as_written else "").join(text.split())
        if len(self.pieces) == statement.first:
            role = "first"
        closes = not self._as_written and text in (")", "]")
        bracket = self._brackets[-1] if self._brackets else None
        line, end_line = token.line or 0, token.end_line or 0
        self.pieces.append(
            Piece(text, gap, line, end_line, self._columns[start], statement, role, glued,
                  bracket, self._depth)
        )  # fmt: skip
        self._next_gap = None
        self._end = start + len(token)
        if self._as_written:
            self._depth += text == "{"
        elif text in ("(", "["):
            self._brackets.append(len(self.pieces) - 1)
        elif closes:
            self._brackets.pop()


def _is_brief(bound: Tree[Token]) -> bool:
    """Whether a bound of a range is written without blanks: names, numbers and arithmetic."""
    return all(token.type in _BRIEF for token in _tokens(bound))


def _tokens(tree: Tree[Token]) -> Iterator[Token]:
    for child in tree.iter_subtrees_topdown():
        yield from (token for token in child.children if isinstance(token, Token))
