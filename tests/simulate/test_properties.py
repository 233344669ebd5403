"""Properties of the simulation of random legal orders, against a slow simulator."""

from __future__ import annotations

import random
from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from schedc.ir.cost import StageCosts
from schedc.ir.order import Order
from schedc.ir.timeline import Timeline
from schedc.ir.verify import verify_order
from schedc.simulate.critical import critical_path
from schedc.simulate.figures import figures
from schedc.simulate.order import simulate_order
from tests.simulate import reference
from tests.simulate.orders import inputs_in, random_order, tasks_of


def random_case(seed: int, P: int, M: int, S: int) -> tuple[Order, StageCosts]:
    """A legal order with costs of its stages, all exact fractions."""
    rng = random.Random(seed)
    F, I, W, units = (  # noqa: E741
        tuple(Fraction(rng.randint(1, 24), rng.randint(1, 12)) for _ in range(S)) for _ in range(4)
    )
    comm = Fraction(rng.randint(0, 6), rng.randint(1, 6))
    share = Fraction(rng.randint(0, 4), 4)
    return random_order(seed, P, M, S), StageCosts(F, I, W, comm, units, share)


cases = st.builds(
    random_case, st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 5), st.integers(1, 6)
)


def times_of(timeline: Timeline) -> reference.Times:
    order, tick = timeline.order, timeline.tick
    return {
        task: (int(timeline.start[r][i]) * tick, int(timeline.end[r][i]) * tick)
        for r in range(order.ranks)
        for i, task in enumerate(order.tasks(r))
    }


@given(cases)
@settings(max_examples=300, deadline=None)
def test_times_and_figures_equal_the_slow_simulator(case: tuple[Order, StageCosts]) -> None:
    order, costs = case
    verify_order(order)
    timeline = simulate_order(order, costs)
    times = reference.simulate(order, costs)
    assert times_of(timeline) == times

    found = figures(timeline, costs)
    assert found.makespan == max(end for _, end in times.values())
    assert found.makespan >= found.longest_stage >= found.lower_bound
    assert found.busy == tuple(
        sum((reference.duration(t, costs) for t in order.tasks(r)), Fraction(0))
        for r in range(order.ranks)
    )
    assert found.peak_activations == reference.peaks(order, costs, times)
    present = tasks_of(order)
    assert found.messages == sum(
        order.rank_of[i.stage] != order.rank_of[t.stage]
        for t in present
        for i in inputs_in(order, present, t)
    )


@given(cases)
@settings(max_examples=200, deadline=None)
def test_every_operation_starts_as_early_as_it_can(case: tuple[Order, StageCosts]) -> None:
    order, costs = case
    times = times_of(simulate_order(order, costs))
    present = tasks_of(order)
    for rank in range(order.ranks):
        free = Fraction(0)
        for task in order.tasks(rank):
            arrivals = [
                times[i][1] + (costs.comm if order.rank_of[i.stage] != rank else 0)
                for i in inputs_in(order, present, task)
            ]
            assert times[task][0] == max([free, *arrivals])
            free = times[task][1]


@given(cases)
@settings(max_examples=200, deadline=None)
def test_the_critical_path_has_no_slack(case: tuple[Order, StageCosts]) -> None:
    order, costs = case
    timeline = simulate_order(order, costs)
    times = times_of(timeline)
    tasks = [list(order.tasks(rank)) for rank in range(order.ranks)]
    path = critical_path(timeline, costs)
    now, before = Fraction(0), None
    for rank, index in path:
        task = tasks[rank][index]
        if before is not None and before != (rank, index - 1):
            producer = tasks[before[0]][before[1]]
            assert producer in inputs_in(order, tasks_of(order), task)
            now += costs.comm if before[0] != rank else 0
        assert times[task][0] == now
        now, before = times[task][1], (rank, index)
    assert now == figures(timeline, costs).makespan
