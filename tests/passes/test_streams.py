"""What NCCL's one stream a communicator costs: nothing, where the order knows what a message takes.

A timed model of its own: a rank's compute runs in program order and stands still at waits; the
messages of one stream follow one another, and one begins when both its ends have come to it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from fractions import Fraction

import pytest

from schedc.ir.cost import Costs
from schedc.ir.order import Op
from schedc.passes.pipeline import compile_programs
from schedc.program.instructions import Recv, Run, Send, WaitMessage
from schedc.program.program import Programs, Queue
from schedc.simulate.order import simulate_order
from tests.runtime.builds import even_partition, model_of, order_of

MESSAGE = Fraction(1, 10)
Message = tuple[Queue, int]


def makespan(
    programs: Programs, takes: dict[Op, Fraction], stream: Callable[[Queue], Hashable]
) -> Fraction:
    """When the last rank is done; ``stream`` tells which messages of a rank share one."""
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
                done[message] = max([time for _, time in posts] + ends) + MESSAGE

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
                    clock[rank] += takes[row.task.op]
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


@pytest.mark.parametrize("schedule", ["gpipe", "one_f_one_b", "zb_h1", "interleaved", "v_shaped"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_one_stream_for_all_activations_and_one_for_all_gradients(
    schedule: str, ranks: int
) -> None:
    order = order_of(schedule, ranks, 8)
    model = model_of(8)
    costs = replace(Costs(), comm=MESSAGE).of_stages(ranks, order.stages)
    partition = even_partition(model, order.stages)
    programs = compile_programs(simulate_order(order, costs), model, partition)
    stage = Fraction(ranks, order.stages)
    takes = {Op.F: stage, Op.I: stage, Op.W: stage, Op.B: 2 * stage}
    apart = makespan(programs, takes, stream=lambda queue: queue)
    assert makespan(programs, takes, stream=lambda queue: queue.kind) == apart
