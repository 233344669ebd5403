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
from schedc.program.signature import Model, Parameter
from schedc.simulate.order import simulate_order
from tests.simulate import orders

SCHEDULES = ("gpipe", "one_f_one_b", "zb_h1", "interleaved")


def order_of(schedule: str, ranks: int, microbatches: int) -> Order:
    if schedule == "interleaved":
        return orders.interleaved(ranks, microbatches, 2)
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
