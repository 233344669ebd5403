"""The trace of simulated programs."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

import pytest

from schedc.diagnostics import Source, Span
from schedc.ir.cost import Costs
from schedc.ir.order import SPAN, Order
from schedc.ir.trace import Trace, TraceMessage, TraceOther, TraceTask
from schedc.passes.lower import lower
from schedc.passes.reduce_gradients import reduce_gradients
from schedc.passes.reuse_buffers import reuse_buffers
from schedc.program.abstract import abstract_durations, abstract_model
from schedc.program.durations import Durations
from schedc.simulate.figures import figures
from schedc.simulate.order import simulate_order
from schedc.simulate.program import simulate_programs
from schedc.simulate.program_memory import memory_of
from schedc.simulate.program_trace import trace_of_programs
from schedc.simulate.trace import trace_of
from tests.simulate.orders import gpipe, interleaved, one_f_one_b, zb_h1

COSTS = Costs(F=Fraction(2), I=Fraction(1), W=Fraction(1), comm=Fraction(1, 4))


def with_spans(order: Order) -> Order:
    """Every operation of rank r written in line r + 1."""
    source = Source("mine.sched", "place\n" * order.ranks)
    tables = tuple(table.copy() for table in order.tables)
    for rank, table in enumerate(tables):
        table[:, SPAN] = rank
    spans = tuple(Span(source, r + 1, 1, r + 1, 6) for r in range(order.ranks))
    return replace(order, tables=tables, spans=spans)


def traced(order: Order, costs: Costs = COSTS, reduced: bool = False, **takes: int) -> Trace:
    """The trace under ``costs``; ``takes`` sets other durations, in ticks."""
    of_stages = costs.of_stages(order.ranks, order.stages)
    model, partition = abstract_model(order.stages)
    programs = lower(simulate_order(order, of_stages), model, partition, order.name)
    programs = reuse_buffers(reduce_gradients(programs, model) if reduced else programs)
    durations: Durations = replace(abstract_durations(of_stages, order.ranks), **takes)
    if "step" in takes:
        durations = replace(durations, step=(takes["step"],) * order.ranks)
    durations = replace(durations, reduce={unit.name: 2 for unit in model.units})
    timeline = simulate_programs(programs, durations)
    memory = memory_of(programs, model.graphs, model.units, "sgd")
    return trace_of_programs(timeline, memory, title="a title", unit="", notes=("a note",))


def test_tasks_messages_and_places() -> None:
    found = traced(with_spans(one_f_one_b(2, 1)))
    assert found.tasks == (
        TraceTask(0, "F", 0, 0, 0.0, 2.0, "mine.sched:1"),
        TraceTask(0, "B", 0, 0, 6.5, 8.5, "mine.sched:1"),
        TraceTask(1, "F", 1, 0, 2.25, 4.25, "mine.sched:2"),
        TraceTask(1, "B", 1, 0, 4.25, 6.25, "mine.sched:2"),
    )
    assert found.messages == (
        TraceMessage("F", 0, 1, 0, 0, 2.0, 2.25),
        TraceMessage("B", 1, 0, 1, 0, 6.25, 6.5),
    )
    assert found.others == ()
    assert (found.title, found.origin, found.unit) == ("a title", "predicted", "")
    assert (found.ranks, found.stages, found.microbatches, found.rank_of) == (2, 2, 1, (0, 1))
    assert (found.memory_unit, found.notes) == ("bytes", ("a note",))


@pytest.mark.parametrize("order", [zb_h1(4, 9), interleaved(3, 7, 2)], ids=lambda o: o.name)
def test_tasks_messages_and_figures_are_those_of_the_order(order: Order) -> None:
    costs = COSTS.of_stages(order.ranks, order.stages)
    timeline = simulate_order(order, costs)
    expected = trace_of(timeline, figures(timeline, costs), costs, "")
    found = traced(order)
    assert found.tasks == expected.tasks
    assert sorted(found.messages, key=str) == sorted(expected.messages, key=str)
    for name in ("makespan", "longest_stage", "lower_bound", "bubble", "bubble_rate",
                 "bubble_rate_longest_stage", "messages"):  # fmt: skip
        assert found.figures[name] == expected.figures[name]
    assert found.figures["step_makespan"] == found.figures["makespan"]


def test_others_stand_where_they_happen() -> None:
    """A tick is a quarter: B 2–4 of one stage, its layer's reduction from 4, both others' after."""
    found = traced(gpipe(1, 1), replace(COSTS, comm=Fraction(1, 4)), True, norm=4, step=8, report=1)
    assert found.others == (
        TraceOther(0, "reduce head", 2.0, 2.5),
        TraceOther(0, "reduce layers.0", 4.0, 4.5),
        TraceOther(0, "reduce embedding", 4.5, 5.0),
        TraceOther(0, "report", 5.0, 5.25),
        TraceOther(0, "norm", 5.0, 6.0),
        TraceOther(0, "step", 6.0, 8.0),
    )
    assert found.figures["makespan"] == 4.0
    assert found.figures["step_makespan"] == 8.0
    assert found.figures["step_busy"] == [6.0]
    assert found.figures["step_waits"]["reduce"] == [1.0]


def test_memory_is_drawn_from_the_start_to_the_end_of_what_needs_it() -> None:
    """Every tensor of the abstract model has 4 bytes, and its graphs need nothing for themselves.

    F takes tokens and labels, 8, and leaves three units' saved and the loss, 16. In B the head's
    I makes dh and what is owed, 8, of one saved tensor; at the end the loss is reported and gone.
    """
    assert traced(gpipe(1, 1)).memory == (((0.0, 16.0), (2.0, 20.0), (4.0, 0.0)),)


def test_memory_curves_reach_the_peak_and_only_tell_changes() -> None:
    found = traced(one_f_one_b(4, 6))
    for curve, peak in zip(found.memory, found.figures["peak_bytes"], strict=True):
        times = [time for time, _ in curve]
        assert times[0] == 0.0
        assert times == sorted(set(times))
        assert max(amount for _, amount in curve) == peak
        assert all(a != b for (_, a), (_, b) in pairwise(curve))


def test_the_trace_survives_being_written() -> None:
    found = traced(zb_h1(3, 4), reduced=True, norm=1, step=2)
    assert Trace.from_json(found.to_json()) == found
    assert found.to_json() == traced(zb_h1(3, 4), reduced=True, norm=1, step=2).to_json()


def test_a_program_without_rows_is_an_empty_trace() -> None:
    order = gpipe(1, 1)
    of_stages = COSTS.of_stages(1, 1)
    model, partition = abstract_model(1)
    (program,) = lower(simulate_order(order, of_stages), model, partition, "")
    empty = replace(program, stream=replace(program.stream, table=program.stream.table[:0]))
    timeline = simulate_programs((empty,), abstract_durations(of_stages, 1))
    memory = memory_of((empty,), model.graphs, model.units, "sgd")
    found = trace_of_programs(timeline, memory, title="")
    assert found.tasks == found.messages == found.others == ()
    assert found.figures["makespan"] == found.figures["step_makespan"] == 0
