"""Lowering: messages in one order of transfers, posted early, waited for late, never stalling."""

from __future__ import annotations

from collections import Counter
from graphlib import TopologicalSorter
from itertools import pairwise

import pytest

from schedc.ir.order import Op, Task
from schedc.passes.lower import lower
from schedc.passes.pipeline import compile_programs
from schedc.passes.reduce_gradients import reduce_gradients
from schedc.passes.reuse_buffers import reuse_buffers
from schedc.program.abstract import abstract_model
from schedc.program.instructions import Load, Operand, Recv, Run, Send, WaitMessage
from schedc.program.program import RankProgram
from schedc.program.text import print_program
from schedc.program.verify import verify_programs
from schedc.simulate.order import simulate_order
from tests.passes.cases import (
    COSTS,
    Case,
    cases,
    legal_order,
    llama,
    llama_programs,
    position_of,
    posts_of,
    reader_position,
    runs,
    schedule,
    transfer_of,
)

CASES = cases()
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)

AHEAD = 2
"""Operations between a receive and its reader: one to post, one to overlap with."""


@every_case
def test_programs_are_valid_after_each_pass(case: Case) -> None:
    programs = case.lowered
    verify_programs(programs, case.model, replicas=1)
    verify_programs(reuse_buffers(programs), case.model, replicas=1)
    programs = reduce_gradients(programs, case.model)
    verify_programs(programs, case.model, replicas=2)
    verify_programs(reuse_buffers(programs), case.model, replicas=2)


@every_case
def test_each_rank_runs_its_order(case: Case) -> None:
    for rank, program in enumerate(case.lowered):
        assert [run.task for _, run in runs(program)] == list(case.order.tasks(rank))


@every_case
def test_all_ranks_post_in_one_global_order(case: Case) -> None:
    """Both ends of a message being one event, no rank's posts contradict another's."""
    before: dict[tuple[str, int], set[tuple[str, int]]] = {}
    ends: Counter[tuple[str, int, Task]] = Counter()
    for program in case.lowered:
        posts = posts_of(program)
        transfers = [transfer_of(program, post) for post in posts]
        for earlier, later in pairwise(transfers):
            before.setdefault(later, set()).add(earlier)
        ends.update(
            (*transfer, post.instruction.task)
            for transfer, post in zip(transfers, posts, strict=True)
        )
    assert list(TopologicalSorter(before).static_order()) or not before  # raises CycleError
    assert set(ends.values()) <= {2}, "each message has a send and a receive of the same task"


@every_case
def test_a_message_crosses_each_boundary_between_ranks_once_a_microbatch(case: Case) -> None:
    """And none where the next stage is on the same rank."""
    order = case.order
    wanted: Counter[tuple[str, int, int]] = Counter()
    for stage in range(order.stages - 1):
        here, there = order.rank_of[stage], order.rank_of[stage + 1]
        if here != there:
            wanted["act", here, there] += order.microbatches
            wanted["grad", there, here] += order.microbatches
    found: Counter[tuple[str, int, int]] = Counter()
    for program in case.lowered:
        for post in posts_of(program):
            queue = program.queues[post.instruction.queue]
            if post.is_send:
                found[queue.kind, queue.source, queue.target] += 1
        used = {post.instruction.queue for post in posts_of(program)}
        assert used == set(range(len(program.queues))), "a rank names only queues that it uses"
    assert found == wanted


@every_case
def test_sends_are_posted_right_after_their_producer(case: Case) -> None:
    for program in case.lowered:
        position = position_of(program)
        for post in posts_of(program):
            if post.is_send:
                assert post.after == position[post.instruction.task] + 1


@every_case
def test_receives_are_posted_two_operations_ahead(case: Case) -> None:
    """Earlier only where a later post of the rank cannot wait, later only behind an earlier one."""
    for program in case.lowered:
        posts = posts_of(program)
        latest = [
            post.after
            if post.is_send
            else reader_position(program, case.order, post.instruction.task)
            for post in posts
        ]
        for k, post in enumerate(posts):
            if post.is_send:
                continue
            wanted = max(0, latest[k] - AHEAD)
            forced = min(latest[k:])
            behind = posts[k - 1].after if k else 0
            assert post.after <= latest[k]
            assert post.after == max(behind, min(wanted, forced))


@every_case
def test_a_message_is_waited_for_right_before_its_reader(case: Case) -> None:
    for program in case.lowered:
        receives = {p.row: p.instruction for p in posts_of(program) if not p.is_send}
        done = 0
        for instruction in program.stream:
            if isinstance(instruction, WaitMessage) and instruction.of in receives:
                task = receives.pop(instruction.of).task
                assert reader_position(program, case.order, task) == done
            done += isinstance(instruction, Run)
        assert not receives


@every_case
def test_no_wait_for_a_send_stalls(case: Case) -> None:
    """By the timeline that the programs were made from, the peer has posted its receive by then.

    A send also gets at least one whole operation to overlap with, unless the rank has no more.
    """
    timeline = case.timeline
    posted: dict[tuple[str, int], int] = {}  # when the target is ready, in ticks
    for rank, program in enumerate(case.lowered):
        for post in posts_of(program):
            if not post.is_send:
                ends = timeline.end[rank]
                posted[transfer_of(program, post)] = int(ends[post.after - 1]) if post.after else 0
    for rank, program in enumerate(case.lowered):
        sends = {post.row: post for post in posts_of(program) if post.is_send}
        starts = timeline.start[rank]
        done = 0
        for instruction in program.stream:
            if isinstance(instruction, WaitMessage) and instruction.of in sends:
                post = sends.pop(instruction.of)
                if done < len(starts):
                    assert posted[transfer_of(program, post)] <= starts[done]
                    assert done > post.after
            done += isinstance(instruction, Run)
        assert not sends


def test_a_wait_for_a_send_comes_as_soon_as_it_cannot_stall() -> None:
    """Rank 0 of 1F1B, P = 2: y of microbatch 0 is received at its end, so F(1) is all it overlaps.

    F(0, 0) ends at 1 and rank 1 posted the receive at 0. F(0, 1) is the one operation to overlap
    with; the wait stands before B(0, 0).
    """
    program = Case(
        "", simulate_order(o := schedule("one_f_one_b", 2, 4), COSTS["equal"](o))
    ).lowered[0]
    stream = list(program.stream)
    send = next(row for row, i in enumerate(stream) if isinstance(i, Send))
    wait = next(row for row, i in enumerate(stream) if isinstance(i, WaitMessage) and i.of == send)
    between = [i.task for i in stream[send:wait] if isinstance(i, Run)]
    assert between == [Task(Op.F, 0, 1)]


@every_case
def test_stages_on_one_rank_hand_over_without_a_copy(case: Case) -> None:
    """What F writes is what the next stage's F reads, the same slot; likewise gradients."""
    order = case.order
    for rank, program in enumerate(case.lowered):
        written: dict[tuple[bool, int, int], Operand] = {}
        for _, run in runs(program):
            named = dict(zip(program.bodies[run.body].writes, run.writes, strict=True))
            forward, s, m = run.task.op is Op.F, run.task.stage, run.task.microbatch
            if outputs := [named[name] for name in ("y", "dx") if name in named]:
                (written[forward, s, m],) = outputs
        for _, run in runs(program):
            named = dict(zip(program.bodies[run.body].reads, run.reads, strict=True))
            forward, s, m = run.task.op is Op.F, run.task.stage, run.task.microbatch
            neighbour = s - 1 if forward else s + 1
            inside = 0 <= neighbour < order.stages and order.rank_of[neighbour] == rank
            name = "x" if forward else "dy"
            if inside and name in named:
                slot = written[forward, neighbour, m]
                assert named[name]._replace(last=False) == slot._replace(last=False)


def test_one_rank_sends_nothing() -> None:
    for order in (schedule("interleaved", 1, 4), schedule("zb_h1", 1, 4), legal_order(3, 1, 3, 5)):
        (program,) = Case("", simulate_order(order, COSTS["equal"](order))).lowered
        assert not program.queues
        assert not posts_of(program)
        assert not any(isinstance(i, WaitMessage) for i in program.stream)


@every_case
def test_tokens_and_labels_are_loaded_once_a_microbatch(case: Case) -> None:
    order = case.order
    for rank, program in enumerate(case.lowered):
        found = Counter(
            (i.write.buffer, i.microbatch) for i in program.stream if isinstance(i, Load)
        )
        kinds = [
            kind
            for kind, stage in (("tokens", 0), ("labels", order.stages - 1))
            if order.rank_of[stage] == rank
        ]
        assert found == Counter((kind, m) for kind in kinds for m in range(order.microbatches))


# ---- a real model: what its graphs save by reference keeps buffers in use ------------------------

HALVES = (("embedding", "layers.0"), ("layers.1", "head"))


def last_readers(program: RankProgram, pool: str) -> set[Op | str]:
    """Which operations, or ``wait``, free the slots of a pool."""
    found: set[Op | str] = set()
    for instruction in program.stream:
        if isinstance(instruction, Run):
            ends = [o for o in instruction.reads if o.buffer == pool and o.last]
            found |= {instruction.task.op} if ends else set()
        elif isinstance(instruction, WaitMessage):
            operand = instruction.operand
            found |= {"wait"} if operand.buffer == pool and operand.last else set()
    return found


def test_a_llama_holds_what_its_graphs_saved_by_reference() -> None:
    """From the signatures: layer and head save x, for I; W wants a layer's dy, and the tokens.

    The head reads the labels in I again. No W wants x.
    """
    first, last = llama_programs(schedule("zb_h1", 2, 3), HALVES)
    assert last_readers(first, "tokens") == {Op.W}
    assert last_readers(first, "dy") == {Op.W}
    assert last_readers(first, "y") == {"wait"}
    assert last_readers(last, "x") == {Op.I}
    assert last_readers(last, "labels") == {Op.I}
    assert last_readers(last, "dx") == {"wait"}
    first, last = llama_programs(schedule("one_f_one_b", 2, 3), HALVES)
    assert last_readers(first, "tokens") == last_readers(first, "dy") == {Op.B}
    assert last_readers(last, "x") == last_readers(last, "labels") == {Op.B}


@pytest.mark.parametrize("seed", range(6))
def test_random_orders_of_a_llama_are_valid_after_each_pass(seed: int) -> None:
    partition = (("embedding",), ("layers.0", "layers.1"), ("layers.2",), ("head",))
    order = legal_order(seed, 1 + seed % 3, 3, 4)
    programs = llama_programs(order, partition)
    model = llama(3)
    verify_programs(programs, model, replicas=1)
    verify_programs(reuse_buffers(reduce_gradients(programs, model)), model, replicas=2)


def test_equal_input_gives_equal_text() -> None:
    order = schedule("interleaved", 4, 6)
    texts: list[list[str]] = []
    for _ in range(2):
        timeline = simulate_order(order, COSTS["unequal"](order))
        model, partition = abstract_model(order.stages)
        programs = compile_programs(timeline, model, partition, replicas=2)
        texts.append([print_program(program) for program in programs])
    assert texts[0] == texts[1]


def test_the_streams_begin_and_end_alike() -> None:
    """Count first; norm after all operations; step after the norm is known; report last."""
    order = schedule("one_f_one_b", 2, 2)
    model, partition = abstract_model(2)
    for program in lower(simulate_order(order, COSTS["equal"](order)), model, partition, "x"):
        names = [type(i).__name__ for i in program.stream]
        assert names[0] == "Count"
        assert names[-5:] == ["Norm", "Report", "WaitNorm", "WaitReport", "Step"]
        assert "Run" not in names[-5:]
        assert names.count("WaitCount") == 1
    count = names.index("WaitCount")
    backward = next(row for row, r in runs(program) if r.task.op is Op.B)
    assert count < backward, "the loss is scaled by the count before the first backward"


def test_a_receive_is_not_a_send() -> None:
    """The two kinds of posts that the tests above tell apart."""
    order = schedule("gpipe", 2, 1)
    first, last = Case("", simulate_order(order, COSTS["equal"](order))).lowered
    assert [type(p.instruction) for p in posts_of(first)] == [Send, Recv]
    assert [type(p.instruction) for p in posts_of(last)] == [Recv, Send]
