"""Which lines the formatter makes of the pieces of a source, and how far each is indented.

The author's line ends are kept, with these exceptions. Items of files, schedules and plans begin a
line. A block is *open* where its first statement begins a line; then its statements stand four
blanks in and its last brace on a line of its own. Otherwise its first statement follows the brace,
further lines of it hang below that statement, and the last brace ends the last line. What does not
fit in 100 columns so is broken: several statements on a line get lines of their own, a block
is opened. A single statement is never broken.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from schedc.syntax.format_pieces import Comment, Piece, Pieces, Statement

INDENT = 4
WIDTH = 100


class Indent(NamedTuple):
    """``offset`` blanks right of where piece ``anchor`` stands; of the margin if None."""

    anchor: int | None
    offset: int


@dataclass(frozen=True, eq=False, slots=True)
class Line:
    """A line: pieces ``first`` to ``last`` (none of them where it is a comment), a comment."""

    first: int
    last: int
    indent: Indent
    comment: Comment | None
    blank_before: bool

    @property
    def pieces(self) -> range:
        return range(self.first, self.last)


def natural_positions(pieces: tuple[Piece, ...], lines: Iterable[Line]) -> list[int]:
    """The column of every piece where nothing is aligned."""
    found = [0] * len(pieces)
    for line in lines:
        at = line.indent.offset
        at += found[line.indent.anchor] if line.indent.anchor is not None else 0
        for index in line.pieces:
            at += pieces[index].gap if index > line.first else 0
            found[index] = at
            at += len(pieces[index].text)
    return found


class LineBreaker:
    """Decides on line ends; ``open`` holds the statements whose blocks are open."""

    def __init__(self, source: Pieces) -> None:
        self.pieces = source.pieces
        self.comments = source.comments
        self.open: set[Statement] = set()
        self._split: set[int] = set()
        self._line_of: dict[int, Line] = {}

    def lines(self) -> tuple[Line, ...]:
        """The lines, none of them too long if that can be helped."""
        for piece in self.pieces:
            if piece.role == "first" and self._opens(piece.statement):
                self._open(piece.statement)
        while True:
            lines = self._lines()
            positions = natural_positions(self.pieces, lines)
            broken = [line for line in lines if self._broken(line, positions)]
            if not broken:
                return lines

    # ---- which blocks are open ------------------------------------------------------------

    def _opens(self, statement: Statement) -> bool:
        """Whether the blocks of a statement must be open: as written, or by its kind."""
        for first, last in statement.blocks:
            if self.comments[last] or self.comments[first + 1]:
                return True
            if last == first + 1:
                continue
            if statement.kind in ("schedule", "plan"):
                return True
            if self.pieces[first + 1].line > self.pieces[first].end_line:
                return True
            inside = self.pieces[first].line, self.pieces[last].end_line
            if statement.kind == "order" and inside[0] < inside[1]:
                return True
        return False

    def _open(self, statement: Statement | None) -> None:
        while statement is not None:
            self.open.add(statement)
            statement = statement.parent

    # ---- lines ----------------------------------------------------------------------------

    def _lines(self) -> tuple[Line, ...]:
        pieces, found = self.pieces, list[Line]()
        starts = self._starts()
        for first, following in zip(starts, [*starts[1:], len(pieces)], strict=True):
            indent = self._indent(first)
            found += self._comment_lines(first, indent, top=not found)
            trailing = next((c for c in self.comments[following] if c.trailing), None)
            blank = bool(found) and self._blank_before(first)
            found.append(Line(first, following, indent, trailing, blank))
            self._line_of.update(dict.fromkeys(range(first, following), found[-1]))
        found += self._comment_lines(len(pieces), Indent(None, 0), top=False)
        return tuple(found)

    def _comment_lines(self, index: int, indent: Indent, top: bool) -> list[Line]:
        """The comments on their own lines before a piece; ``top`` where nothing is above them."""
        above, found = self._line_above(index), list[Line]()
        if index < len(self.pieces):
            indent = self._comment_indent(index, indent)
        for comment in self.comments[index]:
            if not comment.trailing:
                blank = comment.line > above + 1
                if not found:
                    blank = (blank and not self._behind_opener(index)) or self._new_item(index)
                    blank = blank and not top
                found.append(Line(index, index, indent, comment, blank))
            above = comment.line
        return found

    def _starts(self) -> list[int]:
        return [i for i in range(len(self.pieces)) if i == 0 or self._begins_line(i)]

    def _begins_line(self, index: int) -> bool:
        piece, before = self.pieces[index], self.pieces[index - 1]
        if self.comments[index] or index in self._split:
            return True
        statement, wanted = piece.statement, piece.line > before.end_line
        if piece.role == "first":
            parent = statement.parent
            if parent is None or parent.kind in ("schedule", "plan"):
                return True
            if index == statement.begin:
                return parent in self.open
            return wanted or statement in self.open or self._behind_open(index)
        if piece.role == "close":
            return statement in self.open and before.role != "open"
        return wanted and not piece.glued

    def _behind_open(self, index: int) -> bool:
        """Whether the statement before this one, in the same block, has open blocks."""
        before = self.pieces[index - 1]
        return before.role == "close" and before.statement in self.open

    # ---- blank lines ----------------------------------------------------------------------

    def _line_above(self, index: int) -> int:
        """The source line on which the piece before, or the comment behind it, ends."""
        return self.pieces[index - 1].end_line if index else 0

    def _behind_opener(self, index: int) -> bool:
        return index > 0 and self.pieces[index - 1].text in ("{", "(", "[")

    def _blank_before(self, index: int) -> bool:
        """Whether a blank line stands before the line that begins with a piece."""
        piece, comments = self.pieces[index], self.comments[index]
        if piece.text in ("}", ")", "]"):
            return False
        own = any(not comment.trailing for comment in comments)
        if not own and (self._behind_opener(index) or self._new_item(index)):
            return self._new_item(index)
        above = comments[-1].line if comments else self._line_above(index)
        return piece.line > above + 1

    def _new_item(self, index: int) -> bool:
        """Whether a piece begins an item of the file and one in braces ends before it."""
        if not 0 < index < len(self.pieces):
            return False
        piece = self.pieces[index]
        top = piece.role == "first" and piece.statement.parent is None
        return top and self.pieces[index - 1].text == "}"

    # ---- indentation ----------------------------------------------------------------------

    def _indent(self, index: int) -> Indent:
        """Where a line stands that begins with this piece."""
        piece = self.pieces[index]
        statement = piece.statement
        if piece.role == "first":
            parent = statement.parent
            if parent is None:
                return Indent(None, 0)
            if parent in self.open:
                return Indent(parent.first, INDENT)
            return Indent(statement.begin, 0)
        if piece.role in ("open", "close") or piece.text == "else":
            return Indent(statement.first, 0)
        if piece.depth or (piece.text in ("{", "}") and piece.bracket is None):
            return Indent(statement.first, INDENT * piece.depth)
        closes = piece.text in (")", "]")
        bracket = piece.bracket
        if bracket is None:
            return Indent(statement.first, INDENT)
        line = self._line_of[bracket]
        if bracket + 1 == line.last:
            return Indent(line.first, 0 if closes else INDENT)
        return Indent(bracket, 0) if closes else Indent(bracket + 1, 0)

    def _comment_indent(self, index: int, indent: Indent) -> Indent:
        """Where a comment stands that is followed by a line of this indent."""
        text = self.pieces[index].text
        if text == "}" or (text in (")", "]") and indent.anchor != self.pieces[index].bracket):
            return Indent(indent.anchor, indent.offset + INDENT)
        return indent

    # ---- lines that are too long ----------------------------------------------------------

    def _broken(self, line: Line, positions: list[int]) -> bool:
        """Whether a line was too long and something could be done about it."""
        if line.first == line.last:
            return False
        last = line.last - 1
        if positions[last] + len(self.pieces[last].text) <= WIDTH:
            return False
        first = self.pieces[line.first]
        own = first.statement
        closed = own.parent if first.role == "first" else own
        outermost: Statement | None = None
        while closed is not None:
            if closed not in self.open and closed.blocks:
                outermost = closed
            closed = closed.parent
        if outermost is not None:
            self._open(outermost)
            return True
        siblings = [
            i for i in line.pieces
            if i > line.first
            and self.pieces[i].role == "first"
            and self.pieces[i].statement.parent is own.parent
        ]  # fmt: skip
        if siblings:
            self._split.update(siblings)
            return True
        if any(last > first + 1 for first, last in own.blocks) and own not in self.open:
            self._open(own)
            return True
        return False
