"""A model of NCCL without any buffering, written independently of the verifier: does a run end?

Every communicator of a rank has one stream. What is posted there is done one after the other. A
send is done together with its receive, when both are the first of their streams; a sum when it is
the first on all ranks. The current stream of a rank does its posts and waits in order, and a wait
blocks it. With ``one_by_one`` the rank has no streams side by side at all: the current stream waits
for every post right where it stands (the most that CUDA_DEVICE_MAX_CONNECTIONS=1 can do).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.runtime.recording import Call, Communicator, Post, Recording, Synchronize, Wait


class Mismatch(Exception):
    """What meets does not belong together: NCCL would not notice."""


@dataclass
class _Rank:
    calls: list[Call]
    one_by_one: bool
    at: int = 0
    streams: dict[Communicator, deque[Post]] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    posted: int = 0

    def advance(self) -> bool:
        """Go on as far as the current stream gets; whether that is anywhere."""
        start = self.at
        while self.at < len(self.calls) and not self._blocked():
            call = self.calls[self.at]
            if isinstance(call, Post):
                self.streams.setdefault(call.communicator, deque()).append(call)
                self.posted += 1
            self.at += 1
        return self.at > start

    def _blocked(self) -> bool:
        if self.one_by_one and len(self.done) < self.posted:
            return True
        call = self.calls[self.at]
        if isinstance(call, Wait):
            return call.post not in self.done
        # A read of numbers waits for the current stream, which is here, not for the others.
        return isinstance(call, Synchronize) and len(self.done) < self.posted

    def first(self, communicator: Communicator) -> Post | None:
        stream = self.streams.get(communicator)
        return stream[0] if stream else None

    def finish(self, post: Post) -> None:
        assert self.streams[post.communicator].popleft() is post
        self.done.add(post.number)


def stuck_ranks(recordings: Sequence[Recording], one_by_one: bool = False) -> dict[int, Call]:
    """The ranks that never end, and the call at which each stands. Raises Mismatch."""
    ranks = {r.rank: _Rank(list(r.calls), one_by_one) for r in recordings}
    communicators = {c for r in recordings for c in r.communicators()}
    moved = True
    while moved:
        moved = False
        for rank in ranks.values():
            moved |= rank.advance()
        for communicator in communicators:
            moved |= _meet(communicator, ranks)
    return {n: rank.calls[rank.at] for n, rank in ranks.items() if rank.at < len(rank.calls)}


def _meet(communicator: Communicator, ranks: dict[int, _Rank]) -> bool:
    """Finish the first posts of a communicator that meet; whether there are any."""
    first = {n: ranks[n].first(communicator) for n in communicator.ranks}
    posts = [post for post in first.values() if post is not None]
    if len(posts) == len(first) and all(post.verb == "sum" for post in posts):
        for number, post in first.items():
            assert post is not None
            _check(posts[0], post)
            ranks[number].finish(post)
        return True
    for number, post in first.items():
        if post is None or post.verb != "send":
            continue
        other = first[post.peer]
        if other is not None and other.verb == "recv" and other.peer == number:
            _check(post, other)
            ranks[number].finish(post)
            ranks[post.peer].finish(other)
            return True
    return False


def _check(one: Post, other: Post) -> None:
    if (one.shape, one.dtype, one.link) != (other.shape, other.dtype, other.link):
        raise Mismatch(f"{one} meets {other}")
