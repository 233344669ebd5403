"""What each rank keeps over time, in activation units."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from schedc.ir.cost import StageCosts
from schedc.ir.dependencies import Column, dependencies_of
from schedc.ir.order import Op, Order
from schedc.simulate.ticks import in_ticks, per_operation, tick_of


def kept(order: Order, costs: StageCosts) -> tuple[Fraction, tuple[Column, ...]]:
    """What each rank keeps after the start and after the end of each of its operations.

    Returns a unit, and for each rank an array [operations, 2] of multiples of it. F adds the
    stage's ``units`` at its start; B frees them at its end; I frees the share ``mem_I`` at its end
    and W the rest. An F whose stage and microbatch has an R keeps nothing beyond its end (its input
    counts as nothing), and R adds at its start what the backward frees. Of two operations in one
    slot the first shows what both add, the second what is left after both.
    """
    by_input = [amount * costs.mem_I for amount in costs.units]
    unit = tick_of((*costs.units, *by_input))
    whole, by_input = in_ticks(costs.units, unit), in_ticks(by_input, unit)
    nothing = [0] * order.stages
    starts = {Op.F: whole, Op.R: whole}
    ends = {
        Op.B: [-amount for amount in whole],
        Op.I: [-amount for amount in by_input],
        Op.W: [part - amount for part, amount in zip(by_input, whole, strict=True)],
    }
    dependencies = dependencies_of(order)
    deltas = np.stack(
        [
            per_operation([change.get(op, nothing) for op in Op], dependencies, "units")
            for change in (starts, ends)
        ],
        axis=1,
    )
    recomputed = dependencies.own[dependencies.op == Op.R]
    deltas[recomputed, 1] = -deltas[recomputed, 0]
    # In a slot of two, both add at its start before either frees at its end.
    firsts, seconds = dependencies.pairs, dependencies.pairs + 1
    deltas[firsts, 0] += deltas[seconds, 0]
    deltas[seconds, 1] += deltas[firsts, 1]
    deltas[firsts, 1] = deltas[seconds, 0] = 0
    by_rank = np.split(deltas, dependencies.first[1:-1])
    return unit, tuple(np.cumsum(part.reshape(-1)).reshape(-1, 2) for part in by_rank)
