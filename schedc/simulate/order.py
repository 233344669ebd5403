"""Event simulation of an order: when every operation starts and ends, exactly."""

from __future__ import annotations

import numpy as np

from schedc.ir.cost import StageCosts
from schedc.ir.dependencies import Column, Dependencies, dependencies_of
from schedc.ir.order import Order
from schedc.ir.timeline import Timeline
from schedc.ir.verify import verify_order
from schedc.simulate.ticks import in_ticks, per_operation, require_64_bits, table_of, tick_of


def simulate_order(order: Order, costs: StageCosts) -> Timeline:
    """Every operation's start and end under ``costs``, in whole ticks (E308 if too fine).

    An operation starts when its rank is free and its inputs are there; an input from another rank
    is there at its producer's end + comm, one from the same rank at its end. Posting never delays.

    *Contract.* ``order`` is one that :func:`verify_order` accepts; of another one that cannot be
    timed, its diagnostics are raised. Linear in the number of operations.
    """
    assert len(costs.F) == order.stages, "costs are given for each stage"
    assert min(*costs.F, *costs.I, *costs.W, costs.comm) >= 0, "costs are not negative"
    dependencies = dependencies_of(order)
    if dependencies.lacks_input or _runs_backwards(dependencies):
        raise _rejected(order)
    tick = tick_of((*costs.F, *costs.I, *costs.W, costs.comm))
    durations = per_operation(table_of(costs, tick), dependencies, "costs")
    (comm,) = in_ticks((costs.comm,), tick)
    source = np.where(dependencies.crosses, dependencies.neighbour, -1)
    require_64_bits(int(durations.sum()) + comm * int((source >= 0).sum()), "costs")

    start, end = _times(dependencies.first.tolist(), source.tolist(), durations.tolist(), comm)
    if -1 in end:
        raise _rejected(order)
    cuts = dependencies.first[1:-1]
    return Timeline(
        order,
        tick,
        tuple(np.split(np.array(start, dtype=np.int64), cuts)),
        tuple(np.split(np.array(end, dtype=np.int64), cuts)),
    )


def _runs_backwards(dependencies: Dependencies) -> bool:
    """Some rank runs an operation before one of its own that it needs."""
    nodes = np.arange(len(dependencies))
    inputs: tuple[Column, ...] = (dependencies.own, dependencies.neighbour)
    return any(
        bool(((needed >= nodes) & (dependencies.rank[needed] == dependencies.rank)).any())
        for needed in inputs
    )


def _rejected(order: Order) -> AssertionError:
    """Raises what is wrong with ``order``."""
    verify_order(order)
    return AssertionError("the verifier accepts an order that cannot be timed")


def _times(
    first: list[int], source: list[int], durations: list[int], comm: int
) -> tuple[list[int], list[int]]:
    """Starts and ends of all operations; -1 for those that never start.

    ``source[n]`` is the operation on another rank that n needs, or -1. A rank runs until it needs
    what is not there yet, and goes on once its producer has run.
    """
    ranks = len(first) - 1
    start, end = [-1] * len(source), [-1] * len(source)
    waiter = [-1] * len(source)  # the rank that waits for an operation: never more than one
    cursor, clock = first[:-1], [0] * ranks
    runnable = list(range(ranks))
    while runnable:
        rank = runnable.pop()
        now, stop = clock[rank], first[rank + 1]
        for node in range(cursor[rank], stop):
            producer = source[node]
            if producer >= 0:
                if end[producer] < 0:
                    waiter[producer] = rank
                    stop = node
                    break
                now = max(now, end[producer] + comm)
            start[node] = now
            now += durations[node]
            end[node] = now
            if waiter[node] >= 0:
                runnable.append(waiter[node])
        cursor[rank], clock[rank] = stop, now
    return start, end
