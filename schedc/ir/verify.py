"""The order verifier: every operation once, on the rank that holds its stage, and no deadlock."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from schedc.diagnostics import Diagnostic, DiagnosticError, Label, Span
from schedc.ir.cycle import Wait, completed, shortest_cycle
from schedc.ir.dependencies import Column, Dependencies, dependencies_of
from schedc.ir.order import MICROBATCH, OP, STAGE, Op, Order, Task

_LISTED = 6
"""How many operations an error names before it says how many more there are."""

_CELLS = 10_000_000
"""How many stages times microbatches are looked at one by one in an order that has fewer."""

Mask = npt.NDArray[np.bool_]
Cells = npt.NDArray[np.int64]


def verify_order(order: Order) -> None:
    """Raise all that is wrong with ``order`` in one :class:`DiagnosticError`.

    *Contract.* Each stage lives on a rank that exists (E305). Every operation is of a stage and
    microbatch that exist (E306), and on the rank that holds the stage (E303). For each stage and
    microbatch there is F and either B, or I and W (E301), not both (E304), each once (E302); R may
    be there once. Data dependencies and the ranks' orders have no cycle (E401, looked for once all
    else is right). Linear in the number of operations, except for the search of a shortest cycle.
    """
    assert len(order.tables) == order.ranks
    diagnostics = list(_check_placement(order))
    if not diagnostics:
        diagnostics += _check_operations(_Columns.of(order))
    if not diagnostics:
        diagnostics += _check_deadlock(order)
    if diagnostics:
        raise DiagnosticError(diagnostics)


@dataclass(frozen=True, eq=False, slots=True)
class _Columns:
    """All operations of an order as columns, and where each stands."""

    order: Order
    rank: Column
    index: Column
    op: Column
    stage: Column
    microbatch: Column

    @staticmethod
    def of(order: Order) -> _Columns:
        lengths = [len(table) for table in order.tables]
        rank = np.repeat(np.arange(order.ranks), lengths)
        index = np.concatenate([np.arange(length) for length in lengths])
        rows = np.concatenate(order.tables).astype(np.int64)
        return _Columns(order, rank, index, rows[:, OP], rows[:, STAGE], rows[:, MICROBATCH])

    def select(self, mask: Mask) -> _Columns:
        return _Columns(
            self.order,
            self.rank[mask],
            self.index[mask],
            self.op[mask],
            self.stage[mask],
            self.microbatch[mask],
        )

    def __len__(self) -> int:
        return len(self.rank)

    def task(self, at: int) -> Task:
        return Task(Op(int(self.op[at])), int(self.stage[at]), int(self.microbatch[at]))

    def span(self, at: int) -> Span | None:
        return self.order.span(int(self.rank[at]), int(self.index[at]))

    def find(self, task: Task) -> list[int]:
        """Where ``task`` stands, in the order of the ranks."""
        same = (self.op == task.op) & (self.stage == task.stage)
        return np.flatnonzero(same & (self.microbatch == task.microbatch)).tolist()


_Sentence = tuple[str, list[Span | None]]


def _summary(
    code: str, headline: str, count: int, sentence: Callable[[int], _Sentence]
) -> Iterator[Diagnostic]:
    """One diagnostic for ``count`` mistakes of a kind: the first few in words, then how many."""
    if not count:
        return
    told = [sentence(which) for which in range(min(count, _LISTED))]
    spans = dict.fromkeys(span for _, found in told for span in found if span is not None)
    first, *others = spans or [None]
    labels = tuple(Label(span, "") for span in others if span is not None)
    if count == 1:
        yield Diagnostic(code, told[0][0], first, labels)
        return
    notes = [words for words, _ in told]
    if count > _LISTED:
        notes.append(f"and {count - _LISTED} more")
    yield Diagnostic(code, f"{count} {headline}", first, labels, tuple(notes))


def _check_placement(order: Order) -> Iterator[Diagnostic]:
    wrong = [(s, r) for s, r in enumerate(order.rank_of) if not 0 <= r < order.ranks]

    def sentence(which: int) -> _Sentence:
        stage, rank = wrong[which]
        words = f"stage {stage} is placed on rank {rank}, but the ranks are 0..{order.ranks}"
        return words, []

    yield from _summary("E305", "stages are on ranks that do not exist", len(wrong), sentence)


def _check_operations(every: _Columns) -> Iterator[Diagnostic]:
    order = every.order
    stage_exists = (every.stage >= 0) & (every.stage < order.stages)
    exists = stage_exists & (every.microbatch >= 0) & (every.microbatch < order.microbatches)
    yield from _unknown(every.select(~exists))
    known = every.select(exists)
    cells = order.stages * order.microbatches
    if cells > _CELLS and 2 * cells > len(known):
        words = (
            f"there are {len(known)} operations, but {order.stages} stages "
            f"and {order.microbatches} microbatches need {2 * cells} at least"
        )
        yield Diagnostic("E301", words)
        return
    yield from _misplaced(known.select(np.asarray(order.rank_of)[known.stage] != known.rank))

    shape = (len(Op), order.stages, order.microbatches)
    keys = np.ravel_multi_index((known.op, known.stage, known.microbatch), shape)
    counts = np.bincount(keys, minlength=int(np.prod(shape))).reshape(shape)
    yield from _duplicated(known, np.argwhere(counts > 1))

    has = counts > 0
    split = has[Op.I] | has[Op.W]
    mixed = has[Op.B] & split
    yield from _mixed(known, np.argwhere(mixed))
    missing = ~has
    missing[Op.R] = False
    missing[Op.B] &= ~split
    missing[[Op.I, Op.W]] &= split & ~mixed
    yield from _missing(known, np.argwhere(missing))


def _unknown(wrong: _Columns) -> Iterator[Diagnostic]:
    stages, microbatches = wrong.order.stages, wrong.order.microbatches

    def sentence(which: int) -> _Sentence:
        task = wrong.task(which)
        there = (
            f"the microbatches are 0..{microbatches}"
            if 0 <= task.stage < stages
            else f"the stages are 0..{stages}"
        )
        return f"rank {wrong.rank[which]} runs {task}, but {there}", [wrong.span(which)]

    headline = "operations are of stages or microbatches that do not exist"
    yield from _summary("E306", headline, len(wrong), sentence)


def _misplaced(wrong: _Columns) -> Iterator[Diagnostic]:
    def sentence(which: int) -> _Sentence:
        task = wrong.task(which)
        home = f"stage {task.stage} is on rank {wrong.order.rank_of[task.stage]}"
        return f"rank {wrong.rank[which]} runs {task}, but {home}", [wrong.span(which)]

    headline = "operations are on a rank that does not hold their stage"
    yield from _summary("E303", headline, len(wrong), sentence)


def _duplicated(known: _Columns, cells: Cells) -> Iterator[Diagnostic]:
    def sentence(which: int) -> _Sentence:
        op, stage, microbatch = cells[which].tolist()
        task = Task(Op(op), stage, microbatch)
        places = known.find(task)
        ranks = dict.fromkeys(f"rank {known.rank[at]}" for at in places)
        words = f"{task} is there {len(places)} times, on {' and '.join(ranks)}"
        return words, [known.span(at) for at in places]

    yield from _summary("E302", "operations are there more than once", len(cells), sentence)


def _mixed(known: _Columns, cells: Cells) -> Iterator[Diagnostic]:
    def sentence(which: int) -> _Sentence:
        stage, microbatch = cells[which].tolist()
        found = {
            op: places
            for op in (Op.B, Op.I, Op.W)
            if (places := known.find(Task(op, stage, microbatch)))
        }
        letters = " and ".join(op.name for op in found)
        words = (
            f"stage {stage}, microbatch {microbatch} has {letters}: "
            f"the backward is either B, or I and W"
        )
        return words, [known.span(places[0]) for places in found.values()]

    headline = "backwards are both B, and I and W"
    yield from _summary("E304", headline, len(cells), sentence)


def _missing(known: _Columns, cells: Cells) -> Iterator[Diagnostic]:
    rank_of = known.order.rank_of

    def sentence(which: int) -> _Sentence:
        op, stage, microbatch = cells[which].tolist()
        words = f"rank {rank_of[stage]} never runs {Task(Op(op), stage, microbatch)}"
        if op == Op.B:
            return f"{words}, nor I and W in its place", []
        partner = {Op.I: Op.W, Op.W: Op.I}.get(Op(op))
        places = known.find(Task(partner, stage, microbatch)) if partner is not None else []
        if partner is not None and places:
            words += f", though it runs {partner.name} of them"
        return words, [known.span(at) for at in places]

    yield from _summary("E301", "operations are missing", len(cells), sentence)


def _check_deadlock(order: Order) -> Iterator[Diagnostic]:
    dependencies = dependencies_of(order)
    reached = completed(dependencies)
    if sum(reached) == len(dependencies):
        return
    cycle = shortest_cycle(dependencies, reached)
    operations = list(dict.fromkeys(node for step in cycle for node in (step.waiting, step.needed)))
    labels: dict[Span, list[str]] = {}
    for node in operations:
        rank, index = dependencies.place(node)
        span = order.span(rank, index)
        if span is not None:
            labels.setdefault(span, []).append(f"rank {rank}: {dependencies.task(node)}")
    stuck = len(dependencies) - sum(reached)
    yield Diagnostic(
        "E401",
        f"the order deadlocks: {len(operations)} operations wait for one another, "
        f"and {stuck} of {len(dependencies)} never start",
        next(iter(labels), None),
        tuple(
            Label(span, first + (f", and {len(others)} more" if others else ""))
            for span, (first, *others) in labels.items()
        ),
        tuple(_tell(order, dependencies, cycle)),
        help="on one of these ranks, move the operation that is waited for before the one that "
        "waits, for example with more forwards before the first backward",
    )


def _tell(order: Order, dependencies: Dependencies, cycle: Sequence[Wait]) -> Iterator[str]:
    """The cycle in words, two sentences a step at most."""

    def name(node: int) -> str:
        span = order.span(*dependencies.place(node))
        return str(dependencies.task(node)) + (f" ({span.place})" if span is not None else "")

    for step, following in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
        here, there = dependencies.rank[step.waiting], dependencies.rank[step.needed]
        source = f" from rank {there}" if here != there else ""
        yield f"rank {here}: {name(step.waiting)} needs the result of {name(step.needed)}{source}"
        if step.needed == following.waiting:
            continue
        if dependencies.slots[step.needed] == dependencies.slots[following.waiting]:
            yield (
                f"rank {there} runs {name(step.needed)} in one slot with {name(following.waiting)}"
            )
        else:
            yield (
                f"rank {there} runs {name(step.needed)} only after {name(following.waiting)}, "
                f"by its order"
            )
