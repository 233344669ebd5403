"""Where the pieces of formatted lines stand: what the formatter and the author align.

*Aligned always*: the first braces of loops and conditions on consecutive lines of a block; the
values of a plan; comments behind consecutive lines. *Aligned if the author did*: pieces on
consecutive lines that stand in one column, at least one of them behind more blanks than it needs.
What more the author left at the longest of them is kept, up to a bound. So aligned text is a fixed
point, and aligned text that was edited is aligned again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from schedc.syntax.format_lines import Line, natural_positions
from schedc.syntax.format_pieces import Piece, Statement

_MOST_SLACK = 3
"""Blanks that an author may leave at the longest of some aligned pieces, beyond those needed."""
_MOST_PADDING = 24
"""Braces whose columns differ by more are not aligned; longer keys of plans are not either."""
_LAST_COMMENT_COLUMN = 72
_LOOPS = ("for_loop", "if_else", "repeat")


@dataclass(eq=False, slots=True)
class _Group:
    """Pieces that stand in one column, ``slack`` right of where the last of them would."""

    members: list[int]
    slack: int
    reached: dict[int, int] = field(default_factory=dict[int, int])

    @property
    def column(self) -> int:
        return max(self.reached.values()) + self.slack


def write_lines(pieces: tuple[Piece, ...], lines: tuple[Line, ...], opened: set[Statement]) -> str:
    """The text of the lines, everything in its column."""
    groups = _groups(pieces, lines, opened)
    positions = _positions(pieces, lines, groups)
    texts = [_text(pieces, line, positions) for line in lines]
    columns = _comment_columns(lines, [len(text) for text in texts])
    written: list[str] = []
    for line, text, column in zip(lines, texts, columns, strict=True):
        comment = line.comment.text if line.comment is not None else ""
        blank = "\n" if line.blank_before else ""
        written.append(blank + (text + " " * (column - len(text)) + comment).rstrip() + "\n")
    return "".join(written)


def _text(pieces: tuple[Piece, ...], line: Line, positions: list[int]) -> str:
    if line.first == line.last:
        anchor, offset = line.indent
        return " " * (offset + (positions[anchor] if anchor is not None else 0))
    text = ""
    for index in line.pieces:
        text += " " * (positions[index] - len(text)) + pieces[index].text
    return text


# ---- groups -------------------------------------------------------------------------------------


def _groups(
    pieces: tuple[Piece, ...], lines: tuple[Line, ...], opened: set[Statement]
) -> dict[int, _Group]:
    """For each aligned piece, with whom."""
    natural = natural_positions(pieces, lines)
    found = [*_brace_groups(pieces, lines, opened, natural), *_value_groups(pieces, lines)]
    groups = {member: group for group in found for member in group.members}
    for group in _column_groups(pieces, lines, frozenset(groups)):
        groups.update(dict.fromkeys(group.members, group))
    return groups


def _source_gap(pieces: tuple[Piece, ...], index: int) -> int:
    """The blanks before a piece in the source; as many as it needs where it began a line."""
    piece, before = pieces[index], pieces[index - 1]
    if piece.line != before.line:
        return piece.gap
    return piece.column - before.column - len(before.text)


def _brace_groups(
    pieces: tuple[Piece, ...],
    lines: tuple[Line, ...],
    opened: set[Statement],
    natural: list[int],
) -> list[_Group]:
    """The first braces of loops whose blocks are not open, on consecutive lines of a block."""
    runs: list[list[Statement]] = []
    current: dict[Statement | None, list[Statement]] = {}
    for line in lines:
        if line.blank_before or line.first == line.last:
            current.clear()
        for index in line.pieces:
            piece = pieces[index]
            if piece.role != "first":
                continue
            statement = piece.statement
            loop = statement.kind in _LOOPS and statement not in opened
            loop = loop and index in (line.first, statement.begin)
            loop = loop and statement.blocks[0][0] in line.pieces
            run = current.get(statement.parent)
            if not loop:
                current.pop(statement.parent, None)
            elif run is None or index != line.first:
                current[statement.parent] = [statement]
                runs.append(current[statement.parent])
            else:
                run.append(statement)
    found: list[_Group] = []
    for run in runs:
        braces = [statement.blocks[0][0] for statement in run]
        columns = [natural[brace] for brace in braces]
        if len(run) > 1 and max(columns) - min(columns) <= _MOST_PADDING:
            least = min(_source_gap(pieces, brace) for brace in braces) - 1
            found.append(_Group(braces, min(max(1, least), _MOST_SLACK)))
    return found


def _value_groups(pieces: tuple[Piece, ...], lines: tuple[Line, ...]) -> list[_Group]:
    """The first values of a plan's entries."""
    plans: dict[Statement, list[int]] = {}
    for line in lines:
        value = line.first + 1
        if value < line.last and pieces[line.first].role == "first":
            plan = pieces[line.first].statement.parent
            short = len(pieces[line.first].text) <= _MOST_PADDING
            if plan is not None and plan.kind == "plan" and short:
                plans.setdefault(plan, []).append(value)
    return [_Group(members, 1) for members in plans.values()]


def _column_groups(
    pieces: tuple[Piece, ...], lines: tuple[Line, ...], taken: frozenset[int]
) -> list[_Group]:
    """Pieces of consecutive lines that the author put in one column."""
    joined = frozenset(
        index
        for line in lines
        for index in line.pieces
        if pieces[index].line != pieces[line.first].line
    )
    found: list[_Group] = []
    above: dict[int, list[int]] = {}
    for line in lines:
        here: dict[int, list[int]] = {}
        if line.blank_before or line.first == line.last:
            above = {}
        for index in _eligible(pieces, line, joined):
            if index not in taken:
                column = pieces[index].column
                here[column] = above.get(column, [])
                here[column].append(index)
                if len(here[column]) == 2:
                    found.append(_Group(here[column], 0))
        above = here
    for group in found:
        more = [_source_gap(pieces, i) - pieces[i].gap for i in group.members]
        group.slack = max(0, min(*more, _MOST_SLACK))
    return [
        group
        for group in found
        if any(_source_gap(pieces, i) > pieces[i].gap for i in group.members)
    ]


def _eligible(pieces: tuple[Piece, ...], line: Line, joined: frozenset[int]) -> list[int]:
    """The pieces of a line that alignment by the author can move.

    Not those of loops' heads, whose braces are aligned anyway, nor those ``joined`` to the line. In
    a line that hangs below a piece of another one, only those right of that piece in the source:
    so the columns that a piece waits for lie ever further left, and none waits for itself.
    """
    if line.first == line.last:
        return []
    anchor = line.indent.anchor
    if anchor is not None and anchor in joined:
        return []
    least = pieces[anchor].column if anchor is not None else -1
    return [
        index
        for index in line.pieces
        if index > line.first
        and (piece := pieces[index]).gap > 0
        and index not in joined
        and piece.column > least
        and piece.role in ("first", "plain")
        and (piece.role == "first" or not piece.statement.blocks)
    ]


# ---- positions ----------------------------------------------------------------------------------


def _positions(
    pieces: tuple[Piece, ...], lines: tuple[Line, ...], groups: dict[int, _Group]
) -> list[int]:
    """The column of every piece.

    *Pseudocode.* Place the pieces of each line from left to right until one belongs to a group;
    once all its members are reached, the group has a column, and their lines go on. A line waits
    for the piece it is indented by.
    """
    positions = [-1] * len(pieces)
    line_of = {index: at for at, line in enumerate(lines) for index in line.pieces}
    cursor = [line.first for line in lines]
    waiting: dict[int, list[int]] = {}
    queue = deque(at for at, line in enumerate(lines) if line.first != line.last)
    settled: set[_Group] = set()
    while queue:
        at = queue.popleft()
        line = lines[at]
        anchor, offset = line.indent
        if anchor is not None and positions[anchor] < 0:
            waiting.setdefault(anchor, []).append(at)
            continue
        while cursor[at] < line.last:
            index = cursor[at]
            if index == line.first:
                column = offset + (positions[anchor] if anchor is not None else 0)
            else:
                column = positions[index - 1] + len(pieces[index - 1].text) + pieces[index].gap
            group = groups.get(index)
            if group is not None and index != line.first:
                if group not in settled:
                    group.reached[index] = column
                    if len(group.reached) < len(group.members):
                        break
                    settled.add(group)
                    queue.extend(line_of[member] for member in group.members if member != index)
                column = group.column
            positions[index] = column
            cursor[at] += 1
            queue.extend(waiting.pop(index, ()))
    assert all(position >= 0 for position in positions), "pieces wait for each other"
    return positions


# ---- comments -----------------------------------------------------------------------------------


def _comment_columns(lines: Sequence[Line], lengths: Sequence[int]) -> list[int]:
    """The column of every line's comment.

    Comments of consecutive lines stand in one column: theirs if it was one and leaves room, else
    two blanks behind the longest line. Lines that are too long for that stay out of it.
    """
    found = [length + 2 for length in lengths]
    run: list[int] = []

    def finish() -> None:
        columns = {line.comment.column for at in run if (line := lines[at]).comment is not None}
        least = max((found[at] for at in run), default=0)
        column = min(columns, default=0)
        if len(columns) != 1 or not least <= column <= _LAST_COMMENT_COLUMN:
            column = least
        for at in run:
            found[at] = column
        run.clear()

    for at, line in enumerate(lines):
        if line.first == line.last:
            finish()
            found[at] = lengths[at]
            continue
        if line.comment is None or line.blank_before:
            finish()
        if line.comment is not None and found[at] <= _LAST_COMMENT_COLUMN:
            run.append(at)
    finish()
    return found
