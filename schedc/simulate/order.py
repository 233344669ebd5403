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
    The two operations of a slot wait for the inputs of both, start and end together, and take the
    share ``costs.overlap`` of their sum, never less than the longer one.

    *Contract.* ``order`` is one that :func:`verify_order` accepts; of another one that cannot be
    timed, its diagnostics are raised. Linear in the number of operations.
    """
    assert len(costs.F) == order.stages, "costs are given for each stage"
    assert min(*costs.F, *costs.I, *costs.W, costs.comm) >= 0, "costs are not negative"
    dependencies = dependencies_of(order)
    if dependencies.lacks_input or _runs_backwards(dependencies):
        raise _rejected(order)
    times = (*costs.F, *costs.I, *costs.W, costs.comm)
    tick = tick_of(times)
    if order.pairs:
        tick = tick_of((tick, tick * costs.overlap))
    durations = per_operation(table_of(costs, tick), dependencies, "costs")
    (comm,) = in_ticks((costs.comm,), tick)
    source = np.where(dependencies.crosses, dependencies.neighbour, -1)
    require_64_bits(int(durations.sum()) + comm * int((source >= 0).sum()), "costs")

    slots = dependencies.slots
    taken, first_source, second_source = _slot_columns(dependencies, source, durations, costs)
    first = np.append(slots, len(taken))[dependencies.first]
    start, end = _times(
        first.tolist(), first_source.tolist(), second_source.tolist(), taken.tolist(), comm
    )
    if -1 in end:
        raise _rejected(order)
    cuts = dependencies.first[1:-1]
    return Timeline(
        order,
        tick,
        tuple(np.split(np.array(start, dtype=np.int64)[slots], cuts)),
        tuple(np.split(np.array(end, dtype=np.int64)[slots], cuts)),
    )


def _slot_columns(
    dependencies: Dependencies, source: Column, durations: Column, costs: StageCosts
) -> tuple[Column, Column, Column]:
    """What each slot takes, and the slots on other ranks that it needs; -1 for none."""
    slots = dependencies.slots
    needed = np.where(source >= 0, slots[source], -1)
    none = np.full(int(slots[-1]) + 1, -1, dtype=np.int64)
    if not len(dependencies.pairs):
        return durations, needed, none
    firsts, seconds = dependencies.pairs, dependencies.pairs + 1
    alone = np.ones(len(slots), dtype=np.bool_)
    alone[seconds] = False
    second_source = none
    second_source[slots[seconds]] = needed[seconds]
    taken = durations[alone]
    one, other = durations[firsts], durations[seconds]
    share = (one + other) * costs.overlap.numerator // costs.overlap.denominator
    taken[slots[firsts]] = np.maximum(share, np.maximum(one, other))
    return taken, needed[alone], second_source


def _runs_backwards(dependencies: Dependencies) -> bool:
    """Some rank runs an operation before one of its own that it needs, or in one slot with it."""
    slots, rank = dependencies.slots, dependencies.rank
    inputs: tuple[Column, ...] = (dependencies.own, dependencies.neighbour)
    return any(
        bool(((needed >= 0) & (slots[needed] >= slots) & (rank[needed] == rank)).any())
        for needed in inputs
    )


def _rejected(order: Order) -> AssertionError:
    """Raises what is wrong with ``order``."""
    verify_order(order)
    return AssertionError("the verifier accepts an order that cannot be timed")


def _times(
    first: list[int], source: list[int], also: list[int], durations: list[int], comm: int
) -> tuple[list[int], list[int]]:
    """Starts and ends of all slots; -1 for those that never start.

    ``source[n]`` and ``also[n]`` are the slots on other ranks that n needs, or -1. A rank runs
    until it needs what is not there yet, and goes on once its producer has run.
    """
    ranks = len(first) - 1
    start, end = [-1] * len(source), [-1] * len(source)
    waiters: dict[int, list[int]] = {}
    cursor, clock = first[:-1], [0] * ranks
    runnable = list(range(ranks))
    while runnable:
        rank = runnable.pop()
        now, stop = clock[rank], first[rank + 1]
        for slot in range(cursor[rank], stop):
            producer, other = source[slot], also[slot]
            if producer >= 0:
                if end[producer] < 0:
                    waiters.setdefault(producer, []).append(rank)
                    stop = slot
                    break
                now = max(now, end[producer] + comm)
            if other >= 0:
                if end[other] < 0:
                    waiters.setdefault(other, []).append(rank)
                    stop = slot
                    break
                now = max(now, end[other] + comm)
            start[slot] = now
            now += durations[slot]
            end[slot] = now
            if slot in waiters:
                runnable += waiters.pop(slot)
        if stop > cursor[rank]:
            cursor[rank], clock[rank] = stop, end[stop - 1]
    return start, end
