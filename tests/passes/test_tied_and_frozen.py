"""The passes for tied and frozen parameters: what they add, what they take away, and where."""

from __future__ import annotations

from dataclasses import replace

import pytest

from schedc.ir.order import Op, Order
from schedc.passes.bodies import make_bodies
from schedc.passes.drop_idle import drop_idle
from schedc.passes.pipeline import compile_programs
from schedc.program.abstract import abstract_durations, abstract_model
from schedc.program.body import Call, Reduce
from schedc.program.instructions import Norm, Send, Tie, WaitTie
from schedc.program.program import Programs, RankProgram
from schedc.program.signature import Model
from schedc.program.work import gradient_calls, shared_names, tied_parameter, work_of
from schedc.runtime.transports.virtual import run_virtual
from schedc.simulate.order import simulate_order
from tests.passes.cases import COSTS, legal_order, llama, runs, schedule
from tests.program.programs import freeze, tie
from tests.simulate.orders import v_shaped


def programs_of(order: Order, model: Model, replicas: int) -> Programs:
    """Compiled, so verified after every pass; one layer a stage."""
    partition = abstract_model(order.stages)[1]
    order = drop_idle(order, model, partition)
    timeline = simulate_order(order, COSTS["unequal"](order))
    return compile_programs(timeline, model, partition, replicas)


def tied_model(stages: int) -> Model:
    return tie(abstract_model(stages)[0])


def kinds(program: RankProgram) -> list[str]:
    return [type(instruction).__name__ for instruction in program.stream]


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("name", ["gpipe", "one_f_one_b", "zb_h1", "interleaved"])
def test_the_tie_follows_all_reductions_and_messages(name: str, replicas: int) -> None:
    order = schedule(name, 3, 4)
    first, middle, last = programs_of(order, tied_model(order.stages), replicas)
    assert "Tie" not in kinds(middle)
    assert "WaitTie" not in kinds(middle)
    for program, unit, peer in ((first, "embedding", 2), (last, "head", 0)):
        stream = list(program.stream)
        (at,) = [row for row, i in enumerate(stream) if isinstance(i, Tie)]
        assert stream[at] == Tie(unit, peer)
        assert isinstance(stream[at + 1], WaitTie)
        assert isinstance(stream[at + 2], Norm)
        before = kinds(program)[:at]
        assert before.count("WaitReduce") == (len(program.units) if replicas > 1 else 0)
        assert not {"Send", "Recv", "Run"} & set(kinds(program)[at:])


@pytest.mark.parametrize("name", ["interleaved", "zb_h1"])
def test_on_one_rank_the_last_of_both_reduces(name: str) -> None:
    order = schedule(name, 1, 3)
    model = tied_model(order.stages)
    (program,) = programs_of(order, model, 2)
    assert not {"Tie", "WaitTie"} & set(kinds(program))
    calls = gradient_calls(model, program.stages)
    assert {unit for _, _, unit in calls["embedding"]} == {"embedding", "head"}
    assert {unit for _, _, unit in calls["head"]} == {"head"}


def test_the_heads_last_gradient_may_come_after_the_embeddings() -> None:
    """Its W then starts the reduction of the table, which is the embedding's."""
    order = v_shaped(2, 3)
    first, _ = programs_of(order, tied_model(order.stages), 2)
    reducing = {
        (body.op, body.stage): [step.unit for step in body.steps if isinstance(step, Reduce)]
        for body in first.bodies
        if body.last
    }
    assert reducing == {
        (Op.W, 0): ["layers.0"],
        (Op.W, 3): ["embedding", "head", "layers.3"],
    }
    last = first.bodies[max((row, run.body) for row, run in runs(first))[1]]
    after_head = [s.unit for s in last.steps if isinstance(s, Call)].index("head")
    assert isinstance(last.steps[after_head + 1], Reduce)


def test_who_has_what() -> None:
    model = tied_model(4)
    found = tied_parameter(model.units)
    assert found is not None
    assert found.name == "table"
    assert found.places == {"embedding": "table", "head": "weight"}
    assert shared_names(model.units) == {"table": "embedding"}
    assert shared_names(model.units[1:]) == {}
    assert tied_parameter(abstract_model(4)[0].units) is None


FROZEN = {
    "first": ("embedding", "layers.0", "layers.1"),
    "last": ("layers.2", "layers.3", "head"),
    "middle": ("layers.1", "layers.2"),
    "all but the head": ("embedding", "layers.0", "layers.1", "layers.2", "layers.3"),
    "all but the embedding": ("layers.0", "layers.1", "layers.2", "layers.3", "head"),
}


@pytest.mark.parametrize("frozen", FROZEN.values(), ids=FROZEN)
@pytest.mark.parametrize("name", ["gpipe", "one_f_one_b", "zb_h1"])
def test_operations_without_work_go_and_nothing_else(name: str, frozen: tuple[str, ...]) -> None:
    order = schedule(name, 4, 3)
    plain, partition = abstract_model(4)
    model = freeze(plain, frozen)
    left = drop_idle(order, model, partition)
    assert drop_idle(order, plain, partition) is order
    trained = [any(unit not in frozen for unit in units) for units in partition]
    for rank in range(4):
        has_I = any(trained[: rank + 1])
        wanted = [
            task
            for task in order.tasks(rank)
            if task.op is Op.F or (has_I if task.op is not Op.W else trained[rank])
        ]
        assert list(left.tasks(rank)) == wanted
        work = work_of(model, partition[rank])
        assert (work.I, work.W, work.dx) == (has_I, trained[rank], any(trained[:rank]))


def test_gradients_are_sent_to_those_that_read_them() -> None:
    order = schedule("one_f_one_b", 4, 3)
    model = freeze(abstract_model(4)[0], FROZEN["first"])
    sent = {
        (i.task.op, i.task.stage)
        for program in programs_of(order, model, 1)
        for i in program.stream
        if isinstance(i, Send)
    }
    assert sent == {(Op.F, 0), (Op.F, 1), (Op.F, 2), (Op.B, 3)}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_random_orders_with_random_units_frozen(seed: int, tied: bool) -> None:
    """The verifier accepts them after every pass, and the virtual run comes to its end."""
    P, M, S = 1 + seed % 4, 1 + seed % 3, 4
    order = legal_order(seed, P, M, S)
    model = tied_model(S) if tied else abstract_model(S)[0]
    for kind, frozen in FROZEN.items():
        if tied and {"embedding", "head"} & set(frozen):
            continue  # units are frozen here, not parameters: half a table cannot be
        programs = programs_of(order, freeze(model, frozen), 1 + seed % 2)
        apart = order.rank_of[0] != order.rank_of[-1]
        ties = sum(kinds(program).count("Tie") for program in programs)
        assert ties == (2 if tied and apart else 0), kind
        durations = abstract_durations(COSTS["unequal"](order), P)
        units = {unit: 1 for program in programs for unit in program.units}
        run_virtual(programs, replace(durations, reduce=units))


def test_bodies_of_a_llama_call_what_has_work() -> None:
    """Units frozen from the first on have no I; those behind trained ones have an I and no W."""
    model = freeze_llama("model.embed_tokens.weight", "model.layers.0.", "model.layers.2.")
    bodies = make_bodies(model, (("embedding", "layers.0", "layers.1"), ("layers.2", "head")))
    calls = {
        key: [f"{step.graph[-1]} {step.unit}" for step in body.steps if isinstance(step, Call)]
        for key, body in bodies.items()
    }
    assert calls[Op.I, 0, False] == ["I layers.1"]
    assert calls[Op.W, 0, False] == ["W layers.1"]
    assert calls[Op.B, 0, False] == ["I layers.1", "W layers.1"]
    assert calls[Op.I, 1, False] == ["I head", "I layers.2"]
    assert calls[Op.W, 1, False] == ["W head"]
    assert calls[Op.F, 0, False] == ["F embedding", "F layers.0", "F layers.1"]
    assert "dx" not in bodies[Op.I, 0, False].writes
    assert "dx" in bodies[Op.I, 1, False].writes


def freeze_llama(*prefixes: str) -> Model:
    from schedc.graph.build import build_model, parameter_names
    from schedc.model.config import PRESETS

    config = replace(PRESETS["llama-test"], num_hidden_layers=3)
    names = parameter_names(config)
    frozen = frozenset(name for name in names if name.startswith(prefixes))
    assert len(llama(3).parameters) > len(frozen) > 0
    return build_model(config, 2, 16, frozen=frozen)
