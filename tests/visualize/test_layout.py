"""The layout against the trace's times: to scale, without overlaps, without holes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from schedc.ir.trace import Trace, TraceMessage, TraceOther, TraceTask
from schedc.visualize.geometry import Box, Layout
from schedc.visualize.layout import layout
from tests.visualize import traces

EXAMPLES = {
    "1f1b": traces.example_1f1b,
    "zb_h1": traces.example_zb_h1,
    "interleaved": traces.example_interleaved,
    "zb_v": traces.example_zb_v,
    "measured": traces.example_measured,
    "crowded": lambda: traces.example_1f1b(16, 300),
}


@pytest.fixture(params=EXAMPLES)
def trace(request: pytest.FixtureRequest) -> Trace:
    return EXAMPLES[request.param]()


def tiles(boxes: Sequence[Box], lane: Box) -> None:
    """The boxes cover the lane from left to right, each beginning where the last one ended."""
    ordered = sorted(boxes, key=lambda box: (box.x, box.right))
    assert ordered[0].x == lane.x
    assert ordered[-1].right == lane.right
    for before, after in itertools.pairwise(ordered):
        assert before.right == after.x
    assert all((box.y, box.h) == (lane.y, lane.h) for box in boxes)


def test_operations_are_to_scale(trace: Trace) -> None:
    chart = layout(trace, merge=False)
    pixels = chart.plot.w / (chart.span[1] - chart.span[0])
    drawn = {(row.rank, op.op, op.stage, op.microbatch): op for row in chart.rows for op in row.ops}
    assert len(drawn) == len(trace.tasks)
    for task in trace.tasks:
        op = drawn[task.rank, task.op, task.stage, task.microbatch]
        assert (op.start, op.end, op.place) == (task.start, task.end, task.place)
        assert op.x == pytest.approx(
            chart.plot.x + (task.start - chart.span[0]) * pixels, abs=0.0051
        )
        assert op.w == pytest.approx((task.end - task.start) * pixels, abs=0.0101)


def test_operations_gaps_and_blocks_tile_the_lane(trace: Trace) -> None:
    for chart in (layout(trace), layout(trace, merge=False), layout(trace, width=400)):
        for row in chart.rows:
            tiles((*row.ops, *row.gaps, *row.blocks), row.lane)


def test_every_operation_is_drawn_or_counted(trace: Trace) -> None:
    for width in (320, 1200):
        chart = layout(trace, width=width)
        for row in chart.rows:
            own = sum(task.rank == row.rank for task in trace.tasks)
            assert len(row.ops) + sum(block.count for block in row.blocks) == own
            for block in row.blocks:
                assert sum(share for _, share in block.shares) == pytest.approx(1)


def test_blocks_keep_the_time_of_each_operation() -> None:
    trace = traces.example_1f1b(4, 2000)
    chart = layout(trace)
    for row in chart.rows:
        assert row.blocks
        time = sum(op.end - op.start for op in row.ops if op.op == "F")
        for block in row.blocks:
            time += dict(block.shares).get("F", 0.0) * (block.end - block.start)
        assert time == pytest.approx(2000)  # 2000 forwards of 1


def test_figures_of_known_schedules() -> None:
    # 1F1B: (P − 1)(F + B) = 3 · 3 idle, M (F + B) = 24 busy; ZB-H1: (P − 1)(F + I − W) = 3.
    one = layout(traces.example_1f1b())
    assert (one.makespan, one.busiest, one.bubble) == (33, 24, 9)
    assert one.formula == "bubble = makespan − busiest rank = 33 − 24 = 9 (27.3 %)"
    assert [round(row.utilisation, 4) for row in one.rows] == [0.7273] * 4
    zero = layout(traces.example_zb_h1())
    assert zero.formula == "bubble = makespan − busiest rank = 27 − 24 = 3 (11.1 %)"
    half = layout(traces.example_interleaved())
    assert half.formula == "bubble = makespan − busiest rank = 28.5 − 24 = 4.5 (15.8 %)"


def test_microbatch_numbers_fit_their_boxes(trace: Trace) -> None:
    chart = layout(trace)
    labelled = [op for row in chart.rows for op in row.ops if op.label]
    for op in labelled:
        assert op.label == str(op.microbatch)
        assert 8 <= op.size < op.h
        assert 0.56 * op.size * len(op.label) < op.w  # a digit of Helvetica is 0.556 em wide
    if trace.microbatches == 8:
        assert len(labelled) == len(trace.tasks)


def test_stages_of_a_rank_have_their_own_shade() -> None:
    chart = layout(traces.example_interleaved())
    assert chart.shades == 2
    assert all(op.shade == op.stage // 4 for row in chart.rows for op in row.ops)
    assert [row.stages for row in chart.rows] == [(0, 4), (1, 5), (2, 6), (3, 7)]


def test_lanes_without_data_vanish() -> None:
    full = traces.example_measured()
    chart = layout(full)
    assert all(row.memory and row.messages and row.others for row in chart.rows)
    bare = layout(replace(full, memory=(), messages=(), others=()))
    kinds = {swatch.kind for swatch in bare.legend}
    assert kinds == {"op", "idle"}
    assert bare.height < chart.height
    assert all(
        row.memory is None and row.message_lane is None and not row.others for row in bare.rows
    )
    asked = layout(full, memory=False, messages=False)
    assert all(row.memory is None and not row.messages and row.others for row in asked.rows)


def test_lanes_of_a_row_and_rows_do_not_overlap(trace: Trace) -> None:
    chart = layout(trace)
    bottom = 0.0
    for row in chart.rows:
        assert row.lane.y > bottom
        bottom = row.lane.bottom
        for lane in (row.message_lane, row.memory.lane if row.memory else None):
            if lane:
                assert lane.y >= bottom
                bottom = lane.bottom
        for message in row.messages:
            assert row.message_lane
            assert row.message_lane.y <= message.y < message.bottom <= row.message_lane.bottom
        assert bottom <= chart.plot.bottom
    for direction in ("send", "arrival"):
        for row in chart.rows:
            own = [message for message in row.messages if message.direction == direction]
            assert all(a.right <= b.x for a, b in itertools.pairwise(own))


def test_messages_are_drawn_at_both_ends() -> None:
    trace = traces.example_measured()
    chart = layout(trace)
    for row in chart.rows:
        for direction, end in (("send", "source"), ("arrival", "target")):
            own = sum(getattr(message, end) == row.rank for message in trace.messages)
            assert sum(m.count for m in row.messages if m.direction == direction) == own


def test_a_message_without_duration_is_seen() -> None:
    trace = replace(traces.example_1f1b(2, 2), messages=(TraceMessage("F", 0, 1, 0, 0, 1.0, 1.0),))
    (sent,) = layout(trace).rows[0].messages
    assert sent.w == 2
    assert sent.text == "activation of stage 0, microbatch 0, rank 0 to rank 1"


def test_memory_peaks_and_limit() -> None:
    chart = layout(traces.example_zb_h1(memory_limit=4.0))
    assert [row.memory.peak for row in chart.rows if row.memory] == [4.0, 3.5, 3.0, 2.5]
    for row in chart.rows:
        curve = row.memory
        assert curve
        assert curve.limit_y is not None
        assert min(y for _, y in curve.points) == curve.peak_at[1]
        assert (curve.points[0][0], curve.points[-1][0]) == (curve.lane.x, curve.lane.right)
        amount = (curve.lane.bottom - curve.peak_at[1]) / (curve.lane.bottom - curve.limit_y)
        assert amount * 4 == pytest.approx(curve.peak, abs=0.01)
    far = layout(traces.example_zb_h1(memory_limit=80.0))
    assert all(row.memory and row.memory.limit_y is None for row in far.rows)
    assert any("above the curves' scale" in text.text for text in far.texts)


def test_the_highest_memory_survives_thinning() -> None:
    samples = tuple((i / 1000, 7.0 if i == 501 else 1.0) for i in range(33_000))
    trace = replace(traces.example_1f1b(1, 11), memory=(samples,))
    curve = layout(trace).rows[0].memory
    assert curve
    assert curve.peak == 7
    assert curve.peak_at in curve.points
    assert len(curve.points) < 3000


def test_overlapping_operations_share_the_lane() -> None:
    tasks = (
        TraceTask(0, "F", 0, 1, 0.0, 2.0),
        TraceTask(0, "B", 0, 0, 0.0, 3.0),
        TraceTask(0, "F", 0, 2, 3.0, 4.0),
    )
    chart = layout(Trace("pair", "predicted", "", 1, 1, 3, (0,), tasks))
    one, two, three = chart.rows[0].ops
    assert (one.h, two.h, three.h) == (14, 14, 28)
    assert one.bottom == two.y
    assert chart.busiest == 4  # the slot counts once


def test_rounded_times_do_not_overlap() -> None:
    tasks = (TraceTask(0, "F", 0, 0, 0.0, 0.1 + 0.2), TraceTask(0, "F", 0, 1, 0.3, 0.5))
    chart = layout(Trace("floats", "predicted", "", 1, 1, 2, (0,), tasks))
    assert [op.h for op in chart.rows[0].ops] == [28, 28]


def test_idle_time_outside_the_makespan_is_no_bubble() -> None:
    chart = layout(traces.example_measured())
    for row in chart.rows:
        inside = sum(gap.end - gap.start for gap in row.gaps if not gap.outside)
        assert inside == pytest.approx(chart.makespan - row.busy)
        assert sum(gap.outside for gap in row.gaps) == 1  # norm and step follow the last operation


def test_other_work_that_overlaps_takes_another_lane() -> None:
    others = (TraceOther(0, "reduce", 1.0, 3.0), TraceOther(0, "reduce", 2.0, 4.0))
    chart = layout(replace(traces.example_1f1b(2, 2), others=others))
    one, two = chart.rows[0].others
    assert one.bottom <= two.y


def test_the_critical_path_is_marked_and_linked() -> None:
    trace = traces.example_1f1b()
    path = traces.critical_path(trace)
    chart = layout(trace, critical=path)
    marked = [(o.op, o.stage, o.microbatch) for row in chart.rows for o in row.ops if o.critical]
    assert sorted(marked) == sorted(path)
    rank = {(t.op, t.stage, t.microbatch): t.rank for t in trace.tasks}
    assert len(chart.links) == sum(rank[a] != rank[b] for a, b in itertools.pairwise(path))
    assert any(swatch.kind == "critical" for swatch in chart.legend)


@pytest.mark.parametrize("offset", [0.0, 12345.0])
def test_ticks_are_to_scale_and_start_at_zero(offset: float) -> None:
    trace = traces.example_measured()
    moved = replace(
        trace,
        messages=(),
        others=(),
        memory=(),
        tasks=tuple(replace(t, start=t.start + offset, end=t.end + offset) for t in trace.tasks),
    )
    chart = layout(moved)
    assert [tick.label for tick in chart.ticks] == ["0", "50", "100", "150", "200", "250", "300"]
    assert chart.axis == "time (ms)"
    pixels = chart.plot.w / (chart.span[1] - chart.span[0])
    for i, tick in enumerate(chart.ticks):
        assert tick.x == pytest.approx(chart.plot.x + 0.05 * i * pixels, abs=0.01)


def test_two_charts_on_one_axis() -> None:
    long, short = traces.example_1f1b(), traces.example_zb_h1()
    both = layout(short, span=(0.0, 33.0))
    assert both.plot.w == layout(long).plot.w
    assert both.rows[0].ops[0].w == layout(long).rows[0].ops[0].w
    with pytest.raises(ValueError, match=r"runs from 0 to 33: .* cuts it"):
        layout(long, span=(0.0, 27.0))


def test_texts_stay_on_the_page(trace: Trace) -> None:
    for width in (320, 700, 1200):
        chart = layout(trace, width=width)
        for text in chart.texts:
            assert 0 <= text.x <= width
            assert 0 < text.y <= chart.height


def test_json_holds_the_layout() -> None:
    chart = layout(traces.example_measured())
    data = json.loads(chart.to_json())
    assert data["schema"] == "schedc chart 1"
    assert data["formula"] == chart.formula
    assert set(data) == {"schema", *Layout.__slots__}
    first = data["rows"][0]["ops"][0]
    assert first["x"] == chart.plot.x
    assert (first["op"], first["stage"], first["microbatch"]) == ("F", 0, 0)
    assert chart.to_json() == layout(traces.example_measured()).to_json()


EMPTY = Trace("nothing", "predicted", "", 2, 2, 1, (0, 1), ())
POINT = replace(EMPTY, tasks=(TraceTask(0, "F", 0, 0, 0.0, 0.0), TraceTask(1, "F", 1, 0, 0.0, 0.0)))
SINGLE = Trace("one", "measured", "s", 1, 1, 1, (0,), (TraceTask(0, "F", 0, 0, 5.0, 5.25),))


def test_traces_without_duration() -> None:
    for trace in (EMPTY, POINT):
        chart = layout(trace)
        assert chart.formula == "bubble = makespan − busiest rank = 0 − 0 = 0 (0.0 %)"
        assert [row.utilisation for row in chart.rows] == [0, 0]
    assert [len(row.ops) for row in layout(POINT).rows] == [1, 1]


def test_one_rank_one_operation() -> None:
    chart = layout(SINGLE)
    (row,) = chart.rows
    assert (row.ops[0].x, row.ops[0].w) == (chart.plot.x, chart.plot.w)
    assert not row.gaps
    assert chart.formula == "bubble = makespan − busiest rank = 250 − 250 = 0 ms (0.0 %)"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ranks": 1}, "names rank 1 but has 1"),
        ({"others": (TraceOther(7, "step", 0.0, 1.0),)}, "names rank 7"),
        ({"messages": (TraceMessage("F", 0, 9, 0, 0, 0.0, 1.0),)}, "names rank 9"),
        ({"tasks": (TraceTask(0, "F", 0, 0, 2.0, 1.0),)}, "impossible times, 2.0 to 1.0"),
        ({"tasks": (TraceTask(0, "F", 0, 0, 0.0, float("nan")),)}, "impossible times"),
        ({"memory": ((), (), ())}, "3 memory curves for 2 ranks"),
    ],
)
def test_impossible_traces_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layout(replace(POINT, **change))


def test_a_chart_has_a_least_width() -> None:
    with pytest.raises(ValueError, match="at least 320 pixels wide, not 100"):
        layout(SINGLE, width=100)


def test_names_of_other_work_shrink_to_their_first_word() -> None:
    names = [(TraceOther(0, f"reduce layers.{i}", i, i + 1.0)) for i in range(9)]
    trace = replace(traces.example_1f1b(2, 6), others=tuple(names))
    wide, narrow = layout(trace, width=2000), layout(trace, width=1000)
    assert wide.rows[0].others[3].label == "reduce layers.3"
    assert narrow.rows[0].others[3].label == "reduce"
    assert any(text.text == "reduce" and text.kind == "legend" for text in wide.texts)
