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
from tests.simulate.orders import gpipe, interleaved, one_f_one_b, zb_h1
from tests.simulate.test_program import COSTS, programs_of

ORDERS = [
    order
    for P in (1, 2, 4)
    for M in (1, 3, 8)
    for order in (gpipe(P, M), one_f_one_b(P, M), zb_h1(P, M), interleaved(P, M, 2))
]


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
