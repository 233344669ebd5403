"""Figures of the published schedules against values known beforehand."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path

import pytest

from schedc.ir.cost import Costs
from schedc.ir.order import Order
from schedc.ir.timeline import Figures
from schedc.ir.verify import verify_order
from schedc.simulate.figures import figures
from schedc.simulate.order import simulate_order
from tests.simulate.orders import gpipe, interleaved, one_f_one_b, zb_h1

GRID = json.loads((Path(__file__).parent.parent / "data" / "schedules_grid.json").read_text())
GENERATORS: dict[str, Callable[[int, int], Order]] = {
    "one_f_one_b": one_f_one_b,
    "zb_h1": zb_h1,
    "interleaved(V=2)": partial(interleaved, V=2),
    "interleaved(V=4)": partial(interleaved, V=4),
}
BACKWARD_2 = Costs()  # F = 1, I + W = 2


def measure(order: Order, costs: Costs) -> Figures:
    verify_order(order)
    stage_costs = costs.of_stages(order.ranks, order.stages)
    return figures(simulate_order(order, stage_costs), stage_costs)


@pytest.mark.parametrize("schedule", [gpipe, one_f_one_b])
@pytest.mark.parametrize(
    ("P", "M", "makespan"), [(2, 1, 6), (2, 3, 12), (4, 2, 15), (4, 4, 21), (4, 8, 33), (3, 5, 21)]
)
def test_gpipe_and_1f1b_take_equally_long(schedule, P: int, M: int, makespan: int) -> None:
    found = measure(schedule(P, M), BACKWARD_2)
    assert found.makespan == makespan == 3 * (M + P - 1)
    assert found.bubble == 3 * (P - 1)
    peak = (lambda r: M) if schedule is gpipe else (lambda r: min(P - r, M))
    assert found.peak_activations == tuple(peak(r) for r in range(P))
    assert found.messages == 2 * (P - 1) * M


@pytest.mark.parametrize("P", range(1, 9))
@pytest.mark.parametrize("V", range(1, 5))
def test_interleaving_divides_the_bubble(P: int, V: int) -> None:
    """Narayanan et al. 2021 (2104.04473), section 2.2, here for any number of microbatches."""
    for M in range(P, 41):
        found = measure(interleaved(P, M, V), BACKWARD_2)
        assert found.makespan == 3 * M + Fraction(3 * (P - 1), V)
        assert found.lower_bound == 3 * M


@pytest.mark.parametrize("P", range(1, 9))
def test_zb_h1_has_a_third_of_the_bubble_in_the_same_memory(P: int) -> None:
    """Qi et al. 2023 (2401.10241), table 1: with F = I = W its bubble is (P - 1) of them."""
    for M in range(1, 41):
        found = measure(zb_h1(P, M), Costs())
        assert max(found.peak_activations) <= P
        if M >= P:
            assert found.makespan == 3 * M + P - 1


def test_the_example_of_the_documentation() -> None:
    found = measure(zb_h1(4, 8), Costs())
    assert (found.makespan, found.longest_stage, found.lower_bound, found.bubble) == (27, 27, 24, 3)
    assert found.bubble_rate == found.bubble_rate_longest_stage == Fraction(1, 9)
    # Rank r holds P - 1 - r forwards, one more, and half of each of the r it owes a W.
    assert found.peak_activations == (4, Fraction(7, 2), 3, Fraction(5, 2))
    assert found.messages == 48


def test_fewer_microbatches_than_ranks() -> None:
    for M in range(1, 4):
        for order in (gpipe(4, M), one_f_one_b(4, M), zb_h1(4, M), interleaved(4, M, 3)):
            assert max(measure(order, Costs()).peak_activations) <= M


@pytest.mark.parametrize("schedule", GENERATORS)
def test_figures_of_the_reference_grid(schedule: str) -> None:
    rows = [row for row in GRID["rows"] if row["schedule"] == schedule]
    assert len(rows) == 48  # P = 2 and 4, four M each, six cost vectors
    for row in rows:
        P, M = row["P"], row["M"]
        order = GENERATORS[schedule](P, M)
        costs = Costs(*(Fraction(str(row[key])) for key in ("F", "I", "W", "comm")))
        found = measure(order, costs)
        assert M % P == 0, "where P does not divide M, interleaved may only be shorter"
        assert float(found.makespan) == row["makespan"], row
        assert float(found.longest_stage) == row["longest_stage"], row
        assert float(max(found.peak_activations)) == row["peak_activations"], row
        assert round(float(found.bubble_rate), 6) == row["bubble_rate"], row
        rate = round(float(found.bubble_rate_longest_stage), 6)
        assert rate == row["bubble_rate_longest_stage"], row
