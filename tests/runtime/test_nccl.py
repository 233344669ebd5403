"""The nccl transport without a GPU: every rank's calls, recorded on a fake, and what they promise.

What is true of the calls here is true of them on GPUs, for nothing in them depends on data or
time. What NCCL does with them is a model: :mod:`tests.runtime.nccl_model`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, permutations

import pytest
import torch

from schedc.ir.order import Op
from schedc.runtime.graph_times import measure
from schedc.runtime.training import train
from tests.runtime.builds import Shape, artifact_of
from tests.runtime.nccl_model import Mismatch, stuck_ranks
from tests.runtime.recording import (
    DEVICE,
    Call,
    Communicator,
    MixedDevices,
    Post,
    Read,
    Recording,
    Synchronize,
    fake_gpu,
    make_fake_rank,
    record,
)

SCHEDULES = ("gpipe", "one_f_one_b", "zb_h1", "interleaved", "v_shaped", "zb_v", "v_half")
SHAPES = [
    Shape(schedule, pp, 3, dp, layers=6, optimizer="adamw")
    for schedule in SCHEDULES
    for pp in (2, 4)
    for dp in (1, 2)
]
every_shape = pytest.mark.parametrize(
    "shape", SHAPES, ids=lambda s: f"{s.schedule}-pp{s.pp}-dp{s.dp}"
)


def queues_of(recordings: tuple[Recording, ...]) -> Iterator[tuple[list[Post], list[Post]]]:
    """The sends and the receives of every communicator and ordered pair of ranks."""
    for communicator in recordings[0].communicators():
        for source, target in permutations(communicator.ranks, 2):
            sends, receives = (recordings[r].posts(communicator) for r in (source, target))
            yield (
                [post for post in sends if post.verb == "send" and post.peer == target],
                [post for post in receives if post.verb == "recv" and post.peer == source],
            )


# ---- communicators ------------------------------------------------------------------------------


def test_the_communicators_of_two_replicas_of_two_stages() -> None:
    """For each pipeline one for activations and one for gradients; then those of the sums."""
    made = record(Shape("zb_h1", 2, 3, 2, layers=6, optimizer="adamw"))[1].communicators()
    pipelines, replicas = [(0, 2), (1, 3)], [(0, 1), (2, 3)]
    queues = [ranks for ranks in pipelines for _ in ("act", "grad")]
    assert [c.ranks for c in made] == [*queues, *replicas, *pipelines, (0, 1, 2, 3)]
    assert {(c.backend, c.device) for c in made} == {("nccl", DEVICE)}


@every_shape
def test_all_ranks_make_the_same_communicators_in_one_order(shape: Shape) -> None:
    recordings = record(shape)
    for recording in recordings:
        made = recording.communicators()
        assert made == recordings[0].communicators()
        assert recording.calls[: len(made)] == made  # all before anything is posted
        assert all(len(communicator.ranks) > 1 for communicator in made)
        used = [p.communicator for p in recording.posts()]
        assert set(used) == {c for c in made if recording.rank in c.ranks}
        assert all(recording.rank in communicator.ranks for communicator in used)


def test_a_rank_alone_makes_no_communicator_and_no_call() -> None:
    (recording,) = record(Shape("gpipe", 1, 3, layers=2, optimizer="adamw"))
    assert not recording.communicators()
    assert not recording.posts()


def test_one_replica_sums_nothing_over_replicas() -> None:
    """The count and the reductions are over a group of one: the norm and the loss are what is left.

    All sums are over the pipeline then, and share a communicator.
    """
    for recording in record(Shape("zb_h1", 2, 3, 1, layers=6, optimizer="adamw")):
        step = recording.calls[recording.steps[0] :]
        sums = [call for call in step if isinstance(call, Post) and call.verb == "sum"]
        assert [s.dtype for s in sums] == [torch.float64, torch.float64]
        assert {s.communicator.ranks for s in sums} == {(0, 1)}


@every_shape
def test_every_communicator_and_queue_is_used_once_before_the_first_step(shape: Shape) -> None:
    """Otherwise connections would be made within the step, where they hold the host."""
    for recording in record(shape):
        before, step = (
            {(p.communicator, p.verb, p.peer) for p in calls if isinstance(p, Post)}
            for calls in (
                recording.calls[: recording.steps[0]],
                recording.calls[recording.steps[0] :],
            )
        )
        assert step <= before


# ---- messages -----------------------------------------------------------------------------------


@every_shape
def test_each_queue_is_sent_and_received_in_one_order(shape: Shape) -> None:
    messages = 0
    for sends, receives in queues_of(record(shape)):
        assert [s.link for s in sends] == [r.link for r in receives]
        assert [(s.shape, s.dtype) for s in sends] == [(r.shape, r.dtype) for r in receives]
        messages += sum(send.link is not None for send in sends)
    rank_of = artifact_of(shape).manifest.rank_of
    crossing = sum(a != b for a, b in pairwise(rank_of))
    assert messages == 2 * crossing * shape.microbatches * shape.dp


@every_shape
def test_activations_and_gradients_never_share_a_communicator(shape: Shape) -> None:
    kinds: dict[Communicator, set[str]] = {}
    for recording in record(shape):
        for post in recording.posts():
            kind = "sum" if post.verb == "sum" else ""
            if post.link is not None:
                kind = "act" if post.link.task.op is Op.F else "grad"
            if kind and recording.calls.index(post) > recording.steps[0]:
                kinds.setdefault(post.communicator, set()).add(kind)
    assert all(len(found) == 1 for found in kinds.values())


@every_shape
def test_the_host_reads_numbers_only_when_the_whole_step_is_posted(shape: Shape) -> None:
    """A read within a step would let the device run dry."""
    for recording in record(shape):
        step = recording.calls[recording.steps[0] :]
        reads = [i for i, call in enumerate(step) if isinstance(call, Read | Synchronize)]
        posts = [i for i, call in enumerate(step) if isinstance(call, Post)]
        assert reads
        assert reads[0] > posts[-1]


# ---- no buffering -------------------------------------------------------------------------------


@pytest.mark.parametrize("one_by_one", [False, True], ids=["streams", "one-by-one"])
@every_shape
def test_a_run_ends_without_any_buffering(shape: Shape, one_by_one: bool) -> None:
    """No message needs a group, not even opposite ones of one pair on one communicator.

    All ranks post in one global order of transfers, so the earliest one that is not done can
    always go on, with streams and without.
    """
    assert not stuck_ranks(record(shape), one_by_one)


def swapped(
    recordings: tuple[Recording, ...], rank: int, first: Post, second: Post
) -> list[Recording]:
    """The recordings with two of a rank's posts in each other's place."""
    exchanged: dict[Call, Call] = {first: second, second: first}
    calls = [exchanged.get(call, call) for call in recordings[rank].calls]
    return [replace(r, calls=calls) if r.rank == rank else r for r in recordings]


def neighbours(recording: Recording, *verbs: str) -> Iterator[tuple[Post, Post]]:
    """Posts of the step that follow one another among those of ``verbs`` on a communicator."""
    for communicator in recording.communicators():
        posts = [p for p in recording.posts(communicator) if p.verb in verbs and p.link is not None]
        yield from pairwise(posts)


def test_receives_swapped_across_peers_are_found_to_hang() -> None:
    """Rank 1 of a V takes activations from both sides: the last from above, the first from below.

    The latter comes out of the former, by way of the last ranks.
    """
    recordings = record(Shape("v_shaped", 4, 3, 1, layers=6, optimizer="adamw"))
    across = [(a, b) for a, b in neighbours(recordings[1], "recv") if a.peer != b.peer]
    assert across
    for first, second in across:
        assert {first.peer, second.peer} == {0, 2}
        stuck = stuck_ranks(swapped(recordings, 1, first, second))
        assert stuck.keys() == {0, 1, 2, 3}


def test_messages_swapped_within_a_queue_are_found_to_meet_others() -> None:
    """NCCL would take one for the other: both have one shape."""
    recordings = record(Shape("one_f_one_b", 4, 3, 1, layers=6, optimizer="adamw"))
    pairs = [(a, b) for a, b in neighbours(recordings[2], "send") if a.peer == b.peer]
    assert pairs
    for first, second in pairs:
        with pytest.raises(Mismatch):
            stuck_ranks(swapped(recordings, 2, first, second))


def test_a_receive_left_out_is_found_to_hang() -> None:
    recordings = record(Shape("one_f_one_b", 2, 3, 1, layers=6, optimizer="adamw"))
    last = [p for p in recordings[1].posts() if p.verb == "recv"][-1]
    calls = [c for c in recordings[1].calls if c != last]
    assert stuck_ranks([recordings[0], replace(recordings[1], calls=calls)]).keys() == {0, 1}


# ---- the device ---------------------------------------------------------------------------------


def test_the_fake_gpu_refuses_tensors_of_the_cpu() -> None:
    """What the recordings prove about devices rests on this."""
    with fake_gpu(Recording(0), 1), pytest.raises(MixedDevices):
        torch.add(torch.zeros(2, device=DEVICE), torch.zeros(2))


class Alone:
    """Control of a rank whose others are all like it."""

    rank = 0

    def barrier(self) -> None: ...
    def gather(self, value: object) -> list[object]:
        return [value] * 4

    def share(self, value: object) -> object:
        return value

    def fetch(self, tensor: torch.Tensor, source: int) -> None:
        raise AssertionError


def test_gradients_that_are_kept_come_to_the_cpu() -> None:
    artifact = artifact_of(Shape("zb_h1", 2, 3, 1, layers=6, optimizer="adamw"))
    with fake_gpu(Recording(1), 2) as fake:
        rank = make_fake_rank(artifact, 1, fake)
        kept = train(rank, replace(rank.config, steps=1), keep_gradients=True)
        assert {g.device for g in kept.values()} == {torch.device("cpu")}
        assert {p.device for p in rank.parameters().values()} == {DEVICE}
        for tensors in rank.persistent().values():
            assert {tensor.device for tensor in tensors if tensor.dim()} <= {DEVICE}


def test_measuring_times_stays_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("schedc.runtime.graph_times.SECONDS", 0)
    artifact = artifact_of(Shape("zb_h1", 2, 3, 2, layers=6, optimizer="adamw"))
    recording = Recording(0)
    with fake_gpu(recording, 4) as fake:
        rank = make_fake_rank(artifact, 0, fake)
        times = measure(rank, Alone(), clip=1.0)
    assert set(times["graphs"]) == {f"{u}.{p}" for u in ("embedding", "layer") for p in "FIW"}
    assert {post.device for post in recording.posts()} == {DEVICE}
