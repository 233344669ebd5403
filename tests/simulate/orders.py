"""Orders for tests: the bundled schedules' texts in Python, random legal orders, small edits.

The schedules follow docs/language.md line by line, so that the simulator is tested without the
language; that the language yields the same orders is tested with it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import ceil

from schedc.ir.order import Op, Order, Task, inputs_of, make_table

F, B, I, W, R = Op.F, Op.B, Op.I, Op.W, Op.R  # noqa: E741
Row = tuple[Op, int, int]


def order_of(
    rows: list[list[Row]], rank_of: tuple[int, ...], microbatches: int, name: str = "test"
) -> Order:
    tables = tuple(make_table([(op, s, m, -1) for op, s, m in rank]) for rank in rows)
    return Order(name, len(rows), microbatches, rank_of, tables)


def rows_of(order: Order) -> list[list[Row]]:
    return [[(t.op, t.stage, t.microbatch) for t in order.tasks(r)] for r in range(order.ranks)]


def gpipe(P: int, M: int) -> Order:
    rows = [[(op, r, m) for op in (F, B) for m in range(M)] for r in range(P)]
    return order_of(rows, tuple(range(P)), M, "gpipe")


def one_f_one_b(P: int, M: int) -> Order:
    rows: list[list[Row]] = []
    for r in range(P):
        warmup = min(P - 1 - r, M)
        row: list[Row] = [(F, r, i) for i in range(warmup)]
        for i in range(M - warmup):
            row += [(F, r, i + warmup), (B, r, i)]
        rows.append(row + [(B, r, i) for i in range(M - warmup, M)])
    return order_of(rows, tuple(range(P)), M, "one_f_one_b")


def zb_h1(P: int, M: int) -> Order:
    rows: list[list[Row]] = []
    for r in range(P):
        warmup = min(P - 1 - r, M)
        owed: Iterator[int] = iter(range(M))
        row: list[Row] = [(F, r, i) for i in range(warmup)]
        for i in range(M):
            if i < M - warmup:
                row.append((F, r, i + warmup))
            row.append((I, r, i))
            if i >= r:
                row.append((W, r, next(owed)))
        row += [(W, r, next(owed)) for _ in range(min(r, M))]
        rows.append(row)
    return order_of(rows, tuple(range(P)), M, "zb_h1")


def v_shaped(P: int, M: int) -> Order:
    """The first and the last stage on rank 0; the last stage's W at the very end."""
    rows: list[list[Row]] = []
    for r in range(P):
        there, back = r, 2 * P - 1 - r
        tasks = [(F, there), (F, back), (I, back), (I, there), (W, there), (W, back)]
        rows.append([(op, s, m) for op, s in tasks for m in range(M)])
    ranks = tuple(range(P))
    return order_of(rows, (*ranks, *reversed(ranks)), M, "v_shaped")


def _interleaved(P: int, M: int, V: int, slots: list[tuple[int, int]], first: int) -> Order:
    rows: list[list[Row]] = []
    n = M * V
    assert len(slots) == n
    for r in range(P):
        warmup = min(2 * (P - 1 - r) + (V - 1) * first, n)
        row: list[Row] = []
        for k in range(n + warmup):
            if k < n:
                v, m = slots[k]
                row.append((F, v * P + r, m))
            if k >= warmup:
                v, m = slots[k - warmup]
                row.append((B, (V - 1 - v) * P + r, m))
        rows.append(row)
    return order_of(rows, tuple(s % P for s in range(P * V)), M, f"interleaved(V={V})")


def interleaved(P: int, M: int, V: int) -> Order:
    rounds = max(1, M // P)
    slots = [
        (v, m)
        for g in range(rounds)
        for v in range(V)
        for m in range(-(-g * M // rounds), -(-(g + 1) * M // rounds))
    ]
    return _interleaved(P, M, V, slots, ceil(M / rounds))


def interleaved_in_fixed_groups(P: int, M: int, V: int, group: int) -> Order:
    """Deadlocks where ``group`` does not divide M: the last, smaller group comes too early."""
    slots = [
        (v, m) for g in range(0, M, group) for v in range(V) for m in range(g, min(g + group, M))
    ]
    return _interleaved(P, M, V, slots, group)


def tasks_of(order: Order) -> set[Task]:
    return {task for rank in range(order.ranks) for task in order.tasks(rank)}


def inputs_in(order: Order, present: set[Task], task: Task) -> tuple[Task, ...]:
    """The inputs of ``task`` by the definition in schedc.ir.order."""
    op, s, m = task.op, task.stage, task.microbatch
    return inputs_of(op, s, m, order.stages, Task(I, s + 1, m) in present, Task(R, s, m) in present)


def random_order(seed: int, P: int, M: int, S: int) -> Order:
    """A legal order: any placement, B or I and W or R for each stage and microbatch, any order."""
    rng = random.Random(seed)
    rank_of = tuple(rng.randrange(P) for _ in range(S))
    tasks: list[Task] = []
    for s in range(S):
        for m in range(M):
            tasks.append(Task(F, s, m))
            tasks += [Task(op, s, m) for op in rng.choice(((B,), (I, W)))]
            tasks += [Task(R, s, m)] if rng.random() < 0.2 else []
    present = set(tasks)
    empty = order_of([[] for _ in range(P)], rank_of, M)
    rows: list[list[Row]] = [[] for _ in range(P)]
    done: set[Task] = set()
    while tasks:
        ready = [t for t in tasks if all(i in done for i in inputs_in(empty, present, t))]
        task = rng.choice(ready)
        tasks.remove(task)
        done.add(task)
        rows[rank_of[task.stage]].append((task.op, task.stage, task.microbatch))
    return order_of(rows, rank_of, M, f"random {seed}")
