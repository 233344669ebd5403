"""Programs for tests: compiled from orders over a model without numbers, and one with a head."""

from __future__ import annotations

from functools import cache

from schedc.ir.cost import Costs
from schedc.ir.order import Order
from schedc.passes.pipeline import compile_programs
from schedc.program.abstract import abstract_model
from schedc.program.program import Programs
from schedc.program.signature import Model
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
