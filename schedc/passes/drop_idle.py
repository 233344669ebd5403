"""Dropping what has nothing to do: an order without the operations that frozen parameters empty."""

from __future__ import annotations

import numpy as np

from schedc.ir.order import OP, STAGE, Op, Order
from schedc.passes.bodies import Partition
from schedc.program.signature import Model
from schedc.program.work import work_of


def drop_idle(order: Order, model: Model, partition: Partition) -> Order:
    """``order`` without the I, W and B that would call no graph of ``model``.

    A schedule knows no model, so its order has all operations. Here those go that nobody needs, and
    with them their messages: a B that stayed would wait for a gradient that nobody computes. What
    is left is complete as the verifier of programs knows it from the model, and still has every
    input of every operation: where a stage has an I, so has each stage after it.

    Pseudocode::

        for each stage: I and B stay if some graph I of its units has something to do,
                        W if some graph W has
    """
    keeps = np.ones((len(Op), order.stages), dtype=np.bool_)
    for stage, units in enumerate(partition):
        work = work_of(model, units)
        keeps[[Op.I, Op.B, Op.W], stage] = work.I, work.I, work.W
    if keeps.all():
        return order
    return order.only(tuple(keeps[table[:, OP], table[:, STAGE]] for table in order.tables))
