"""The trace of a simulated order."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from schedc.diagnostics import Source, Span
from schedc.ir.cost import Costs
from schedc.ir.order import SPAN, Order
from schedc.ir.trace import Trace, TraceMessage, TraceTask
from schedc.simulate.figures import figures, figures_json
from schedc.simulate.order import simulate_order
from schedc.simulate.trace import trace_of
from tests.simulate.orders import interleaved, one_f_one_b, zb_h1

COSTS = Costs(F=Fraction(2), comm=Fraction(1, 4))


def with_spans(order: Order) -> Order:
    """Every operation of rank r written in line r + 1."""
    source = Source("mine.sched", "place\n" * order.ranks)
    tables = tuple(table.copy() for table in order.tables)
    for rank, table in enumerate(tables):
        table[:, SPAN] = rank
    spans = tuple(Span(source, r + 1, 1, r + 1, 6) for r in range(order.ranks))
    return replace(order, tables=tables, spans=spans)


def trace(order: Order) -> Trace:
    costs = COSTS.of_stages(order.ranks, order.stages)
    timeline = simulate_order(order, costs)
    return trace_of(timeline, figures(timeline, costs), costs, "a title")


def test_tasks_and_messages_of_a_small_pipeline() -> None:
    found = trace(with_spans(one_f_one_b(2, 1)))
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
    assert found.memory == (
        ((0.0, 1.0), (8.5, 0.0)),
        ((0.0, 0.0), (2.25, 1.0), (6.25, 0.0)),
    )
    assert (found.title, found.origin, found.unit) == ("a title", "predicted", "")


@pytest.mark.parametrize("order", [zb_h1(4, 9), interleaved(3, 7, 2)], ids=lambda o: o.name)
def test_the_trace_agrees_with_the_figures(order: Order) -> None:
    found = trace(order)
    assert len(found.tasks) == len(order)
    assert all(task.place == "" for task in found.tasks)
    assert max(task.end for task in found.tasks) == found.figures["makespan"]
    assert len(found.messages) == found.figures["messages"]
    starts = [message.start for message in found.messages]
    assert starts == sorted(starts)
    for curve, peak in zip(found.memory, found.figures["peak_activations"], strict=True):
        assert max(amount for _, amount in curve) == peak
        assert curve[-1][1] == 0
        assert [t for t, _ in curve] == sorted({t for t, _ in curve})


def test_the_trace_parses_back() -> None:
    found = trace(zb_h1(3, 4))
    again = Trace.from_json(found.to_json())
    assert again == found
    for text in ("[]", '{"schema": "schedc timeline 1"}', "{}"):
        with pytest.raises(ValueError, match="not a timeline"):
            Trace.from_json(text)


def test_figures_under_the_names_of_check_json() -> None:
    order = zb_h1(4, 8)
    costs = Costs().of_stages(4, 4)
    timeline = simulate_order(order, costs)
    found = figures_json(timeline, figures(timeline, costs), costs)
    assert found == {
        "schedule": "zb_h1",
        "P": 4,
        "M": 8,
        "S": 4,
        "costs": {"F": 1, "I": 1, "W": 1, "comm": 0},
        "makespan": 27.0,
        "longest_stage": 27.0,
        "lower_bound": 24.0,
        "bubble": 3.0,
        "bubble_rate": 1 / 9,
        "bubble_rate_longest_stage": 1 / 9,
        "peak_activations": [4.0, 3.5, 3.0, 2.5],
        "messages": 48,
    }
    halves = COSTS.of_stages(2, 4)
    timeline = simulate_order(interleaved(2, 4, 2), halves)
    assert figures_json(timeline, figures(timeline, halves), halves)["costs"] == {
        "F": 2,
        "I": 1,
        "W": 1,
        "comm": 0.25,
    }
    uneven = replace(halves, F=(Fraction(1), Fraction(2), Fraction(1), Fraction(1, 2)))
    timeline = simulate_order(interleaved(2, 4, 2), uneven)
    costs_json = figures_json(timeline, figures(timeline, uneven), uneven)["costs"]
    assert isinstance(costs_json, dict)
    assert costs_json["F"] == [1, 2, 1, 0.5]
