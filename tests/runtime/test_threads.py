"""The threads transport: rendezvous, exact detection of hangs, sums that repeat bit for bit."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import torch

from schedc.ir.mesh import Mesh
from schedc.ir.order import Op, Task
from schedc.program.program import Queue
from schedc.runtime.local import run_in_threads
from schedc.runtime.transports.interface import Hang, Link
from schedc.runtime.transports.threads import Hub, Mismatch, ThreadsTransport

ACT = Link(Queue("act", 0, 1), 0, Task(Op.F, 0, 0))
GRAD = Link(Queue("grad", 1, 0), 0, Task(Op.I, 1, 0))


def on_ranks(mesh: Mesh, run: Callable[[ThreadsTransport], None]) -> None:
    hub = Hub(mesh.size)
    run_in_threads(hub, mesh.size, lambda rank: run(ThreadsTransport(hub, mesh, rank)))


def test_a_message_arrives() -> None:
    received = torch.zeros(3)

    def run(transport: ThreadsTransport) -> None:
        if transport.rank == 0:
            transport.post_send(ACT, torch.arange(3.0)).wait()
        else:
            transport.post_recv(ACT, received).wait()

    on_ranks(Mesh(pp=2), run)
    assert received.tolist() == [0.0, 1.0, 2.0]


def test_both_sending_first_is_a_hang_that_says_who_waits_for_what() -> None:
    """A send is a rendezvous: this order hangs with NCCL and gloo too."""

    def run(transport: ThreadsTransport) -> None:
        first, second = (ACT, GRAD) if transport.rank == 0 else (GRAD, ACT)
        transport.post_send(first, torch.zeros(1)).wait()
        transport.post_recv(second, torch.zeros(1)).wait()

    began = time.monotonic()
    with pytest.raises(Hang) as caught:
        on_ranks(Mesh(pp=2), run)
    assert time.monotonic() - began < 5
    assert [w.rank for w in caught.value.waiting] == [0, 1]
    assert "rank 0 waits for its send act.0-1 seq 0, F(stage 0, microbatch 0)" in str(caught.value)


def test_posting_the_receive_first_does_not_hang() -> None:
    def run(transport: ThreadsTransport) -> None:
        mine, other = (ACT, GRAD) if transport.rank == 0 else (GRAD, ACT)
        receive = transport.post_recv(other, torch.zeros(1))
        transport.post_send(mine, torch.zeros(1)).wait()
        receive.wait()

    on_ranks(Mesh(pp=2), run)


def test_a_rank_that_ends_early_leaves_the_others_hanging() -> None:
    def run(transport: ThreadsTransport) -> None:
        if transport.rank == 1:
            transport.post_recv(ACT, torch.zeros(1)).wait()

    with pytest.raises(Hang):
        on_ranks(Mesh(pp=2), run)


def test_a_rank_that_fails_ends_the_others() -> None:
    def run(transport: ThreadsTransport) -> None:
        if transport.rank == 0:
            raise ValueError("of rank 0")
        transport.post_recv(ACT, torch.zeros(1)).wait()

    with pytest.raises(ValueError, match="of rank 0"):
        on_ranks(Mesh(pp=2), run)


@pytest.mark.parametrize(
    ("sent", "received", "link"),
    [
        (torch.zeros(2), torch.zeros(3), ACT),
        (torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16), ACT),
        (torch.zeros(2), torch.zeros(2), Link(ACT.queue, 0, Task(Op.F, 0, 1))),
    ],
    ids=["shape", "dtype", "task"],
)
def test_what_does_not_match_is_noticed(
    sent: torch.Tensor, received: torch.Tensor, link: Link
) -> None:
    """gloo takes a shorter message or another dtype without a word."""

    def run(transport: ThreadsTransport) -> None:
        if transport.rank == 0:
            transport.post_send(ACT, sent).wait()
        else:
            transport.post_recv(link, received).wait()

    with pytest.raises(Mismatch):
        on_ranks(Mesh(pp=2), run)


def test_sums_run_over_their_axes_and_are_equal_bit_for_bit() -> None:
    mesh = Mesh(dp=2, pp=3)
    values = {rank: torch.rand(1000) for rank in range(6)}
    found: dict[tuple[int, str], torch.Tensor] = {}

    def run(transport: ThreadsTransport) -> None:
        for name, axes in (("dp", ("dp",)), ("pp", ("pp",)), ("all", ("dp", "pp"))):
            tensor = values[transport.rank].clone()
            transport.post_sum(name, tensor, axes).wait()
            found[transport.rank, name] = tensor

    on_ranks(mesh, run)
    for name, groups in (("dp", mesh.groups("dp")), ("pp", mesh.groups("pp"))):
        for group in groups:
            expected = torch.stack([values[rank] for rank in group]).sum(0)
            for rank in group:
                torch.testing.assert_close(found[rank, name], expected)
                assert torch.equal(found[rank, name], found[group[0], name])
    total = torch.stack(list(values.values())).sum(0)
    torch.testing.assert_close(found[5, "all"], total)


def test_ranks_at_different_sums_are_noticed() -> None:
    def run(transport: ThreadsTransport) -> None:
        transport.post_sum("norm" if transport.rank else "report", torch.zeros(1), ("pp",)).wait()

    with pytest.raises(Mismatch, match="norm"):
        on_ranks(Mesh(pp=2), run)


def test_control() -> None:
    gathered: list[object] = []
    shared: list[object] = []
    tensor = torch.zeros(2)

    def run(transport: ThreadsTransport) -> None:
        transport.barrier()
        gathered.extend(transport.gather(transport.rank * 10))
        shared.append(transport.share(f"from {transport.rank}"))
        if transport.rank == 0:
            transport.fetch(tensor, 2)
        elif transport.rank == 2:
            transport.fetch(torch.ones(2), 2)

    on_ranks(Mesh(dp=3), run)
    assert gathered == [0, 10, 20]
    assert shared == ["from 0"] * 3
    assert tensor.tolist() == [1.0, 1.0]
