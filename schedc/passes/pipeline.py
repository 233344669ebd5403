"""The pipeline of passes, from an order to verified programs."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager

from schedc.ir.text import order_digest
from schedc.ir.timeline import Timeline
from schedc.passes.bodies import Partition
from schedc.passes.lower import lower
from schedc.passes.reduce_gradients import reduce_gradients
from schedc.passes.reuse_buffers import reuse_buffers
from schedc.passes.tie_embeddings import tie_embeddings
from schedc.program.program import Programs
from schedc.program.signature import Model
from schedc.program.verify import verify_programs


def compile_programs(
    timeline: Timeline,
    model: Model,
    partition: Partition,
    replicas: int = 1,
    reduce: str = "fp32",
) -> Programs:
    """The programs of all pipeline ranks for a simulated order.

    ``replicas`` is the size of dp, ``reduce`` the dtype in which gradients are summed over it.

    An order of nothing but F gives an evaluation, in which nobody sums gradients. Others have no
    operations with nothing to do (:func:`schedc.passes.drop_idle.drop_idle`). The verifier runs
    after every pass that changed something. Raises DiagnosticError where it refuses.
    """
    with _no_garbage():
        return _compile(timeline, model, partition, replicas, reduce)


def _compile(
    timeline: Timeline, model: Model, partition: Partition, replicas: int, reduce: str
) -> Programs:
    order = timeline.order
    label = f"{order.name} #{order_digest(order)}"
    programs = lower(timeline, model, partition, label)
    verify_programs(programs, model, replicas=1, tied=False)
    if not order.evaluates:
        if replicas > 1:
            programs = reduce_gradients(programs, model, reduce)
            verify_programs(programs, model, replicas, tied=False)
        untied, programs = programs, tie_embeddings(programs, model)
        if programs is not untied:
            verify_programs(programs, model, replicas)
    programs = reuse_buffers(programs)
    verify_programs(programs, model, replicas)
    return programs


@contextmanager
def _no_garbage() -> Generator[None]:
    """Without the search for circles of objects: millions of small ones are made here, none in
    circles, and looking at them again and again takes a third of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
