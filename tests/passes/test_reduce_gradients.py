"""Reductions: each unit once, where its last weight gradient is, waited for before the norm."""

from __future__ import annotations

import pytest

from schedc.ir.order import Op
from schedc.passes.pipeline import compile_programs
from schedc.passes.reduce_gradients import reduce_gradients
from schedc.program.abstract import abstract_model
from schedc.program.body import Body, Call, Reduce
from schedc.program.instructions import Norm, WaitReduce
from schedc.program.program import RankProgram
from schedc.simulate.order import simulate_order
from tests.passes.cases import COSTS, Case, cases, llama, llama_programs, runs, schedule

CASES = cases()[::2]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)


def reduced_in(body: Body) -> list[str]:
    return [step.unit for step in body.steps if isinstance(step, Reduce)]


def check_reductions(program: RankProgram) -> None:
    """Every unit of the rank, once, in the last W or B of its stage and right after its W graph."""
    started: list[str] = []
    final = {r.task.stage: row for row, r in runs(program) if r.task.op in (Op.W, Op.B)}
    for row, run in runs(program):
        body = program.bodies[run.body]
        assert body.last == (row == final[run.task.stage])
        found = reduced_in(body)
        assert sorted(found) == sorted(dict(program.stages)[body.stage] if body.last else ())
        for step, following in zip(body.steps, [*body.steps[1:], None], strict=True):
            if body.last and isinstance(step, Call) and step.graph.endswith(".W"):
                assert following == Reduce(step.unit, ("dp",))
        started += found
    assert sorted(started) == sorted(program.units)
    stream = list(program.stream)
    norm = next(row for row, i in enumerate(stream) if isinstance(i, Norm))
    waits = [row for row, i in enumerate(stream) if isinstance(i, WaitReduce)]
    assert [stream[row].unit for row in waits] == started  # in the order in which they started
    assert max(final.values()) < min(waits)
    assert max(waits) < norm


@every_case
def test_every_unit_is_reduced_once_after_its_last_gradient(case: Case) -> None:
    for program in reduce_gradients(case.lowered, case.model):
        if program.stages:
            check_reductions(program)


def test_units_of_a_llama_are_reduced_as_their_gradients_come() -> None:
    """Layer by layer, from the last unit of a stage to its first."""
    partition = (("embedding", "layers.0"), ("layers.1", "head"))
    for name in ("zb_h1", "one_f_one_b"):
        programs = reduce_gradients(llama_programs(schedule(name, 2, 3), partition), llama(2))
        for program in programs:
            check_reductions(program)
        first = next(b for b in programs[0].bodies if b.last)
        assert reduced_in(first) == ["layers.0", "embedding"]


def test_the_rest_of_a_program_stays() -> None:
    """Streams differ only in the bodies of last runs and in the waits."""
    order = schedule("zb_h1", 3, 4)
    case = Case("", simulate_order(order, COSTS["equal"](order)))
    lowered = case.lowered
    for before, after in zip(lowered, reduce_gradients(lowered, case.model), strict=True):
        kept = [i for i in after.stream if not isinstance(i, WaitReduce)]
        assert len(kept) == len(before.stream)
        for old, new in zip(before.stream, kept, strict=True):
            assert type(old) is type(new)
            assert getattr(old, "task", None) == getattr(new, "task", None)
        assert after.buffers == before.buffers


@pytest.mark.parametrize("name", ["gpipe", "zb_h1", "interleaved"])
def test_one_replica_reduces_nothing(name: str) -> None:
    order = schedule(name, 2, 3)
    model, partition = abstract_model(order.stages)
    timeline = simulate_order(order, COSTS["equal"](order))
    for program in compile_programs(timeline, model, partition, replicas=1):
        assert not any(isinstance(i, WaitReduce) for i in program.stream)
        assert not any(body.last or reduced_in(body) for body in program.bodies)
    for program in compile_programs(timeline, model, partition, replicas=2):
        check_reductions(program)
