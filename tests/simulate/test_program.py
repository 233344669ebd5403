"""The simulator of programs: equal to that of orders, by hand where an order has no word for it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from schedc.diagnostics import DiagnosticError
from schedc.ir.cost import Costs
from schedc.ir.order import Op, Order
from schedc.passes.lower import lower
from schedc.passes.reduce_gradients import reduce_gradients
from schedc.passes.reuse_buffers import reuse_buffers
from schedc.program.abstract import abstract_durations, abstract_model
from schedc.program.body import Body, Call
from schedc.program.durations import Durations
from schedc.program.instructions import CODE, MICROBATCH, OP, STAGE, Code, Operand, StreamBuilder
from schedc.program.program import Programs, Queue, RankProgram
from schedc.simulate.order import simulate_order
from schedc.simulate.program import Collective, ProgramTimeline, simulate_programs
from schedc.simulate.program_figures import compute_figures, step_figures
from tests.simulate.orders import gpipe, interleaved, one_f_one_b, random_order, zb_h1

COSTS = {
    "equal": Costs(),
    "comm": Costs(F=Fraction(2), comm=Fraction(1, 3)),
    "slow links": Costs(W=Fraction(1, 2), comm=Fraction(3)),
    "uneven": Costs(F=Fraction("0.7"), I=Fraction("1.3"), W=Fraction(1, 7), comm=Fraction("0.01")),
}


def programs_of(order: Order, costs: Costs = COSTS["equal"], reduced: bool = False) -> Programs:
    timeline = simulate_order(order, costs.of_stages(order.ranks, order.stages))
    model, partition = abstract_model(order.stages)
    programs = lower(timeline, model, partition, order.name)
    return reuse_buffers(reduce_gradients(programs, model) if reduced else programs)


def simulated(order: Order, costs: Costs) -> ProgramTimeline:
    durations = abstract_durations(costs.of_stages(order.ranks, order.stages), order.ranks)
    return simulate_programs(programs_of(order, costs), durations)


def row_of(program: RankProgram, code: Code) -> int:
    return int(np.flatnonzero(program.stream.table[:, CODE] == code)[0])


def ends_at(timeline: ProgramTimeline, rank: int, code: Code) -> int:
    return int(timeline.end[rank][row_of(timeline.programs[rank], code)])


def assert_equals_order(order: Order, costs: Costs) -> None:
    expected = simulate_order(order, costs.of_stages(order.ranks, order.stages))
    found = simulated(order, costs)
    scale = expected.tick / found.tick
    for rank, program in enumerate(found.programs):
        run = program.stream.table[:, CODE] == Code.RUN
        tasks = program.stream.table[run][:, (OP, STAGE, MICROBATCH)]
        assert np.array_equal(tasks, order.tables[rank][:, :3])
        assert np.array_equal(found.start[rank][run], expected.start[rank] * scale)
        assert np.array_equal(found.end[rank][run], expected.end[rank] * scale)


@pytest.mark.parametrize("costs", COSTS.values(), ids=COSTS)
@pytest.mark.parametrize("P", [1, 2, 3, 4, 7])
def test_operations_run_when_the_order_says(P: int, costs: Costs) -> None:
    for M in (1, 2, 3, 5, 8, 13):
        for order in (gpipe(P, M), one_f_one_b(P, M), zb_h1(P, M)):
            assert_equals_order(order, costs)
        for V in (2, 3):
            assert_equals_order(interleaved(P, M, V), costs)


@pytest.mark.parametrize("seed", range(40))
def test_any_legal_order_runs_when_it_says(seed: int) -> None:
    order = random_order(seed, P=1 + seed % 4, M=1 + seed % 5, S=1 + seed % 6)
    tables = tuple(table[table[:, 0] != Op.R] for table in order.tables)  # no programs for R yet
    assert_equals_order(replace(order, tables=tables), COSTS["uneven"])


ONE_STAGE = Durations(
    tick=Fraction(1, 2),
    calls={
        "embedding.F": 1, "embedding.I": 1, "embedding.W": 1,
        "stage0.F": 10, "stage0.I": 20, "stage0.W": 30,
        "head.F": 2, "head.I": 3, "head.W": 4,
    },
    message=0,
    reduce={"embedding": 5, "layers.0": 50, "head": 7},
    count=15, norm=6, step=(8,), report=9,
)  # fmt: skip


def test_reductions_follow_one_another_within_and_behind_the_last_backward() -> None:
    """F 0–13, the count there at 15, B 15–74: head 3 + 4, layer 20 + 30, embedding 1 + 1."""
    (program,) = programs_of(gpipe(1, 1), reduced=True)
    timeline = simulate_programs((program,), ONE_STAGE)
    last = int(np.flatnonzero(program.stream.table[:, CODE] == Code.RUN)[-1])
    assert (timeline.start[0][last], timeline.end[0][last]) == (15, 74)
    assert timeline.reductions == (
        (
            Collective("head", last, 22, 22, 29),
            Collective("layers.0", last, 72, 72, 122),
            Collective("embedding", last, 74, 122, 127),
        ),
    )
    norm, report = row_of(program, Code.NORM), row_of(program, Code.REPORT)
    assert timeline.sums == (
        (
            Collective("count", 0, 0, 0, 15),
            Collective("norm", norm, 127, 127, 133),
            Collective("report", report, 127, 127, 136),
        ),
    )
    assert ends_at(timeline, 0, Code.WAIT_NORM) == 133
    assert ends_at(timeline, 0, Code.WAIT_REPORT) == 136
    assert ends_at(timeline, 0, Code.STEP) == 144


def test_figures_of_the_step_and_of_the_compute() -> None:
    """In halves: the ticks of the test above. Busy: 13 + 59 compute and 8 of the optimizer."""
    timeline = simulate_programs(programs_of(gpipe(1, 1), reduced=True), ONE_STAGE)
    step, compute = step_figures(timeline), compute_figures(timeline)
    assert step.makespan == Fraction(144, 2)
    assert step.busy == (Fraction(80, 2),)
    assert step.bubble == Fraction(64, 2)
    assert step.bubble_rate == Fraction(64, 144)
    assert step.waits == {
        "message": (0,),
        "reduce": (Fraction(53, 2),),
        "count": (1,),
        "tie": (0,),
        "norm": (3,),
        "report": (Fraction(3, 2),),
    }
    assert compute.makespan == compute.longest_stage == Fraction(74, 2)
    assert compute.busy == (Fraction(72, 2),)
    assert compute.bubble == 1
    assert compute.messages == 0


def test_norm_and_report_begin_when_the_last_rank_has_posted_them() -> None:
    """F 0–2 on rank 0, message, F and B 3–9 on rank 1, message, B 10–14 on rank 0."""
    costs = Costs(F=Fraction(2), I=Fraction(2), W=Fraction(2), comm=Fraction(1)).of_stages(2, 2)
    durations = replace(abstract_durations(costs, 2), norm=3, step=(5, 7), report=1)
    timeline = simulate_programs(programs_of(one_f_one_b(2, 1)), durations)
    posted = [sums[1:] for sums in timeline.sums]
    assert [[(s.name, s.posted, s.start, s.end) for s in sums] for sums in posted] == [
        [("norm", 14, 14, 17), ("report", 14, 14, 15)],
        [("norm", 9, 14, 17), ("report", 9, 14, 15)],
    ]
    assert [ends_at(timeline, r, Code.STEP) for r in (0, 1)] == [22, 24]
    step = step_figures(timeline)
    assert step.makespan == 24
    assert step.busy == (6 + 5, 6 + 7)
    assert step.waits["norm"] == (3, 8)
    assert step.waits["message"] == (8, 3)
    assert compute_figures(timeline).makespan == 14


BODY = Body(Op.F, 0, False, (), (), (Call("work", "unit", (), ()),))
WORK = Durations(Fraction(1), {"work": 10}, 4, {}, 0, 0, (0, 0), 0)
X, Y = Operand("x", 0), Operand("y", 0)
TASK = (Op.F, 0, 0)
FORTH, BACK = Queue("act", 0, 1), Queue("act", 1, 0)


def written(rank: int, builder: StreamBuilder) -> RankProgram:
    """A program by hand: just a stream."""
    queues = (FORTH, BACK)
    return RankProgram(rank, 2, 1, "", (), (), queues, builder.build(), (BODY,))


def test_a_wait_for_a_send_blocks_but_takes_no_time() -> None:
    sender, receiver = StreamBuilder(()), StreamBuilder(())
    sent = sender.add(Code.SEND, task=TASK, link=(1, 0, 0), reads=(Y,), place="mine.sched:1")
    sender.add(Code.WAIT_MESSAGE, reads=(Y,), ref=sent)
    sender.add(Code.RUN, task=TASK, body=0)
    receiver.add(Code.RUN, task=TASK, body=0)
    posted = receiver.add(Code.RECV, task=TASK, link=(0, 0, 0), writes=(X,))
    receiver.add(Code.WAIT_MESSAGE, reads=(X,), ref=posted)
    timeline = simulate_programs((written(0, sender), written(1, receiver)), WORK)
    assert timeline.end[0].tolist() == [0, 0, 10]
    assert timeline.end[1].tolist() == [10, 10, 10]


def test_a_wait_for_a_receive_lasts_until_the_message_is_there() -> None:
    sender, receiver = StreamBuilder(()), StreamBuilder(())
    sender.add(Code.RUN, task=TASK, body=0)
    sender.add(Code.SEND, task=TASK, link=(1, 0, 0), reads=(Y,))
    posted = receiver.add(Code.RECV, task=TASK, link=(0, 0, 0), writes=(X,))
    receiver.add(Code.WAIT_MESSAGE, reads=(X,), ref=posted)
    timeline = simulate_programs((written(0, sender), written(1, receiver)), WORK)
    assert timeline.start[1].tolist() == [0, 0]
    assert timeline.end[1].tolist() == [0, 14]


def test_ranks_that_wait_for_one_another_are_named() -> None:
    """Rendezvous: neither send is done before the other rank has posted its receive."""
    builders = (StreamBuilder(()), StreamBuilder(()))
    for rank, builder in enumerate(builders):
        place = f"mine.sched:{rank + 1}"
        sent = builder.add(Code.SEND, task=TASK, link=(1 - rank, rank, 0), reads=(Y,))
        builder.add(Code.WAIT_MESSAGE, reads=(Y,), ref=sent, place=place)
        builder.add(Code.RECV, task=TASK, link=(1 - rank, 1 - rank, 0), writes=(X,))
    with pytest.raises(DiagnosticError) as caught:
        simulate_programs((written(0, builders[0]), written(1, builders[1])), WORK)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E503"
    task = "F(stage 0, microbatch 0)"
    assert diagnostic.notes == (
        f"rank 0 waits at row 1, wait y.0 (mine.sched:1) for rank 1 to receive {task}, "
        "queue act.0-1 seq 0",
        f"rank 1 waits at row 1, wait y.0 (mine.sched:2) for rank 0 to receive {task}, "
        "queue act.1-0 seq 0",
    )


def test_a_sum_that_a_rank_never_posts_hangs_the_others() -> None:
    builders = (StreamBuilder(()), StreamBuilder(()))
    for code in (Code.NORM, Code.WAIT_NORM):
        builders[0].add(code)
    builders[1].add(Code.WAIT_COUNT)
    with pytest.raises(DiagnosticError) as caught:
        simulate_programs((written(0, builders[0]), written(1, builders[1])), WORK)
    assert caught.value.diagnostics[0].notes == (
        "rank 0 waits at row 1, wait norm for rank 1 to post norm",
        "rank 1 waits at row 0, wait count for what it never posts",
    )


def test_ticks_that_leave_64_bits_are_refused() -> None:
    durations = replace(
        ONE_STAGE, calls={**ONE_STAGE.calls, "stage0.F": 1 << 62, "head.I": 1 << 62}
    )
    with pytest.raises(DiagnosticError) as caught:
        simulate_programs(programs_of(gpipe(1, 1), reduced=True), durations)
    assert caught.value.diagnostics[0].code == "E308"


def test_large_programs() -> None:
    """32 ranks, 512 microbatches, 160,000 instructions."""
    order = one_f_one_b(32, 512)
    programs = programs_of(order)
    durations = abstract_durations(Costs().of_stages(32, 32), 32)
    timeline = simulate_programs(programs, durations)
    assert compute_figures(timeline).makespan == 3 * 512 + 3 * 31
