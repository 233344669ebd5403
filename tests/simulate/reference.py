"""A slow simulator and a slow cycle search, written from the definitions, to compare with."""

from __future__ import annotations

from collections import deque
from fractions import Fraction

from schedc.ir.cost import StageCosts
from schedc.ir.order import Op, Order, Task
from tests.simulate.orders import inputs_in, tasks_of

Times = dict[Task, tuple[Fraction, Fraction]]


def duration(task: Task, costs: StageCosts) -> Fraction:
    s = task.stage
    return {
        Op.F: costs.F[s],
        Op.B: costs.I[s] + costs.W[s],
        Op.I: costs.I[s],
        Op.W: costs.W[s],
        Op.R: costs.F[s],
    }[task.op]


def simulate(order: Order, costs: StageCosts) -> Times:
    """Start and end of every operation that ever starts."""
    present = tasks_of(order)
    ranks = [list(order.tasks(r)) for r in range(order.ranks)]
    times: Times = {}
    advanced = True
    while advanced:
        advanced = False
        for rank, tasks in enumerate(ranks):
            done = sum(t in times for t in tasks)
            if done == len(tasks):
                continue
            task = tasks[done]
            inputs = inputs_in(order, present, task)
            if any(i not in times for i in inputs):
                continue
            free = times[tasks[done - 1]][1] if done else Fraction(0)
            arrivals = [
                times[i][1] + (costs.comm if order.rank_of[i.stage] != rank else 0) for i in inputs
            ]
            start = max([free, *arrivals])
            times[task] = start, start + duration(task, costs)
            advanced = True
    return times


def peaks(order: Order, costs: StageCosts, times: Times) -> tuple[Fraction, ...]:
    """The largest sum of activations on each rank, by replaying all changes in time."""
    present = tasks_of(order)
    found: list[Fraction] = []
    for rank in range(order.ranks):
        changes: list[tuple[Fraction, int, Fraction]] = []  # frees before adds at equal times
        for task in order.tasks(rank):
            start, end = times[task]
            unit = costs.units[task.stage]
            if task.op in (Op.F, Op.R):
                changes.append((start, 1, unit))
            if task.op is Op.F and Task(Op.R, task.stage, task.microbatch) in present:
                changes.append((end, 0, -unit))
            share = {Op.B: Fraction(1), Op.I: costs.mem_I, Op.W: 1 - costs.mem_I}.get(task.op)
            if share is not None:
                changes.append((end, 0, -unit * share))
        held, peak = Fraction(0), Fraction(0)
        for _, _, change in sorted(changes):
            held += change
            peak = max(peak, held)
        assert held == 0
        found.append(peak)
    return tuple(found)


def shortest_cycle_length(order: Order) -> int:
    """The fewest data dependencies on any cycle, by a search from every operation."""
    present = tasks_of(order)
    place = {t: (r, i) for r in range(order.ranks) for i, t in enumerate(order.tasks(r))}
    best = len(present)
    for origin in place:
        distance = {origin: 0}
        queue = deque([origin])
        while queue:
            task = queue.popleft()
            rank, index = place[task]
            earlier = [t for t, (r, i) in place.items() if r == rank and i < index]
            for weight, targets in ((0, earlier), (1, inputs_in(order, present, task))):
                for target in targets:
                    steps = distance[task] + weight
                    if target == origin:
                        best = min(best, steps)
                    elif steps < distance.get(target, best):
                        distance[target] = steps
                        (queue.append if weight else queue.appendleft)(target)
    return best
