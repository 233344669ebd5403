"""Slots: as many as values are alive at once, counted here without the pass."""

from __future__ import annotations

from collections import Counter

import pytest

from schedc.ir.order import Op, Order
from schedc.passes.reuse_buffers import reuse_buffers
from schedc.program.instructions import READS, WRITES
from schedc.program.program import Programs, RankProgram
from schedc.simulate.order import simulate_order
from tests.passes.cases import COSTS, Case, cases, schedule

CASES = cases()
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)


def reused(order: Order) -> Programs:
    return reuse_buffers(Case("", simulate_order(order, COSTS["equal"](order))).lowered)


def slots(program: RankProgram) -> dict[str, int]:
    return {buffer.name: buffer.slots for buffer in program.buffers}


def most_alive(lowered: RankProgram) -> dict[str, int]:
    """The largest number of values of each pool alive within one instruction.

    Lowered programs give each value a slot of its own, so a value lives from the first row that
    names its slot to the last.
    """
    spans: dict[tuple[str, int], tuple[int, int]] = {}
    for row, columns in enumerate(lowered.stream.table):
        for column in (READS, WRITES):
            for operand in lowered.stream.operands[columns[column]]:
                key = operand.buffer, operand.slot
                first, _ = spans.get(key, (row, row))
                spans[key] = first, row
    alive: Counter[tuple[str, int]] = Counter()
    for (pool, _), (first, last) in spans.items():
        alive.update((pool, row) for row in range(first, last + 1))
    found: dict[str, int] = {}
    for (pool, _), count in alive.items():
        found[pool] = max(found.get(pool, 0), count)
    return found


@every_case
def test_slots_are_as_many_as_values_alive_at_once(case: Case) -> None:
    lowered = case.lowered
    for before, after in zip(lowered, reuse_buffers(lowered), strict=True):
        assert slots(after) == most_alive(before)


@every_case
def test_slots_of_saved_and_owed_follow_from_the_order_alone(case: Case) -> None:
    """F fills a slot of saved, I or B frees it after it ran; I fills one of owed, W frees it."""
    order = case.order
    for rank, program in enumerate(reuse_buffers(case.lowered)):
        count: Counter[str] = Counter()
        peak: Counter[str] = Counter()
        for task in order.tasks(rank):
            filled = {Op.F: f"saved{task.stage}", Op.I: f"owed{task.stage}"}.get(task.op)
            freed = f"owed{task.stage}" if task.op is Op.W else f"saved{task.stage}"
            if filled is not None:
                count[filled] += 1
                peak[filled] = max(peak[filled], count[filled])
            if task.op is not Op.F:
                count[freed] -= 1
        found = {n: c for n, c in slots(program).items() if n.startswith(("saved", "owed"))}
        assert found == {name: c for name, c in peak.items() if c}


@pytest.mark.parametrize(("P", "M"), [(1, 4), (2, 1), (3, 2), (4, 4), (4, 16)])
def test_saved_slots_are_the_in_flight_formulas(P: int, M: int) -> None:
    """GPipe keeps M microbatches, 1F1B min(P - r, M) (Narayanan et al. 2021), ZB-H1 too till I."""
    for r in range(P):
        assert slots(reused(schedule("gpipe", P, M))[r])[f"saved{r}"] == M
        assert slots(reused(schedule("one_f_one_b", P, M))[r])[f"saved{r}"] == min(P - r, M)
        assert slots(reused(schedule("zb_h1", P, M))[r])[f"saved{r}"] == min(P - r, M)


@pytest.mark.parametrize("P", [1, 2, 4])
def test_slots_of_1f1b_do_not_grow_with_the_microbatches(P: int) -> None:
    """All but the losses, of which the report reads every microbatch's."""
    few, many = (reused(schedule("one_f_one_b", P, M)) for M in (2 * P, 16 * P))
    for a, b in zip(few, many, strict=True):
        assert slots(a) | {"loss": 0} == slots(b) | {"loss": 0}
    assert slots(many[-1])["loss"] == 16 * P


def test_reuse_takes_the_lowest_free_slot() -> None:
    """So equal programs have equal slots: the losses of a rank are 0, 1, 2 … in its order."""
    program = reused(schedule("one_f_one_b", 1, 3))[0]
    used = [
        operand.slot
        for row in program.stream.table
        for operand in program.stream.operands[row[WRITES]]
        if operand.buffer == "saved0"
    ]
    assert used == [0, 0, 0]
