"""Traces for these tests, from a list scheduler of a few lines (the compiler has its own)."""

from __future__ import annotations

import random
from collections.abc import Callable

from schedc.ir.trace import Trace, TraceMessage, TraceOther, TraceTask

Order = list[list[tuple[str, int, int]]]


def one_f_one_b(ranks: int, microbatches: int) -> Order:
    """(operation, stage, microbatch) for each rank."""
    order: Order = []
    for rank in range(ranks):
        warmup = min(ranks - 1 - rank, microbatches)
        own = [("F", rank, m) for m in range(warmup)]
        for m in range(microbatches - warmup):
            own += [("F", rank, m + warmup), ("B", rank, m)]
        order.append(own + [("B", rank, m) for m in range(microbatches - warmup, microbatches)])
    return order


def zb_h1(ranks: int, microbatches: int) -> Order:
    """As ``docs/language.md`` writes it."""
    order: Order = []
    for rank in range(ranks):
        owed = iter(range(microbatches))
        warmup = min(ranks - 1 - rank, microbatches)
        own = [("F", rank, m) for m in range(warmup)]
        for m in range(microbatches):
            own += [("F", rank, m + warmup)] if m + warmup < microbatches else []
            own += [("I", rank, m)] + ([("W", rank, next(owed))] if m >= rank else [])
        order.append(own + [("W", rank, m) for m in owed])
    return order


def interleaved(ranks: int, microbatches: int, local: int) -> Order:
    """As ``docs/language.md`` writes it, where ``ranks`` divides ``microbatches``."""
    slots = [
        (v, g + i)
        for g in range(0, microbatches, ranks)
        for v in range(local)
        for i in range(ranks)
    ]
    order: Order = []
    for rank in range(ranks):
        forward = [("F", v * ranks + rank, m) for v, m in slots]
        backward = [("B", (local - 1 - v) * ranks + rank, m) for v, m in slots]
        warmup = min(2 * (ranks - 1 - rank) + (local - 1) * ranks, len(slots))
        own = forward[:warmup]
        for k in range(len(slots) - warmup):
            own += [forward[k + warmup], backward[k]]
        order.append(own + backward[len(slots) - warmup :])
    return order


def run(
    order: Order,
    cost: Callable[[str, int, int], float],
    *,
    title: str,
    comm: float = 0.0,
    units: float = 1.0,
    **fields: object,
) -> Trace:
    """The trace of an order: an operation starts when its rank is free and its inputs are there."""
    rank_of = {s: rank for rank, own in enumerate(order) for _, s, _ in own}
    stages = len(rank_of)
    done: dict[tuple[str, int, int], TraceTask] = {}
    at, free = [0] * len(order), [0.0] * len(order)
    moved = True
    while moved:
        moved = False
        for rank, own in enumerate(order):
            while at[rank] < len(own):
                op, stage, m = own[at[rank]]
                needs = {"F": [("F", stage - 1)], "W": [("I", stage)]}.get(
                    op, [(op, stage + 1), ("F", stage)]
                )
                needs = [(o, s, m) for o, s in needs if 0 <= s < stages]
                if any(need not in done for need in needs):
                    break
                ready = [done[n].end + (comm if rank_of[n[1]] != rank else 0.0) for n in needs]
                start = max([free[rank], *ready])
                free[rank] = start + cost(op, stage, m)
                done[op, stage, m] = TraceTask(
                    rank, op, stage, m, start, free[rank], place=f"example.sched:{3 + rank}"
                )
                at[rank] += 1
                moved = True
    assert all(i == len(own) for i, own in zip(at, order, strict=True)), "the order deadlocks"
    tasks = tuple(sorted(done.values(), key=lambda t: (t.rank, t.start)))
    microbatches = 1 + max(task.microbatch for task in tasks)
    return Trace(
        title=title,
        origin=fields.pop("origin", "predicted"),
        unit=fields.pop("unit", ""),
        ranks=len(order),
        stages=stages,
        microbatches=microbatches,
        rank_of=tuple(rank_of[s] for s in range(stages)),
        tasks=tasks,
        messages=messages_of(tasks, rank_of, comm) if comm else (),
        memory=memory_of(tasks, len(order), units),
        **fields,
    )


def messages_of(
    tasks: tuple[TraceTask, ...], rank_of: dict[int, int], comm: float
) -> tuple[TraceMessage, ...]:
    found: list[TraceMessage] = []
    for task in tasks:
        to = {"F": task.stage + 1, "W": -1}.get(task.op, task.stage - 1)
        if to in rank_of and rank_of[to] != task.rank:
            kind = "F" if task.op == "F" else "B"
            ends = task.end, task.end + comm
            found.append(
                TraceMessage(kind, task.rank, rank_of[to], task.stage, task.microbatch, *ends)
            )
    return tuple(found)


def memory_of(
    tasks: tuple[TraceTask, ...], ranks: int, units: float
) -> tuple[tuple[tuple[float, float], ...], ...]:
    """F adds ``units`` at its start; B frees them at its end, I and W half each."""
    change = {"F": 1.0, "B": -1.0, "I": -0.5, "W": -0.5}
    curves: list[tuple[tuple[float, float], ...]] = []
    for rank in range(ranks):
        events = sorted(
            (task.start if task.op == "F" else task.end, change[task.op] * units)
            for task in tasks
            if task.rank == rank
        )
        level, curve = 0.0, [(0.0, 0.0)]
        for time, amount in events:
            level += amount
            curve.append((time, level))
        curves.append(tuple(curve))
    return tuple(curves)


def example_1f1b(ranks: int = 4, microbatches: int = 8) -> Trace:
    return run(
        one_f_one_b(ranks, microbatches),
        lambda op, s, m: {"F": 1.0, "B": 2.0}[op],
        title="one_f_one_b",
    )


def example_zb_h1(**fields: object) -> Trace:
    return run(zb_h1(4, 8), lambda op, s, m: 1.0, title="zb_h1", **fields)


def example_interleaved() -> Trace:
    return run(
        interleaved(4, 8, 2),
        lambda op, s, m: {"F": 0.5, "B": 1.0}[op],
        title="interleaved(V = 2)",
        units=0.5,
    )


def example_zb_v() -> Trace:
    """Two stages a rank, placed there and back, split backward: all shades at once."""
    order: Order = []
    for rank in range(2):
        own = [("F", rank, 0), ("F", rank, 1), ("F", 3 - rank, 0), ("F", 3 - rank, 1)]
        for m in range(2):
            own += [("I", 3 - rank, m), ("W", 3 - rank, m)]
        order.append(own + [(op, rank, m) for m in range(2) for op in "IW"])
    return run(order, lambda op, s, m: 1.0, title="zb_v", units=0.5)


def example_measured(seed: int = 1) -> Trace:
    """Seconds with jitter, messages, reductions, an optimizer step, bytes and a limit."""
    dice = random.Random(seed)
    base = {"F": 0.0101, "I": 0.0112, "W": 0.0089}
    trace = run(
        zb_h1(4, 8),
        lambda op, s, m: base[op] * dice.uniform(0.93, 1.2) * (1.15 if s == 3 else 1.0),
        title="llama_tiny_zb on 4 GPUs, step 12",
        comm=0.0012,
        units=5.5 * 2**30,
        origin="measured",
        unit="s",
        memory_unit="bytes",
        memory_limit=24.0 * 2**30,
        notes=("GPU times from CUDA events; clocks of the ranks aligned to 20 µs.",),
    )
    others: list[TraceOther] = []
    end = max(task.end for task in trace.tasks)
    for rank in range(4):
        last = max(task.end for task in trace.tasks if task.rank == rank)
        others += [
            TraceOther(rank, "reduce", last - 0.011, last + 0.004),
            TraceOther(rank, "norm", end + 0.005, end + 0.007),
            TraceOther(rank, "step", end + 0.007, end + 0.019),
        ]
    return Trace(
        **{name: getattr(trace, name) for name in trace.__slots__ if name != "others"},
        others=tuple(others),
    )


def critical_path(trace: Trace) -> tuple[tuple[str, int, int], ...]:
    """A path from the last end back, each operation starting when the one before it ended."""
    task = max(trace.tasks, key=lambda t: (t.end, -t.rank))
    path = [task]
    while task.start > 1e-9:
        task = next(t for t in trace.tasks if abs(t.end - task.start) < 1e-9 and _feeds(t, task))
        path.append(task)
    return tuple((t.op, t.stage, t.microbatch) for t in reversed(path))


def _feeds(before: TraceTask, after: TraceTask) -> bool:
    if before.rank == after.rank:
        return True
    step = after.stage - before.stage
    same = before.microbatch == after.microbatch
    return same and before.op == after.op and step == (1 if before.op == "F" else -1)
