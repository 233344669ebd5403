"""Programs for tests: compiled from orders over a model without numbers, and one with a head."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from schedc.ir.cost import Costs
from schedc.ir.order import Order
from schedc.passes.pipeline import compile_programs
from schedc.program.abstract import abstract_model
from schedc.program.program import Programs
from schedc.program.signature import TAIL, Model, Signature, Value
from schedc.simulate.order import simulate_order
from tests.simulate import orders

SCHEDULES = ("gpipe", "one_f_one_b", "zb_h1", "interleaved")


def order_of(schedule: str, ranks: int, microbatches: int) -> Order:
    if schedule == "interleaved":
        return orders.interleaved(ranks, microbatches, 2)
    return getattr(orders, schedule)(ranks, microbatches)


@cache
def compiled(
    schedule: str, ranks: int, microbatches: int, replicas: int = 2
) -> tuple[Programs, Model]:
    """Verified programs of a bundled schedule, one layer a stage, and their model."""
    order = order_of(schedule, ranks, microbatches)
    timeline = simulate_order(order, Costs().of_stages(order.ranks, order.stages))
    model, partition = abstract_model(order.stages)
    return compile_programs(timeline, model, partition, replicas), model


@cache
def compiled_evaluation(
    schedule: str, ranks: int, microbatches: int, replicas: int = 2
) -> tuple[Programs, Model]:
    """Likewise, the programs of an evaluation."""
    order = order_of(schedule, ranks, microbatches).forwards()
    timeline = simulate_order(order, Costs().of_stages(order.ranks, order.stages))
    model, partition = abstract_model(order.stages)
    return compile_programs(timeline, model, partition, replicas), model


@cache
def compiled_with_tail(
    schedule: str, ranks: int, microbatches: int, replicas: int = 2
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
