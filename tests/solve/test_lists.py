"""What list scheduling, hole filling and patterns promise, on random problems."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from schedc.ir.cost import Costs, StageCosts
from schedc.ir.order import Op, Order
from schedc.ir.verify import verify_order
from schedc.simulate.figures import figures
from schedc.simulate.order import simulate_order
from schedc.solve.greedy import Preference, Tie, list_schedule
from schedc.solve.holes import fill_holes
from schedc.solve.lookahead import look_ahead
from schedc.solve.pattern import Pattern, Slot, draw_together, lay_out
from schedc.solve.problem import BACKWARD, FORWARD, WEIGHT, Lists, Problem, make_problem
from schedc.solve.timing import peaks, score
from tests.simulate.orders import inputs_in, tasks_of

PLACEMENTS = {
    "straight": lambda P: tuple(range(P)),
    "V": lambda P: (*range(P), *reversed(range(P))),
    "looped": lambda P: tuple(range(P)) * 2,
}


def random_problem(pick: random.Random, split: bool, limited: bool) -> tuple[Problem, StageCosts]:
    """Up to 5 ranks and 9 microbatches; stages cost different times."""
    P, M = pick.randint(1, 5), pick.randint(1, 9)
    rank_of = PLACEMENTS[pick.choice(list(PLACEMENTS))](P)
    S = len(rank_of)

    def column() -> tuple[Fraction, ...]:
        return tuple(Fraction(pick.randint(1, 9), pick.choice((2, 3))) for _ in range(S))

    comm = Fraction(pick.randint(0, 4), 4)
    mem_I = Fraction(pick.randint(0, 4), 4)
    costs = StageCosts(column(), column(), column(), comm, (Fraction(P, S),) * S, mem_I)
    limits = [Fraction(pick.randint(2 * P, 4 * P), 2) + 1] * P if limited else None
    return make_problem(P, M, rank_of, costs, split=split, limits=limits), costs


def random_preference(pick: random.Random, problem: Problem) -> Preference:
    kinds = list(problem.kinds)
    pick.shuffle(kinds)
    ties = [Tie(*(pick.random() < 0.6 for _ in range(3))) for _ in range(3)]
    return Preference(tuple(kinds), (ties[0], ties[1], ties[2]), pick.randint(0, 2))


def order_of(problem: Problem, lists: Lists) -> Order:
    spans = [-1] * (len(problem.kinds) * problem.stages)
    tables = tuple(problem.table(line, spans) for line in lists)
    return Order("made", problem.ranks, problem.microbatches, problem.rank_of, tables)


@pytest.mark.parametrize("seed", range(150))
def test_no_rank_idles_while_something_allowed_is_ready(seed: int) -> None:
    """Every idle time ends with the first arrival of something that may run."""
    pick = random.Random(seed)
    problem, costs = random_problem(pick, pick.random() < 0.7, pick.random() < 0.5)
    preference = random_preference(pick, problem)
    listing = list_schedule(problem, preference)
    if not listing.complete:
        assert problem.limits is not None
        assert any(listing.blocked)
        return
    order = order_of(problem, listing.lists)
    verify_order(order)
    timeline = simulate_order(order, costs)
    present, units = tasks_of(order), costs.units
    ends = {
        task: (int(end), rank)
        for rank in range(problem.ranks)
        for task, end in zip(order.tasks(rank), timeline.end[rank], strict=True)
    }
    latency = costs.comm / timeline.tick
    for rank in range(problem.ranks):
        tasks = list(order.tasks(rank))
        arrivals = [
            max((ends[i][0] + latency * (ends[i][1] != rank) for i in inputs_in(order, present, t)),
                default=Fraction(0))
            for t in tasks
        ]  # fmt: skip
        kept, last = Fraction(0), order.stages_of[rank][-1]
        for index, task in enumerate(tasks):
            free = int(timeline.end[rank][index - 1]) if index else 0
            start = int(timeline.start[rank][index])
            for later, arrival in zip(tasks[index:], arrivals[index:], strict=True):
                if start > free and arrival <= free:
                    reserve = preference.reserve * units[last] if later.stage != last else 0
                    assert later.op is Op.F
                    assert problem.limits is not None
                    limit = problem.limits[rank] * problem.memory_unit
                    assert kept + units[later.stage] + reserve > limit
            kept += _change(task.op, units[task.stage], costs.mem_I)
            assert problem.limits is None or kept <= problem.limits[rank] * problem.memory_unit


def _change(op: Op, unit: Fraction, mem_I: Fraction) -> Fraction:
    return {Op.F: unit, Op.B: -unit, Op.I: -unit * mem_I, Op.W: -unit * (1 - mem_I)}[op]


@pytest.mark.parametrize("seed", range(60))
def test_lookahead_is_never_worse_than_the_policy_itself(seed: int) -> None:
    pick = random.Random(seed)
    problem, costs = random_problem(pick, seed % 3 > 0, seed % 2 == 0)
    preference = random_preference(pick, problem)
    plain, best = list_schedule(problem, preference), look_ahead(problem, preference)
    if best is None:
        assert not plain.complete
        return
    order = order_of(problem, best)
    verify_order(order)
    found = figures(simulate_order(order, costs), costs)
    if problem.limits is not None:
        assert max(found.peak_activations) <= max(problem.limits) * problem.memory_unit
    if plain.complete:
        theirs = order_of(problem, plain.lists)
        assert found.makespan <= figures(simulate_order(theirs, costs), costs).makespan
    assert best == look_ahead(problem, preference)  # the same order each time


@pytest.mark.parametrize("seed", range(60))
def test_scores_are_the_simulators_figures(seed: int) -> None:
    pick = random.Random(seed)
    problem, costs = random_problem(pick, seed % 2 == 0, limited=False)
    lists = list_schedule(problem, random_preference(pick, problem)).lists
    value = score(problem, lists)
    assert value is not None
    timeline = simulate_order(order_of(problem, lists), costs)
    found = figures(timeline, costs)
    tick = found.makespan / value.makespan
    assert value.longest_stage * tick == found.longest_stage
    assert value.peak * problem.memory_unit == max(found.peak_activations)


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("threshold", [0, 6, 10, 1000])
def test_holes_take_weight_gradients_in_the_order_they_are_owed(seed: int, threshold: int) -> None:
    pick = random.Random(seed)
    problem, _ = random_problem(pick, True, seed % 2 == 0)
    preference = Preference((BACKWARD, FORWARD), reserve=1)
    skeleton = list_schedule(problem.without_weights(10, problem.latency), preference).lists
    lists = fill_holes(problem, skeleton, threshold)
    assert lists is not None
    verify_order(order_of(problem, lists))
    size = problem.stages * problem.microbatches
    for line, bones in zip(lists, skeleton, strict=True):
        assert [operation for operation in line if operation < WEIGHT * size] == bones
        owed = [operation + size for operation in bones if operation >= BACKWARD * size]
        assert [operation for operation in line if operation >= WEIGHT * size] == owed
    if problem.limits is not None:
        assert max(peaks(problem, lists)) <= max(problem.limits)
    elif threshold == 1000:  # No hole is that large, so the weight gradients come last.
        assert all(
            max(line[: len(bones)], default=0) < WEIGHT * size
            for line, bones in zip(lists, skeleton, strict=True)
        )


def test_a_deadlocked_order_has_no_score() -> None:
    problem, _ = _straight(2, 1)
    assert score(problem, [[0, 2], [3, 1]]) is None  # rank 1 runs B(1) before F(1)


def _straight(P: int, M: int) -> tuple[Problem, StageCosts]:
    costs = Costs().of_stages(P, P)
    return make_problem(P, M, tuple(range(P)), costs, split=False), costs


# ---- patterns -----------------------------------------------------------------------------------


def test_the_pattern_of_1f1b_is_1f1b() -> None:
    """The building block of 1F1B (2405.15362): F every two slots on its way down, B up again."""
    P, M = 4, 6
    problem, _ = _straight(P, M)
    slots = tuple((Slot(FORWARD, r, r), Slot(BACKWARD, r, 2 * P - 1 - r)) for r in range(P))
    lists = lay_out(problem, Pattern(2, slots, in_holes=False))
    warmup = [min(P - 1 - r, M) for r in range(P)]
    for r, line in enumerate(lists):
        forwards = [r * M + m for m in range(M)]
        backwards = [(P + r) * M + m for m in range(M)]
        expected = forwards[: warmup[r]]
        for m in range(M):
            expected += forwards[warmup[r] + m : warmup[r] + m + 1] + backwards[m : m + 1]
        assert line == expected


@pytest.mark.parametrize("seed", range(40))
def test_drawing_together_keeps_the_patterns_memory(seed: int) -> None:
    """A random pattern: any distances between its operations that their dependencies allow."""
    pick = random.Random(seed)
    P, M = pick.randint(1, 4), pick.randint(1, 8)
    rank_of = PLACEMENTS[pick.choice(list(PLACEMENTS))](P)
    S, split = len(rank_of), pick.random() < 0.7
    costs = Costs(*(Fraction(pick.randint(1, 8), 4) for _ in range(4)))
    stage_costs = costs.of_stages(P, S)
    problem = make_problem(P, M, rank_of, stage_costs, split=split)
    held = S // P
    period = (3 if split else 2) * held + pick.randint(0, 3)
    slots = _random_slots(pick, rank_of, period)
    pattern = Pattern(period, slots, in_holes=split)
    laid, drawn = lay_out(problem, pattern), draw_together(problem, pattern)
    order = order_of(problem, drawn)
    verify_order(order)
    verify_order(order_of(problem, laid))
    assert all(a <= b for a, b in zip(peaks(problem, drawn), peaks(problem, laid), strict=True))
    before, after = score(problem, laid), score(problem, drawn)
    assert before is not None
    assert after is not None
    assert after.makespan <= before.makespan


def _random_slots(
    pick: random.Random, rank_of: tuple[int, ...], period: int
) -> tuple[tuple[Slot, ...], ...]:
    """Slots for F and the backward of each stage, distinct modulo the period on each rank."""
    found: list[list[Slot]] = [[] for _ in range(max(rank_of) + 1)]
    at = -1
    way = [(FORWARD, s) for s in range(len(rank_of))]
    way += [(BACKWARD, s) for s in reversed(range(len(rank_of)))]
    for kind, stage in way:
        taken = {slot.offset % period for slot in found[rank_of[stage]]}
        at += pick.randint(1, 3)
        while at % period in taken:
            at += 1
        found[rank_of[stage]].append(Slot(kind, stage, at))
    return tuple(map(tuple, found))
