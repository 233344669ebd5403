"""Slots of two operations: times, memory, deadlocks, text, and what a program makes of them."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import pytest

from schedc.diagnostics import DiagnosticError
from schedc.driver.check import abstract_programs
from schedc.ir.cost import Costs, StageCosts
from schedc.ir.order import Order
from schedc.ir.text import order_digest, parse_order, print_order
from schedc.ir.verify import verify_order
from schedc.sema.library import bundled
from schedc.sema.schedule import instantiate
from schedc.simulate.critical import critical_path
from schedc.simulate.figures import figures
from schedc.simulate.order import simulate_order
from tests.simulate.orders import B, F, I, W, inputs_in, order_of, random_order, tasks_of
from tests.simulate.reference import duration


def by_definition(order: Order, costs: StageCosts) -> dict | None:
    """Start and end of each operation, slot by slot until nothing moves; None for a deadlock."""
    present, times = tasks_of(order), {}
    lines = []
    for rank in range(order.ranks):
        tasks, slots, row = list(order.tasks(rank)), [], 0
        while row < len(tasks):
            size = 2 if order.pairs and row in order.pairs[rank] else 1
            slots.append(tasks[row : row + size])
            row += size
        lines.append(slots)
    cursor, free = [0] * order.ranks, [Fraction(0)] * order.ranks
    moved = True
    while moved:
        moved = False
        for rank, slots in enumerate(lines):
            if cursor[rank] == len(slots):
                continue
            slot = slots[cursor[rank]]
            inputs = [i for task in slot for i in inputs_in(order, present, task)]
            if any(i not in times for i in inputs):
                continue
            there = [
                times[i][1] + (costs.comm if order.rank_of[i.stage] != rank else 0) for i in inputs
            ]
            start = max([free[rank], *there])
            each = [duration(task, costs) for task in slot]
            share = costs.overlap if len(slot) == 2 else 1
            free[rank] = start + max(*each, sum(each) * share, Fraction(0))
            times |= dict.fromkeys(slot, (start, free[rank]))
            cursor[rank], moved = cursor[rank] + 1, True
    return times if len(times) == len(present) else None


def random_pairs(order: Order, pick: random.Random) -> Order:
    pairs = []
    for table in order.tables:
        found, row = [], 0
        while row + 1 < len(table):
            if pick.random() < 0.3:
                found.append(row)
                row += 1
            row += 1
        pairs.append(tuple(found))
    return replace(order, pairs=tuple(pairs))


@pytest.mark.parametrize("seed", range(200))
def test_times_and_deadlocks_are_those_of_the_definition(seed: int) -> None:
    pick = random.Random(seed)
    P, M = pick.randint(1, 4), pick.randint(1, 5)
    order = random_pairs(random_order(seed, P, M, pick.randint(1, 6)), pick)
    values = (Fraction(pick.randint(1, 9), 2) for _ in range(3))
    overlap = pick.choice((Fraction(1), Fraction(3, 4), Fraction(1, 3), Fraction(0)))
    costs = replace(
        Costs(*values, comm=Fraction(pick.randint(0, 3))).of_stages(order.ranks, order.stages),
        overlap=overlap,
    )
    expected = by_definition(order, costs)
    if expected is None:
        with pytest.raises(DiagnosticError) as caught:
            verify_order(order)
        (only,) = caught.value.diagnostics
        assert only.code == "E401"
        assert only.notes
        with pytest.raises(DiagnosticError, match="E401"):
            simulate_order(order, costs)
        return
    verify_order(order)
    timeline = simulate_order(order, costs)
    for rank in range(order.ranks):
        for index, task in enumerate(order.tasks(rank)):
            start, end = timeline.start[rank][index], timeline.end[rank][index]
            assert (timeline.tick * int(start), timeline.tick * int(end)) == expected[task]
    path = critical_path(timeline, costs)
    ends = [int(timeline.end[rank][index]) for rank, index in path]
    starts = [int(timeline.start[rank][index]) for rank, index in path]
    assert starts[0] == 0
    assert ends[-1] == max(int(end.max(initial=0)) for end in timeline.end)
    comm = costs.comm / timeline.tick
    assert all(b - a in (0, comm) for a, b in zip(ends, starts[1:], strict=False))


def two_ranks(overlap: Fraction) -> tuple[Order, StageCosts]:
    """1F1B of three microbatches; rank 0 runs F(0, 2) with B(0, 0), rank 1 F(1, 1) with B(1, 0)."""
    rows = [
        [(F, 0, 0), (F, 0, 1), (F, 0, 2), (B, 0, 0), (B, 0, 1), (B, 0, 2)],
        [(F, 1, 0), (F, 1, 1), (B, 1, 0), (B, 1, 1), (F, 1, 2), (B, 1, 2)],
    ]
    order = replace(order_of(rows, (0, 1), 3), pairs=((2,), (1,)))
    return order, replace(Costs().of_stages(2, 2), overlap=overlap)


@pytest.mark.parametrize(
    ("overlap", "makespan", "busy"),
    [  # Rank 1: F 1-2, slot 2-5, B 5-7; rank 0: slot 5-8; rank 1: F 8-9, B 9-11; rank 0: B 11-13.
        (Fraction(1), 13, (9, 9)),
        # Slots take 2, the longer one, though half the sum is 3/2: 2-4, 4-6; F 6-7, B 7-9, B 9-11.
        (Fraction(1, 2), 11, (8, 8)),
    ],
)
def test_figures_by_hand(overlap: Fraction, makespan: int, busy: tuple[int, int]) -> None:
    order, costs = two_ranks(overlap)
    found = figures(simulate_order(order, costs), costs)
    assert found.makespan == makespan
    assert found.busy == busy
    assert found.peak_activations == (3, 2)  # F counts before B frees
    assert costs.uniform == (overlap == 1)


def test_text_and_digest_know_the_pairs() -> None:
    order, _ = two_ranks(Fraction(1))
    text = print_order(order)
    assert "F(0,1) F(0,2)|B(0,0) B(0,1)" in text
    back = parse_order(text, "x")
    assert back.pairs == order.pairs
    assert print_order(back) == text
    assert order_digest(back) == order_digest(order) != order_digest(order.one_by_one())
    for wrong in ("F(0,2)|B(0,0)|B(0,1)", "F(0,2)|", "F(0,2)B(0,0)"):
        with pytest.raises(DiagnosticError, match="E307"):
            parse_order(text.replace("F(0,2)|B(0,0) B(0,1)", wrong), "x")


def test_a_slot_of_two_that_depend_on_one_another() -> None:
    order = replace(order_of([[(F, 0, 0), (I, 0, 0), (W, 0, 0)]], (0,), 1), pairs=((1,),))
    with pytest.raises(DiagnosticError) as caught:
        verify_order(order)
    (only,) = caught.value.diagnostics
    assert only.code == "E401"
    assert any("in one slot with" in note for note in only.notes)


def test_programs_run_a_slot_one_after_another() -> None:
    order = instantiate(bundled(), "dualpipev", 2, 5, {}).order
    assert any(order.pairs)
    costs = Costs().of_stages(2, 4)
    programs = abstract_programs(simulate_order(order, costs))
    assert [len(program.stream) for program in programs] == [
        len(program.stream)
        for program in abstract_programs(simulate_order(order.one_by_one(), costs))
    ]
    assert order.forwards().pairs == ()
