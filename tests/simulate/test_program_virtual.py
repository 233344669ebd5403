"""The virtual clock equals the simulator: every instruction's end, whoever moves first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from schedc.ir.cost import Costs
from schedc.ir.order import Order
from schedc.program.abstract import abstract_durations
from schedc.runtime.transports.virtual import run_virtual
from schedc.simulate.program import simulate_programs
from tests.program.programs import MADE, SCHEDULES, compiled
from tests.simulate.orders import gpipe, interleaved, one_f_one_b, zb_h1
from tests.simulate.test_program import COSTS, programs_of

ORDERS = [
    order
    for P in (1, 2, 4)
    for M in (1, 3, 8)
    for order in (gpipe(P, M), one_f_one_b(P, M), zb_h1(P, M), interleaved(P, M, 2))
]


@pytest.mark.parametrize(
    ("tied", "frozen"),
    [(True, ()), (False, ("embedding", "layers.0")), (True, ("layers.1",))],
    ids=["tied", "frozen", "both"],
)
@pytest.mark.parametrize("schedule", [*SCHEDULES, "v_shaped"])
def test_so_it_is_where_gradients_are_tied_or_absent(
    schedule: str, tied: bool, frozen: tuple[str, ...]
) -> None:
    programs, model = compiled(schedule, 3, 4, 2, tied, frozen)
    costs = COSTS["slow links"].of_stages(3, sum(len(p.stages) for p in programs))
    durations = replace(
        abstract_durations(costs, 3),
        reduce={unit.name: 3 + 7 * i for i, unit in enumerate(model.units)},
        count=11,
        norm=5,
        tie=23,
        step=(3, 4, 5),
    )
    expected = simulate_programs(programs, durations)
    for seed in (None, 1, 2):
        found = run_virtual(programs, durations, seed)
        for ends, row_ends in zip(expected.end, found.row_end, strict=True):
            assert np.array_equal(ends, row_ends)
    ties = [sum_ for sums in expected.sums for sum_ in sums if sum_.name == "tie"]
    if not tied or schedule in ("v_shaped", *MADE):  # a V has both ends on one rank
        assert not ties
        return
    first, last = ties
    assert first.posted != last.posted
    assert first.start == last.start == max(first.posted, last.posted)
    assert first.end == last.end == first.start + 23


@pytest.mark.parametrize("costs", COSTS.values(), ids=COSTS)
@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("order", ORDERS, ids=lambda o: f"{o.name}-{o.ranks}-{o.microbatches}")
def test_every_instruction_ends_when_the_simulator_says(
    order: Order, seed: int | None, costs: Costs
) -> None:
    programs = programs_of(order, costs, reduced=True)
    durations = abstract_durations(costs.of_stages(order.ranks, order.stages), order.ranks)
    units = [unit for program in programs for unit in program.units]
    durations = replace(
        durations,
        reduce={unit: 3 + 7 * i for i, unit in enumerate(units)},
        count=11,
        norm=5,
        report=2,
        step=tuple(range(3, 3 + order.ranks)),
    )
    expected = simulate_programs(programs, durations)
    found = run_virtual(programs, durations, seed)
    for ends, row_ends in zip(expected.end, found.row_end, strict=True):
        assert np.array_equal(ends, row_ends)
