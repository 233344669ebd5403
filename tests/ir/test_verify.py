"""The order verifier: what it refuses, in which words, and that it refuses exactly that."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from schedc.diagnostics import Diagnostic, DiagnosticError, Source, Span, render
from schedc.ir.cost import Costs
from schedc.ir.cycle import Wait, completed, shortest_cycle
from schedc.ir.dependencies import dependencies_of
from schedc.ir.order import SPAN, Order, make_table
from schedc.ir.verify import verify_order
from schedc.simulate.order import simulate_order
from tests.simulate import reference
from tests.simulate.orders import (
    B,
    F,
    I,
    R,
    Row,
    W,
    gpipe,
    inputs_in,
    interleaved,
    interleaved_in_fixed_groups,
    one_f_one_b,
    order_of,
    random_order,
    rows_of,
    tasks_of,
    zb_h1,
)


def refused(order: Order) -> tuple[Diagnostic, ...]:
    with pytest.raises(DiagnosticError) as caught:
        verify_order(order)
    return caught.value.diagnostics


def edited(order: Order, rank: int, row: list[Row]) -> Order:
    rows = rows_of(order)
    rows[rank] = row
    return order_of(rows, order.rank_of, order.microbatches)


def find_cycle(order: Order) -> tuple[Wait, ...]:
    dependencies = dependencies_of(order)
    return shortest_cycle(dependencies, completed(dependencies))


def assert_is_cycle(order: Order, cycle: tuple[Wait, ...]) -> None:
    """Each step is a data dependency, and leads to the next by the order of a rank."""
    dependencies = dependencies_of(order)
    present = tasks_of(order)
    for step, following in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
        waiting, needed = dependencies.task(step.waiting), dependencies.task(step.needed)
        assert needed in inputs_in(order, present, waiting)
        rank, index = dependencies.place(step.needed)
        next_rank, next_index = dependencies.place(following.waiting)
        assert rank == next_rank
        assert next_index <= index
        assert list(order.tasks(rank))[index] == needed


def test_a_stage_on_a_rank_that_is_not_there() -> None:
    (found,) = refused(replace(gpipe(2, 2), rank_of=(0, 2)))
    assert (found.code, found.message) == (
        "E305",
        "stage 1 is placed on rank 2, but the ranks are 0..2",
    )
    (found,) = refused(replace(gpipe(2, 2), rank_of=(-1, 5)))
    assert found.message == "2 stages are on ranks that do not exist"
    assert len(found.notes) == 2


def test_stages_and_microbatches_that_do_not_exist() -> None:
    order = gpipe(2, 2)
    row = rows_of(order)[0]
    (found,) = refused(edited(order, 0, [*row, (F, 2, 0)]))
    assert found.message == "rank 0 runs F(stage 2, microbatch 0), but the stages are 0..2"
    (found,) = refused(edited(order, 0, [*row, (B, 0, 2)]))
    assert found.message == "rank 0 runs B(stage 0, microbatch 2), but the microbatches are 0..2"
    (found,) = refused(edited(order, 0, [*row, (B, 0, -1)]))
    assert found.code == "E306"


@pytest.mark.parametrize(
    ("schedule", "drop", "message"),
    [
        (gpipe, (F, 1, 0), "rank 1 never runs F(stage 1, microbatch 0)"),
        (gpipe, (B, 1, 1), "rank 1 never runs B(stage 1, microbatch 1), nor I and W in its place"),
        (zb_h1, (I, 1, 1), "rank 1 never runs I(stage 1, microbatch 1), though it runs W of them"),
        (zb_h1, (W, 1, 1), "rank 1 never runs W(stage 1, microbatch 1), though it runs I of them"),
    ],
)
def test_a_missing_operation(schedule, drop: Row, message: str) -> None:
    order = schedule(2, 2)
    (found,) = refused(edited(order, 1, [row for row in rows_of(order)[1] if row != drop]))
    assert (found.code, found.message) == ("E301", message)


def test_many_missing_operations_are_counted() -> None:
    order = replace(gpipe(4, 8), microbatches=9)
    (found,) = refused(order)
    assert (found.code, found.message) == ("E301", "8 operations are missing")
    assert found.notes[0] == "rank 0 never runs F(stage 0, microbatch 8)"
    assert found.notes[-1] == "and 2 more"
    assert len(found.notes) == 7


def test_an_order_far_too_short_is_refused_without_listing() -> None:
    (found,) = refused(replace(gpipe(4, 8), microbatches=2**31 - 1))
    assert found.code == "E301"
    assert "there are 64 operations, but 4 stages and 2147483647" in found.message


def test_a_duplicated_operation() -> None:
    order = gpipe(2, 2)
    row = rows_of(order)[1]
    (found,) = refused(edited(order, 1, [*row, (F, 1, 0)]))
    assert found.code == "E302"
    assert found.message == "F(stage 1, microbatch 0) is there 2 times, on rank 1"


def test_an_operation_on_a_rank_that_does_not_hold_its_stage() -> None:
    order = gpipe(2, 2)
    rows = rows_of(order)
    rows[0].append(rows[1].pop())
    (found,) = refused(order_of(rows, (0, 1), 2))
    assert found.code == "E303"
    assert found.message == "rank 0 runs B(stage 1, microbatch 1), but stage 1 is on rank 1"


def test_several_kinds_come_out_together() -> None:
    order = zb_h1(2, 3)
    rows = rows_of(order)
    rows[0] += [(B, 0, 1), (F, 1, 2), (R, 0, 5)]
    rows[1].remove((F, 1, 0))
    found = refused(order_of(rows, (0, 1), 3))
    assert [d.code for d in found] == ["E306", "E303", "E302", "E304", "E301"]
    assert found[3].message == (
        "stage 0, microbatch 1 has B and I and W: the backward is either B, or I and W"
    )


def test_spans_are_shown() -> None:
    source = Source("mine.sched", "F(r, m)\nB(r, m)\n")
    spans = (Span(source, 1, 1, 1, 8), Span(source, 2, 1, 2, 8))
    tables = (make_table([(B, 0, 0, 1), (F, 0, 0, 0)]),)
    (found,) = refused(Order("mine", 1, 1, (0,), tables, spans))
    assert found.code == "E401"
    assert found.span == spans[1]
    assert [label.span for label in found.labels] == [spans[1], spans[0]]
    text = render([found])
    assert "mine.sched:2:1" in text
    assert "rank 0 runs F(stage 0, microbatch 0) (mine.sched:1) only after B(" in text
    tables = (make_table([(F, 0, 0, 0), (F, 0, 0, 0), (B, 0, 0, 1)]),)
    (found,) = refused(Order("mine", 1, 1, (0,), tables, spans))
    assert (found.code, found.span, found.labels) == ("E302", spans[0], ())


def test_interleaving_in_fixed_groups_deadlocks() -> None:
    """The example of docs/language.md: P = 4, M = 5, V = 3."""
    order = interleaved_in_fixed_groups(4, 5, 3, group=4)
    (found,) = refused(order)
    assert found.code == "E401"
    assert found.message == (
        "the order deadlocks: 4 operations wait for one another, and 55 of 120 never start"
    )
    assert found.notes == (
        "rank 0: F(stage 8, microbatch 4) needs the result of F(stage 7, microbatch 4) from rank 3",
        "rank 3 runs F(stage 7, microbatch 4) only after B(stage 7, microbatch 0), by its order",
        "rank 3: B(stage 7, microbatch 0) needs the result of B(stage 8, microbatch 0) from rank 0",
        "rank 0 runs B(stage 8, microbatch 0) only after F(stage 8, microbatch 4), by its order",
    )
    cycle = find_cycle(order)
    assert_is_cycle(order, cycle)
    assert len(cycle) == reference.shortest_cycle_length(order) == 2
    verify_order(interleaved_in_fixed_groups(4, 8, 3, group=4))
    verify_order(interleaved(4, 5, 3))


def disordered(order: Order, rng: random.Random) -> Order:
    """The same operations in another order, wrong mostly, in one of three ways."""
    rows = rows_of(order)
    way = rng.choice(("shuffled", "forwards first", "interleaved"))
    for row in rows:
        rng.shuffle(row)
        if way == "forwards first":
            row.sort(key=lambda each: (F, R, I, B, W).index(each[0]))
        elif way == "interleaved":  # operations of one stage and microbatch in their right order
            there = set(row)
            turns = {
                (s, m): iter([op for op in (F, R, I, B, W) if (op, s, m) in there])
                for _, s, m in row
            }
            row[:] = [(next(turns[s, m]), s, m) for _, s, m in row]
    return order_of(rows, order.rank_of, order.microbatches)


@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 3), st.integers(1, 6))
@settings(max_examples=300, deadline=None)
def test_the_cycle_is_a_shortest_one(seed: int, P: int, M: int, S: int) -> None:
    order = disordered(random_order(seed, P, M, S), random.Random(seed))
    times = reference.simulate(order, Costs().of_stages(P, S))
    if len(times) == len(order):
        verify_order(order)
        return
    (found,) = refused(order)
    assert found.code == "E401"
    assert f"{len(order) - len(times)} of {len(order)} never start" in found.message
    cycle = find_cycle(order)
    assert_is_cycle(order, cycle)
    assert len(cycle) == reference.shortest_cycle_length(order)


def test_a_cycle_around_all_ranks_of_a_large_order_is_found() -> None:
    """One forward of the last rank's second stage stands before the one it descends from."""
    P, M = 64, 512
    rows = [
        [(F, s, m) for s in (r, P + r) for m in range(M)]
        + [(B, s, m) for s in (P + r, r) for m in range(M)]
        for r in range(P)
    ]
    rank_of = tuple(s % P for s in range(2 * P))
    verify_order(order_of(rows, rank_of, M))
    rows[-1].remove((F, 2 * P - 1, M - 1))
    rows[-1].insert(rows[-1].index((F, P - 1, M - 1)), (F, 2 * P - 1, M - 1))
    order = order_of(rows, rank_of, M)
    cycle = find_cycle(order)
    assert_is_cycle(order, cycle)
    assert len(cycle) == P
    (found,) = refused(order)
    assert len(found.notes) == P + 1


KINDS = ("drop", "duplicate", "swap", "move")


@given(
    st.integers(0, 2**32),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 5),
    st.sampled_from(KINDS),
)
@settings(max_examples=500, deadline=None)
def test_edited_orders_are_refused_or_simulate(
    seed: int, P: int, M: int, S: int, kind: str
) -> None:
    order = random_order(seed, P, M, S)
    rng = random.Random(seed + 1)
    rows = rows_of(order)
    rank = rng.choice([r for r in range(P) if rows[r]])
    at = rng.randrange(len(rows[rank]))
    row = rows[rank]
    if kind == "drop":
        assume(row[at][0] != R)  # an order without an R is another order, and right
        del row[at]
    elif kind == "duplicate":
        row.insert(rng.randrange(len(row)), row[at])
    elif kind == "swap":
        other = rng.randrange(len(row))
        row[at], row[other] = row[other], row[at]
    else:
        assume(P > 1)
        target = rows[(rank + rng.randrange(1, P)) % P]
        target.insert(rng.randrange(len(target) + 1), row.pop(at))
    changed = order_of(rows, order.rank_of, M)
    expected = {"drop": "E301", "duplicate": "E302", "swap": "E401", "move": "E303"}[kind]
    costs = Costs().of_stages(P, S)
    times = reference.simulate(changed, costs) if kind == "swap" else {}
    if kind == "swap" and len(times) == len(changed):
        verify_order(changed)
        timeline = simulate_order(changed, costs)
        assert max(int(end.max(initial=0)) for end in timeline.end) * timeline.tick == max(
            end for _, end in times.values()
        )
    else:
        assert [d.code for d in refused(changed)] == [expected]


def test_every_drop_and_duplicate_of_1f1b_is_refused() -> None:
    order = one_f_one_b(3, 4)
    for rank in range(3):
        for at, row in enumerate(rows_of(order)[rank]):
            rows = rows_of(order)[rank]
            assert refused(edited(order, rank, rows[:at] + rows[at + 1 :]))[0].code == "E301"
            assert refused(edited(order, rank, [row, *rows]))[0].code == "E302"


def test_spans_do_not_change_the_verdict() -> None:
    order = zb_h1(3, 4)
    tables = tuple(table.copy() for table in order.tables)
    for table in tables:
        table[:, SPAN] = 0
    source = Source("mine.sched", "x\n")
    verify_order(replace(order, tables=tables, spans=(Span(source, 1, 1, 1, 2),)))
