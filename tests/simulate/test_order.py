"""The simulator's edges: exactness, refusals, size."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from schedc.diagnostics import DiagnosticError
from schedc.ir.cost import Costs, StageCosts
from schedc.ir.verify import verify_order
from schedc.simulate.critical import critical_path
from schedc.simulate.figures import figures
from schedc.simulate.order import simulate_order
from tests.simulate.orders import (
    B,
    F,
    R,
    gpipe,
    interleaved,
    interleaved_in_fixed_groups,
    one_f_one_b,
    order_of,
    rows_of,
    zb_h1,
)


def test_times_are_exact() -> None:
    costs = Costs(F=Fraction("0.1"), I=Fraction(1, 3), W=Fraction(2, 7)).of_stages(2, 2)
    timeline = simulate_order(gpipe(2, 3), costs)
    assert timeline.tick == Fraction(1, 210)
    assert timeline.end[0].dtype == np.int64
    assert figures(timeline, costs).makespan == 4 * (Fraction(1, 10) + Fraction(13, 21))


def test_messages_take_their_latency_only_between_ranks() -> None:
    order = order_of([[(F, 0, 0), (F, 1, 0), (B, 1, 0), (B, 0, 0)]], (0, 0), 1)
    costs = Costs(comm=Fraction(10)).of_stages(2, 2)
    assert figures(simulate_order(order, costs), costs).makespan == 6
    order = order_of([[(F, 0, 0), (B, 0, 0)], [(F, 1, 0), (B, 1, 0)]], (0, 1), 1)
    found = figures(simulate_order(order, costs), costs)
    assert (found.makespan, found.longest_stage, found.messages) == (26, 26, 2)


def test_recompute_costs_a_forward_and_keeps_nothing_before() -> None:
    row = [(F, 0, 0), (F, 0, 1), (R, 0, 0), (B, 0, 0), (R, 0, 1), (B, 0, 1)]
    order = order_of([row], (0,), 2)
    verify_order(order)
    costs = Costs().of_stages(1, 1)
    found = figures(simulate_order(order, costs), costs)
    assert (found.makespan, found.peak_activations) == (8, (1,))


def test_a_rank_without_stages_and_free_operations() -> None:
    order = order_of([[(F, 0, 0), (B, 0, 0)], []], (0,), 1)
    verify_order(order)
    costs = replace(Costs().of_stages(2, 1), W=(Fraction(0),), I=(Fraction(0),))
    found = figures(simulate_order(order, costs), costs)
    assert found.busy == (2, 0)
    assert found.peak_activations == (2, 0)


def test_costs_that_leave_64_bits_are_refused() -> None:
    primes = (10**9 + 7, 10**9 + 9, 998244353)
    F_, I_, W_ = (Fraction(1, p) for p in primes)
    costs = Costs(F=F_, I=I_, W=W_).of_stages(2, 2)
    with pytest.raises(DiagnosticError) as caught:
        simulate_order(gpipe(2, 2), costs)
    assert [d.code for d in caught.value.diagnostics] == ["E308"]
    comm = Costs(comm=Fraction(2**62)).of_stages(2, 2)
    with pytest.raises(DiagnosticError, match="E308"):
        simulate_order(gpipe(2, 2), comm)


def test_what_cannot_be_timed_is_told_by_the_verifier() -> None:
    costs = Costs().of_stages(4, 12)
    with pytest.raises(DiagnosticError, match="E401"):
        simulate_order(interleaved_in_fixed_groups(4, 5, 3, group=4), costs)
    rows = rows_of(gpipe(2, 2))
    rows[0].reverse()
    with pytest.raises(DiagnosticError, match="E401"):
        simulate_order(order_of(rows, (0, 1), 2), Costs().of_stages(2, 2))
    rows = rows_of(gpipe(2, 2))
    del rows[1][-1]
    with pytest.raises(DiagnosticError, match="E301"):
        simulate_order(order_of(rows, (0, 1), 2), Costs().of_stages(2, 2))


def test_costs_differ_by_stage() -> None:
    """The slow stage of a pipeline sets its pace."""
    one = Fraction(1)
    costs = StageCosts((one, 2 * one), (one, 2 * one), (one, 2 * one), Fraction(0), (one, one))
    found = figures(simulate_order(one_f_one_b(2, 8), costs), costs)
    assert found.makespan == 8 * 6 + 3
    assert found.busy == (24, 48)


def test_the_critical_path_of_1f1b_goes_down_steady_and_up() -> None:
    costs = Costs().of_stages(3, 3)
    order = one_f_one_b(3, 4)
    path = critical_path(simulate_order(order, costs), costs)
    assert [rank for rank, _ in path] == [0, 1, *[2] * 8, 1, 0]


def test_a_large_order() -> None:
    order = interleaved(64, 512, 2)
    assert len(order) == 131_072
    costs = Costs().of_stages(64, 128)
    verify_order(order)
    timeline = simulate_order(order, costs)
    found = figures(timeline, costs)
    assert found.makespan == 3 * 512 + Fraction(3 * 63, 2)
    assert max(found.peak_activations) == Fraction(191, 2)


def test_simulation_does_not_depend_on_what_ran_before() -> None:
    costs = Costs(comm=Fraction(1, 10)).of_stages(4, 4)
    first, second = (simulate_order(zb_h1(4, 7), costs) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first.start, second.start, strict=True))
