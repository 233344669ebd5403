"""What NCCL's one stream a communicator costs: nothing, as long as messages are not very slow.

A timed model of its own: a rank's compute runs in program order and stands still at waits; the
messages of one stream follow one another, and one begins when both its ends have come to it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from fractions import Fraction

import pytest

from schedc.driver.build import MESSAGE
from schedc.ir.cost import Costs, StageCosts
from schedc.ir.order import Op
from schedc.passes.pipeline import compile_programs
from schedc.program.instructions import Recv, Run, Send, WaitMessage
from schedc.program.program import Programs, Queue
from schedc.simulate.order import simulate_order
from tests.runtime.builds import even_partition, model_of, order_of

Message = tuple[Queue, int]


def makespan(
    programs: Programs, costs: StageCosts, takes: Fraction, stream: Callable[[Queue], Hashable]
) -> Fraction:
    """When the last rank is done, where a message takes ``takes``.

    ``stream`` tells which messages of a rank share one.
    """
    durations = {
        Op.F: costs.F[0],
        Op.I: costs.I[0],
        Op.W: costs.W[0],
        Op.B: costs.I[0] + costs.W[0],
    }
    clock = [Fraction(0)] * len(programs)
    at = [0] * len(programs)
    ready: dict[Message, list[tuple[int, Fraction]]] = {}
    before: dict[tuple[int, Message], Message | None] = {}
    last: dict[tuple[int, Hashable], Message] = {}
    done: dict[Message, Fraction] = {}

    def finish() -> None:
        """Give every message its end whose posts, and whose predecessors' ends, are known."""
        for message, posts in ready.items():
            previous = [before[rank, message] for rank, _ in posts]
            known = len(posts) == 2 and all(p is None or p in done for p in previous)
            if known and message not in done:
                ends = [done[p] for p in previous if p is not None]
                done[message] = max([time for _, time in posts] + ends) + takes

    rows = [list(program.stream) for program in programs]
    while any(i < len(r) for i, r in zip(at, rows, strict=True)):
        start = sum(at) + len(done)
        for rank, program in enumerate(programs):
            while at[rank] < len(rows[rank]):
                row = rows[rank][at[rank]]
                if isinstance(row, Send | Recv):
                    queue = program.queues[row.queue]
                    message = queue, row.sequence
                    key = rank, stream(queue)
                    before[rank, message] = last.get(key)
                    last[key] = message
                    ready.setdefault(message, []).append((rank, clock[rank]))
                elif isinstance(row, Run):
                    clock[rank] += durations[row.task.op]
                elif isinstance(row, WaitMessage):
                    post = rows[rank][row.of]
                    assert isinstance(post, Send | Recv)
                    message = program.queues[post.queue], post.sequence
                    if message not in done:
                        break
                    clock[rank] = max(clock[rank], done[message])
                at[rank] += 1
        finish()
        assert sum(at) + len(done) > start, "the programs hang"
    return max(clock)


@pytest.mark.parametrize("takes", [Fraction(1, 50), Fraction(1, 10)], ids=str)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("schedule", ["gpipe", "one_f_one_b", "zb_h1", "interleaved", "v_shaped"])
def test_one_stream_for_all_activations_and_one_for_all_gradients(
    schedule: str, ranks: int, takes: Fraction
) -> None:
    """No message waits for another one, in programs lowered as those of plans are."""
    order = order_of(schedule, ranks, 8)
    model = model_of(8)
    costs = Costs().of_stages(ranks, order.stages)
    assumed = replace(costs, comm=MESSAGE * max(costs.F))
    partition = even_partition(model, order.stages)
    programs = compile_programs(simulate_order(order, assumed), model, partition)
    apart = makespan(programs, costs, takes, stream=lambda queue: queue)
    assert makespan(programs, costs, takes, stream=lambda queue: queue.kind) == apart


def test_messages_that_are_taken_for_free_would_wait_for_others() -> None:
    """Why lowering takes a message to last a while: the ring of interleaved stages."""
    order = order_of("interleaved", 4, 8)
    model = model_of(8)
    costs = Costs().of_stages(4, order.stages)
    partition = even_partition(model, order.stages)
    found: list[Fraction] = []
    for comm in (Fraction(0), MESSAGE * max(costs.F)):
        timeline = simulate_order(order, replace(costs, comm=comm))
        programs = compile_programs(timeline, model, partition)
        found.append(makespan(programs, costs, Fraction(1, 10), stream=lambda queue: queue.kind))
    assert found[1] < found[0]
