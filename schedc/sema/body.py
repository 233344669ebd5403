"""What every way to say an order becomes: a function from a placement to each rank's table."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from schedc.diagnostics import Diagnostic, DiagnosticError, Span
from schedc.ir.cost import StageCosts
from schedc.ir.order import Table
from schedc.sema.values import Frame


@dataclass(frozen=True, eq=False)
class Placed:
    """Stages on ranks, what they cost, and the sizes for an error's note (``P = 4, M = 8``)."""

    ranks: int
    microbatches: int
    rank_of: tuple[int, ...]
    costs: StageCosts
    at: str

    @cached_property
    def stages_of(self) -> tuple[tuple[int, ...], ...]:
        """The stages that each rank holds, in model order."""
        return tuple(
            tuple(s for s, r in enumerate(self.rank_of) if r == rank) for rank in range(self.ranks)
        )


@dataclass(frozen=True, eq=False)
class Arranged:
    """Each rank's table and pairs, as :class:`schedc.ir.order.Order` has them."""

    tables: tuple[Table, ...]
    pairs: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, eq=False)
class Body:
    """``arrange`` makes the order; ``by_costs`` says whether it depends on costs."""

    arrange: Callable[[Frame, Placed], Arranged]
    by_costs: bool


Mistake = tuple[int, Diagnostic]
"""A mistake and the rank it was found on."""


def raise_shared(mistakes: Iterable[Mistake], at: str) -> None:
    """Raise mistakes, one made on several ranks once, for the first of them."""
    shared: dict[tuple[str, Span | None], list[Mistake]] = {}
    for rank, mistake in mistakes:
        shared.setdefault((mistake.code, mistake.span), []).append((rank, mistake))
    if shared:
        raise DiagnosticError(_shared(found, at) for found in shared.values())


def with_note(diagnostic: Diagnostic, where: str) -> Diagnostic:
    return replace(diagnostic, notes=(*diagnostic.notes, f"at {where}"))


def _shared(found: list[Mistake], at: str) -> Diagnostic:
    (rank, mistake), *others = found
    mistake = with_note(mistake, f"rank {rank}, {at}")
    others = [other for other in others if other[0] != rank]
    if not others:
        return mistake
    count = len(others)
    also = f"likewise on {count} other rank{'s' if count > 1 else ''}: {_ranks(others)}"
    return replace(mistake, notes=(*mistake.notes, also))


def _ranks(found: list[Mistake]) -> str:
    ranks = [rank for rank, _ in found]
    if len(ranks) > 2 and all(b == a + 1 for a, b in pairwise(ranks)):
        return f"{ranks[0]} to {ranks[-1]}"
    return ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")
