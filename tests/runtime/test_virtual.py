"""The virtual transport: exact times, whoever moves first; hangs are found exactly."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from schedc.ir.cost import Costs
from schedc.ir.order import Order
from schedc.ir.timeline import Timeline
from schedc.passes.pipeline import compile_programs
from schedc.program.abstract import abstract_durations, abstract_model
from schedc.program.instructions import CODE, QUEUE, SEQUENCE, Code, Stream
from schedc.program.program import Programs
from schedc.runtime.transports.interface import Hang
from schedc.runtime.transports.virtual import Misdelivered, run_virtual
from schedc.simulate.order import simulate_order
from tests.runtime.builds import order_of

COSTS = {
    "unit": Costs(),
    "uneven": Costs(F=Fraction(1), I=Fraction(3, 2), W=Fraction(1, 3), comm=Fraction(1, 7)),
}


def compiled(order: Order, costs: Costs) -> tuple[Timeline, Programs]:
    timeline = simulate_order(order, costs.of_stages(order.ranks, order.stages))
    model, partition = abstract_model(order.stages)
    return timeline, compile_programs(timeline, model, partition)


@pytest.mark.parametrize("costs", COSTS.values(), ids=COSTS)
@pytest.mark.parametrize("microbatches", [1, 3, 8, 13])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("schedule", ["gpipe", "one_f_one_b", "interleaved", "zb_h1"])
def test_every_run_starts_and_ends_as_simulated(
    schedule: str, ranks: int, microbatches: int, costs: Costs
) -> None:
    order = order_of(schedule, ranks, microbatches)
    timeline, programs = compiled(order, costs)
    durations = abstract_durations(costs.of_stages(ranks, order.stages), ranks)
    for seed in (None, 1, 2):
        run = run_virtual(programs, durations, seed)
        for rank in range(ranks):
            assert np.array_equal(run.start[rank], timeline.start[rank])
            assert np.array_equal(run.end[rank], timeline.end[rank])


def test_a_hang_is_found_and_says_who_waits_for_what() -> None:
    """Rank 1 receives its first activation on the wrong queue, so neither can go on."""
    order = order_of("one_f_one_b", 2, 2)
    _, programs = compiled(order, Costs())
    stream = programs[1].stream
    codes = stream.table[:, CODE].tolist()
    first_receive = codes.index(Code.RECV)
    table = stream.table.copy()
    table[first_receive, QUEUE] = 1 - table[first_receive, QUEUE]
    changed = Stream(table, stream.operands, stream.units, stream.places)
    broken = (programs[0], replace(programs[1], stream=changed))
    durations = abstract_durations(Costs().of_stages(2, 2), 2)
    with pytest.raises(Hang) as caught:
        run_virtual(broken, durations)
    waits = str(caught.value)
    assert "rank 0 waits for row" in waits
    assert "rank 1 waits for row" in waits
    assert "one_f_one_b.sched:" in waits


def test_swapped_messages_are_noticed() -> None:
    order = order_of("gpipe", 2, 2)
    _, programs = compiled(order, Costs())
    stream = programs[1].stream
    table = stream.table.copy()
    receives = np.flatnonzero(table[:, CODE] == Code.RECV)
    first, second = receives[:2]
    keep = table[first, SEQUENCE], table[second, SEQUENCE]
    table[[first, second]] = table[[second, first]]
    table[first, SEQUENCE], table[second, SEQUENCE] = keep
    changed = Stream(table, stream.operands, stream.units, stream.places)
    with pytest.raises(Misdelivered):
        run_virtual(
            (programs[0], replace(programs[1], stream=changed)),
            abstract_durations(Costs().of_stages(2, 2), 2),
        )


def test_64_ranks_of_64_microbatches() -> None:
    order = order_of("zb_h1", 64, 64)
    timeline, programs = compiled(order, Costs())
    run = run_virtual(programs, abstract_durations(Costs().of_stages(64, 64), 64))
    assert max(run.step_end) == max(int(end[-1]) for end in timeline.end)
