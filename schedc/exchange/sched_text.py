"""An order as the text of a schedule: runs of operations found again as loops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from schedc.ir.order import Op, Order

LONGEST_BODY = 32
"""Slots of a loop that are looked for."""

_WIDTH = 88


class _Slot(NamedTuple):
    """Operations of one slot, as (operation, stage as text), and their microbatches."""

    what: tuple[tuple[str, str], ...]
    microbatches: tuple[int, ...]

    def shifted(self, by: int) -> _Slot:
        return _Slot(self.what, tuple(m + by for m in self.microbatches))

    def text(self, variable: str = "", base: int = 0) -> str:
        """``F(r, 3)``, or in a loop over ``variable`` that begins at ``base``, ``F(r, i + 1)``."""
        words = [
            f"{op}({stage}, {_index(m, variable, base)})"
            for (op, stage), m in zip(self.what, self.microbatches, strict=True)
        ]
        return words[0] if len(words) == 1 else f"overlap {{ {' | '.join(words)} }}"


def _index(m: int, variable: str, base: int) -> str:
    if not variable:
        return str(m)
    shift = m - base
    return variable if not shift else f"{variable} {'+' if shift > 0 else '-'} {abs(shift)}"


def sched_text(order: Order, comment: str) -> str:
    """A schedule whose order is ``order``, for its numbers of ranks and microbatches only."""
    place, stage_text = _placement(order)
    bodies: dict[tuple[str, ...], list[int]] = {}
    for rank in range(order.ranks):
        lines = tuple(_lines(_slots(order, rank, stage_text)))
        bodies.setdefault(lines, []).append(rank)
    stages = "" if order.stages == order.ranks else f"    stages {_stages(order)}\n"
    size = f"P == {order.ranks} and M == {order.microbatches}"
    head = (
        f"# {comment}\n\nschedule {order.name} {{\n"
        f'    require {size} else "this order is for P = {order.ranks}, '
        f'M = {order.microbatches}; here P = {{P}}, M = {{M}}"\n'
        f"{stages}    place stage s on rank {place}\n    order on rank r {{\n"
    )
    return head + "".join(_branches(bodies)) + "    }\n}\n"


def _branches(bodies: dict[tuple[str, ...], list[int]]) -> Iterator[str]:
    if len(bodies) == 1:
        (lines,) = bodies
        yield from (f"        {line}\n" for line in lines)
        return
    for index, (lines, ranks) in enumerate(bodies.items()):
        condition = " or ".join(f"r == {rank}" for rank in ranks)
        lead = "        if" if not index else " else if"
        yield f"{lead} {condition} {{\n" if index < len(bodies) - 1 or not index else " else {\n"
        yield from (f"            {line}\n" for line in lines)
        yield "        }"
    yield "\n"


# ---- placement ----------------------------------------------------------------------------------


def _stages(order: Order) -> str:
    times, rest = divmod(order.stages, order.ranks)
    return str(order.stages) if rest else f"{times} * P"


def _placement(order: Order) -> tuple[str, Callable[[int, int], str]]:
    """The rank of stage s as an expression, and a stage's text on a rank."""
    P, placed = order.ranks, order.rank_of
    stages = range(order.stages)
    if order.stages % P == 0:
        if placed == tuple(s % P for s in stages):
            one = order.stages == P
            return ("s" if one else "s % P"), lambda s, r: _sum(s // P, "r")
        if placed == tuple(s if s < P else 2 * P - 1 - s for s in stages):
            text = "(s if s < P else 2 * P - 1 - s)"
            return text, lambda s, r: "r" if s < P else "2 * P - 1 - r"
    return f"{list(placed)}[s]", lambda s, r: str(s)


def _sum(times: int, rank: str) -> str:
    return {0: rank, 1: f"P + {rank}"}.get(times, f"{times} * P + {rank}")


# ---- loops --------------------------------------------------------------------------------------


def _slots(order: Order, rank: int, stage_text: Callable[[int, int], str]) -> list[_Slot]:
    firsts = set(order.pairs[rank]) if order.pairs else set[int]()
    rows = order.tables[rank].tolist()
    found: list[_Slot] = []
    row = 0
    while row < len(rows):
        size = 2 if row in firsts else 1
        members = rows[row : row + size]
        what = tuple((Op(op).name, stage_text(stage, rank)) for op, stage, *_ in members)
        found.append(_Slot(what, tuple(m for _, _, m, _ in members)))
        row += size
    return found


def _lines(slots: list[_Slot]) -> Iterator[str]:
    """The slots as statements: at each place the loop that saves most, else what stands there."""
    plain: list[str] = []
    at = 0
    while at < len(slots):
        length, times = _loop_at(slots, at)
        if times == 1:
            plain.append(slots[at].text())
            at += 1
            continue
        yield from _wrapped(plain)
        plain = []
        base = slots[at].microbatches[0]
        body = "  ".join(slot.text("i", base) for slot in slots[at : at + length])
        yield f"for i in {base}..{base + times} {{ {body} }}"
        at += length * times
    yield from _wrapped(plain)


def _loop_at(slots: list[_Slot], at: int) -> tuple[int, int]:
    """Body and count of the loop from ``at`` on that covers most; a count of 1 is none."""
    best = (1, 1)
    for length in range(1, min(LONGEST_BODY, (len(slots) - at) // 2) + 1):
        times = 1
        while _repeats(slots, at, length, times):
            times += 1
        covers, least = length * times, 3 if length == 1 else 2
        if times >= least and covers - length > best[0] * best[1] - best[0]:
            best = (length, times)
    return best


def _repeats(slots: list[_Slot], at: int, length: int, times: int) -> bool:
    """Whether the body stands once more, all microbatches ``times`` further."""
    start = at + length * times
    if start + length > len(slots):
        return False
    return all(slots[start + index] == slots[at + index].shifted(times) for index in range(length))


def _wrapped(words: list[str]) -> Iterator[str]:
    line = ""
    for word in words:
        if line and len(line) + 2 + len(word) > _WIDTH:
            yield line
            line = ""
        line += f"  {word}" if line else word
    if line:
        yield line
