"""The shortest cycle of a union graph that could not be sorted, told instruction by instruction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from schedc.ir.cycle import Hop, shortest_chain_cycle
from schedc.program.instructions import CODE, READS, WRITES, Code, Operand
from schedc.program.program import RankProgram
from schedc.program.verify_columns import At, Columns, Findings, Ints


@dataclass(frozen=True, eq=False)
class Stuck:
    """Where the sort of :mod:`schedc.program.verify_progress` ended.

    Post i stands at row ``rows[i]`` of rank ``ranks[i]``, for event ``events[i]``, and takes its
    place in queue ``queues[i]`` of the rank. ``steps[r]`` are the posts and waits of rank r
    (columns row, event, whether it waits), which stands at step ``at[r]``; event e is not done
    while ``lacks[e]`` is not 0.
    """

    ranks: Ints
    rows: Ints
    events: Ints
    queues: Ints
    steps: tuple[Ints, ...]
    at: list[int]
    lacks: list[int]


def neighbours(ranks: Ints, queues: Ints, events: Ints) -> tuple[Ints, Ints]:
    """Events that stand in a queue of a rank one right after the other. Posts are in row order."""
    order = np.lexsort((queues, ranks))  # stable: rows stay in order
    ranks, queues, events = ranks[order], queues[order], events[order]
    same = (ranks[1:] == ranks[:-1]) & (queues[1:] == queues[:-1])
    return events[:-1][same], events[1:][same]


def report_cycle(title: str, columns: Columns, stuck: Stuck, findings: Findings) -> None:
    """Adds E503 with the shortest cycle: a note an edge, in words.

    A cycle is the shorter the fewer times it goes from a program or queue to another.
    """
    chains = _Chains(stuck)
    told = list(_tell(columns, chains, shortest_chain_cycle(chains.edges(), chains.lengths())))
    ring = [told[0].at[0]]
    for link in told[1:]:
        if link.at[0] != ring[-1]:
            ring.append(link.at[0])
    ring = ring if ring[-1] == ring[0] else [*ring, ring[0]]
    notes = [findings.instruction(told[0].at)]
    notes += [f"  {link.word} {findings.instruction(link.at)}{link.why}" for link in told[1:]]
    ranks = " → ".join(f"rank {r}" for r in ring)
    findings.note("E503", f"{title}: {ranks}, each waiting for the next", tuple(notes))


class _Chains:
    """What did not happen, as chains: each rank's steps, and each rank's queues of events.

    A chain's nodes come one after the other. Chain r < number of ranks is the program of rank r;
    the others are its queues.
    """

    def __init__(self, stuck: Stuck) -> None:
        self.programs = [
            steps[at:].tolist() for steps, at in zip(stuck.steps, stuck.at, strict=True)
        ]
        self.queues: list[list[tuple[int, int]]] = []  # (event, row of its post)
        self.rank: list[int] = list(range(len(self.programs)))
        self.entries: dict[int, list[tuple[int, int]]] = {}  # of an event: (queue chain, position)
        self.posts: dict[int, list[tuple[int, int]]] = {}  # of an event: (program chain, position)
        self._add_queues(stuck)
        for rank, steps in enumerate(self.programs):
            for position, (_, event, waits) in enumerate(steps):
                if not waits:
                    self.posts.setdefault(event, []).append((rank, position))

    def _add_queues(self, stuck: Stuck) -> None:
        undone = np.asarray(stuck.lacks)[stuck.events] > 0
        chain_of: dict[tuple[int, int], int] = {}
        for rank, row, event, queue in np.stack(
            [part[undone] for part in (stuck.ranks, stuck.rows, stuck.events, stuck.queues)], axis=1
        ).tolist():
            index = chain_of.setdefault((rank, queue), len(self.queues))
            if index == len(self.queues):
                self.queues.append([])
                self.rank.append(rank)
            chain = len(self.programs) + index
            self.entries.setdefault(event, []).append((chain, len(self.queues[index])))
            self.queues[index].append((event, row))

    def lengths(self) -> Ints:
        return np.array([len(chain) for chain in (*self.programs, *self.queues)], dtype=np.int64)

    def edges(self) -> dict[tuple[int, int], Ints]:
        """By pair of chains: how long a prefix of the second each prefix of the first waits for."""
        lengths = self.lengths()
        found: dict[tuple[int, int], Ints] = {}
        for a, waiting, b, needed in self._hops():
            if (a, b) not in found:
                found[a, b] = np.zeros(lengths[a] + 1, dtype=np.int64)
            edge = found[a, b]
            edge[waiting + 1] = max(int(edge[waiting + 1]), needed + 1)
        return {pair: np.maximum.accumulate(edge) for pair, edge in found.items()}

    def _hops(self) -> Iterator[Hop]:
        for rank, steps in enumerate(self.programs):
            for position, (_, event, waits) in enumerate(steps):
                for chain, place in self.entries.get(event, ()) if waits else ():
                    if self.rank[chain] == rank:
                        yield rank, position, chain, place
        for event, entries in self.entries.items():
            for chain, place in entries:
                for program, position in self.posts.get(event, ()):
                    yield chain, place, program, position
                for other, ahead in entries:
                    if other != chain and ahead:
                        yield chain, place, other, ahead - 1

    def at(self, chain: int, position: int) -> At:
        """The instruction of a node; of an event in a queue, the post of the queue's rank."""
        if chain < len(self.programs):
            return chain, self.programs[chain][position][0]
        return self.rank[chain], self.queues[chain - len(self.programs)][position][1]


@dataclass(frozen=True, slots=True)
class _Link:
    """An instruction of a cycle, how the one before depends on it, and why."""

    word: str
    at: At
    why: str = ""


def _tell(columns: Columns, chains: _Chains, hops: tuple[Hop, ...]) -> Iterator[_Link]:
    """The cycle's instructions in order, from a wait if it has one to the same instruction."""
    ranks = len(columns.programs)
    first = next((i for i, hop in enumerate(hops) if hop[0] < ranks), 0)
    hops = (*hops[first:], *hops[:first])
    yield _Link("", chains.at(*hops[0][:2]))
    for (a, _, b, needed), (_, waiting, after, _) in pairwise((*hops, hops[0])):
        if a >= ranks and b >= ranks:
            yield _Link(f"is queued on rank {chains.rank[b]} behind", chains.at(b, waiting))
            continue
        # A wait for an event that lacks a post leads there at once, not by way of its own post.
        if not (b >= ranks and after < ranks and needed == waiting):
            yield _Link("waits for", chains.at(b, needed))
        if needed != waiting and b < ranks:
            program = columns.programs[b]
            yield _comes_after(program, chains.at(b, needed)[1], chains.at(b, waiting)[1])
        elif needed != waiting:
            yield _Link("is queued behind", chains.at(b, waiting))


def _comes_after(program: RankProgram, post: int, wait: int) -> _Link:
    """Why a post stands behind a wait: for its slot, for its value, or only because it does."""
    operands = program.stream.operands
    rows: list[list[int]] = program.stream.table[wait : post + 1].tolist()
    at = program.rank, wait
    if rows[-1][CODE] == Code.RECV:
        slot = operands[rows[-1][WRITES]][0]
        if any(_holds(operands[row[READS]], slot) for row in rows):
            return _Link("needs the slot of", at, f": {slot} is in use")
    if rows[-1][CODE] == Code.SEND and rows[0][CODE] == Code.WAIT_MESSAGE:
        sent, arrives = operands[rows[-1][READS]][0], operands[rows[0][READS]][0]
        for row in rows[:-1]:
            if _holds(operands[row[WRITES]], sent) and _holds(operands[row[READS]], arrives):
                return _Link("needs the value of", at)
    return _Link("comes after", at)


def _holds(operands: tuple[Operand, ...], slot: Operand) -> bool:
    return any(operand[:2] == slot[:2] for operand in operands)
