"""Programs for tests: compiled from orders over a model without numbers."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from schedc.ir.cost import Costs
from schedc.ir.order import Order
from schedc.passes.drop_idle import drop_idle
from schedc.passes.pipeline import compile_programs
from schedc.program.abstract import abstract_model
from schedc.program.program import Programs
from schedc.program.signature import TAIL, Model, Parameter, Signature, Value
from schedc.sema.library import bundled
from schedc.sema.schedule import instantiate
from schedc.simulate.order import simulate_order
from tests.simulate import orders

MADE = ("zb_v", "v_half")
"""Bundled schedules whose orders a policy or a pattern makes."""
SCHEDULES = ("gpipe", "one_f_one_b", "zb_h1", "interleaved", *MADE)


def order_of(schedule: str, ranks: int, microbatches: int) -> Order:
    if schedule == "interleaved":
        return orders.interleaved(ranks, microbatches, 2)
    if schedule in MADE:
        return instantiate(bundled(), schedule, ranks, microbatches, {}).order
    return getattr(orders, schedule)(ranks, microbatches)


@cache
def compiled(
    schedule: str,
    ranks: int,
    microbatches: int,
    replicas: int = 2,
    tied: bool = False,
    frozen: tuple[str, ...] = (),
) -> tuple[Programs, Model]:
    """Verified programs of a bundled schedule, one layer a stage, and their model.

    ``tied``: the head has the embedding's table; ``frozen`` are units.
    """
    order = order_of(schedule, ranks, microbatches)
    model, partition = abstract_model(order.stages)
    model = freeze(tie(model) if tied else model, frozen)
    order = drop_idle(order, model, partition)
    timeline = simulate_order(order, Costs().of_stages(order.ranks, order.stages))
    return compile_programs(timeline, model, partition, replicas), model


@cache
def compiled_evaluation(
    schedule: str, ranks: int, microbatches: int, replicas: int = 2, *_: object
) -> tuple[Programs, Model]:
    """Likewise, the programs of an evaluation."""
    order = order_of(schedule, ranks, microbatches).forwards()
    timeline = simulate_order(order, Costs().of_stages(order.ranks, order.stages))
    model, partition = abstract_model(order.stages)
    return compile_programs(timeline, model, partition, replicas), model


@cache
def compiled_with_tail(
    schedule: str, ranks: int, microbatches: int, replicas: int = 2, *_: object
) -> tuple[Programs, Model]:
    """Likewise, where the last microbatch is smaller: its tensors have another shape."""
    order = order_of(schedule, ranks, microbatches)
    timeline = simulate_order(order, Costs().of_stages(order.ranks, order.stages))
    model, partition = abstract_model(order.stages)
    graphs = model.graphs | dict(map(_of_tail, model.graphs.values()))
    model = replace(model, graphs=graphs)
    return compile_programs(timeline, model, partition, replicas), model


def _of_tail(graph: Signature) -> tuple[str, Signature]:
    unit, _, op = graph.name.rpartition(".")
    name = f"{unit}.{TAIL}.{op}"

    def other(values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(v if v.role == "loss" else replace(v, shape=(2,)) for v in values)

    return name, replace(graph, name=name, inputs=other(graph.inputs), outputs=other(graph.outputs))


def tie(model: Model) -> Model:
    """The embedding and the head have one table; the head has a norm of its own beside it."""
    table = Parameter("table", (1,), "fp32", "ones")
    norm = Parameter("norm", (1,), "fp32", "ones")
    first, *layers, head = model.units
    first = replace(first, parameters=(("table", table),))
    head = replace(head, parameters=(("norm", norm), ("weight", replace(table, tied=True))))
    return replace(model, units=(first, *layers, head))


def freeze(model: Model, frozen: tuple[str, ...]) -> Model:
    """No gradients of ``frozen``, units; what then has nothing to do is idle."""
    graphs = dict(model.graphs)
    flows = False  # whether a unit before has anything to train
    for unit in model.units:
        trains = unit.name not in frozen
        drops = {
            "F": () if flows or trains else ("saved",),
            "I": (*(() if flows else ("dx",)), *(() if trains else ("owed",))),
            "W": () if trains else ("owed",),
        }
        if not flows and not trains:
            drops["I"] += ("saved", "dy")
        for op, roles in drops.items():
            graph = graphs[f"{unit.graphs}.{op}"]
            graphs[graph.name] = replace(
                graph,
                inputs=tuple(v for v in graph.inputs if v.role not in roles),
                outputs=tuple(v for v in graph.outputs if v.role not in roles),
            )
        flows = flows or trains
    return replace(model, graphs=graphs)
