"""Progress: no rank waits for ever, with the queues as they are and with one queue a rank (E503).

A rank posts items (messages, collectives) and waits for them; only waits block. So a rank's state
is the wait at which it stands, and what it has posted is what stands before that wait. Nothing is
chosen at run time: whatever order the ranks advance in, they come equally far, so one run decides.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from schedc.program.body import Reduce
from schedc.program.instructions import BODY, CODE, REF, Code
from schedc.program.program import RankProgram
from schedc.program.verify_columns import Columns, Findings, Ints
from schedc.program.verify_messages import Transfers

ALL = -2
LOCAL = -1
_END = 1 << 60


@dataclass(frozen=True, slots=True)
class _Rank:
    """A rank's items in the order in which it posts them, and its waits.

    ``peers[i]`` is the other rank of item ``i``, ``twins[i]`` the number of the item there. A
    collective over all pipeline ranks has the peer ALL and its number among those as twin; one that
    only replicas take part in is LOCAL. Wait ``k`` needs item ``needs[k]``, and ``posted[k]`` items
    stand before it. Both lists end with an entry for the program's end.
    """

    rows: list[int]
    peers: list[int]
    twins: list[int]
    wait_rows: list[int]
    needs: list[int]
    posted: list[int]
    joins: list[int]  # the items that are collectives over all ranks


def check_progress(columns: Columns, transfers: Transfers, findings: Findings) -> None:
    """Runs the programs' posts and waits twice; reports the shortest cycle where one remains."""
    ranks = _ranks(columns, transfers)
    for run in (_Separate(ranks), _OneQueue(ranks)):
        run.run()
        cycle = run.shortest_cycle()
        if cycle:
            _report(run, cycle, findings)
            return


def _ranks(columns: Columns, transfers: Transfers) -> list[_Rank]:
    """The items and waits of every rank."""
    item_of: Ints = np.full(len(columns.table), -1, dtype=np.int64)
    posts = [_posts(program) for program in columns.programs]
    for program, rows in zip(columns.programs, posts, strict=True):
        item_of[columns.offsets[program.rank] + rows] = np.arange(len(rows))
    twin_of: Ints = np.full(len(columns.table), -1, dtype=np.int64)
    twin_of[transfers.sends] = transfers.receives
    twin_of[transfers.receives] = transfers.sends
    ties = columns.rows(Code.TIE)  # none or two, checked before: a rendezvous as messages are
    twin_of[ties] = ties[::-1]
    return [
        _rank(columns, program, rows, item_of, twin_of)
        for program, rows in zip(columns.programs, posts, strict=True)
    ]


def _posts(program: RankProgram) -> Ints:
    """The rows that post something: messages, collectives, runs that start reductions."""
    table = program.stream.table
    code = table[:, CODE]
    codes = (Code.SEND, Code.RECV, Code.COUNT, Code.TIE, Code.NORM, Code.REPORT)
    posts = np.isin(code, codes)
    reducing = [index for index, body in enumerate(program.bodies) if body.last]
    return (posts | ((code == Code.RUN) & np.isin(table[:, BODY], reducing))).nonzero()[0]


def _rank(
    columns: Columns, program: RankProgram, rows: Ints, item_of: Ints, twin_of: Ints
) -> _Rank:
    table, offset = program.stream.table, int(columns.offsets[program.rank])
    code = table[rows, CODE]
    twins = twin_of[offset + rows]
    peers = np.where(twins >= 0, columns.rank[twins], LOCAL)
    twins = np.where(twins >= 0, item_of[twins], -1)
    joins = np.isin(code, (Code.NORM, Code.REPORT))
    peers[joins], twins[joins] = ALL, np.arange(joins.sum())
    waits = (table[:, CODE] >= Code.WAIT_MESSAGE).nonzero()[0]
    awaited = _awaited_rows(program, waits)
    needs = item_of[offset + awaited]
    before = np.searchsorted(rows, waits)
    return _Rank(
        rows.tolist(),
        peers.tolist(),
        twins.tolist(),
        [*waits.tolist(), len(table)],
        [*needs.tolist(), _END],
        [*before.tolist(), len(rows)],
        joins.nonzero()[0].tolist(),
    )


def _awaited_rows(program: RankProgram, waits: Ints) -> Ints:
    """The row of the post that each wait is for."""
    table = program.stream.table
    result = table[waits, REF].astype(np.int64)
    code = table[waits, CODE]
    for wait, post in (
        (Code.WAIT_COUNT, Code.COUNT),
        (Code.WAIT_TIE, Code.TIE),
        (Code.WAIT_NORM, Code.NORM),
        (Code.WAIT_REPORT, Code.REPORT),
    ):
        if (code == wait).any():
            result[code == wait] = (table[:, CODE] == post).nonzero()[0][0]
    runs = (table[:, CODE] == Code.RUN).nonzero()[0]
    unit_rows: Ints = np.zeros(len(program.stream.units), dtype=np.int64)
    for index, body in enumerate(program.bodies):
        at = runs[table[runs, BODY] == index] if body.last else runs[:0]
        for step in body.steps:
            if isinstance(step, Reduce) and len(at):
                unit_rows[program.stream.units.index(step.unit)] = at[0]
    reduces = code == Code.WAIT_REDUCE
    result[reduces] = unit_rows[table[waits[reduces], REF]]
    return result


class _Separate:
    """A transfer is done when both ends have posted it.

    That is all that queues demand, too: both ends post a queue's transfers in its order (checked
    before), so when one is posted on both sides, so are those before it.
    """

    title = "the programs deadlock"

    def __init__(self, ranks: list[_Rank]) -> None:
        self.ranks = ranks
        self.stands = [0] * len(ranks)  # the wait at which each rank stands

    def run(self) -> None:
        """Advance all ranks as far as they come."""
        ranks, stands = self.ranks, self.stands
        todo = list(range(len(ranks)))
        waiting: list[list[int]] = [[] for _ in ranks]
        while todo:
            r = todo.pop()
            rank = ranks[r]
            peers, twins, needs = rank.peers, rank.twins, rank.needs
            k = start = stands[r]
            while (item := needs[k]) != _END:
                peer = peers[item]
                if peer >= 0:
                    if ranks[peer].posted[stands[peer]] <= twins[item]:
                        waiting[peer].append(r)
                        break
                elif peer == ALL:
                    stands[r] = k
                    late = self._late(twins[item])
                    if late is not None:
                        waiting[late].append(r)
                        break
                k += 1
            stands[r] = k
            if k > start:
                todo += waiting[r]
                waiting[r] = []

    def _late(self, join: int) -> int | None:
        """A rank that has not posted the ``join``-th collective of all ranks."""
        for r, rank in enumerate(self.ranks):
            if rank.posted[self.stands[r]] <= rank.joins[join]:
                return r
        return None

    def blockers(self, r: int) -> list[int]:
        """The ranks that a rank waits for where it stands."""
        rank = self.ranks[r]
        item = rank.needs[self.stands[r]]
        if item == _END:
            return []
        if rank.peers[item] != ALL:
            return [rank.peers[item]]
        join = rank.twins[item]
        return [
            p
            for p, other in enumerate(self.ranks)
            if other.posted[self.stands[p]] <= other.joins[join]
        ]

    def reason(self, r: int, blocker: int, text: _Text) -> str:
        """Why ``r`` waits for ``blocker``."""
        item = self.ranks[r].needs[self.stands[r]]
        at = text.wait(r, self.ranks[r].wait_rows[self.stands[r]])
        return f"{at}, until rank {blocker} posts {text.post(blocker, self.twin(r, item, blocker))}"

    def twin(self, r: int, item: int, blocker: int) -> int:
        """The row at which ``blocker`` posts what is item ``item`` of ``r``."""
        rank, other = self.ranks[r], self.ranks[blocker]
        twin = rank.twins[item]
        return other.rows[other.joins[twin] if rank.peers[item] == ALL else twin]

    def shortest_cycle(self) -> list[int]:
        """Ranks each of which waits for the next, the last for the first; empty if all ended."""
        best: list[int] = []
        for start in range(len(self.ranks)):
            before: dict[int, int] = {}
            front = [start]
            while front and start not in before:
                following: list[int] = []
                for r in front:
                    for blocker in self.blockers(r):
                        if blocker not in before:
                            before[blocker] = r
                            following.append(blocker)
                front = following
            if start in before:
                cycle = [start]
                while (r := before[cycle[-1]]) != start:
                    cycle.append(r)
                cycle = [start, *reversed(cycle[1:])]
                best = cycle if not best or len(cycle) < len(best) else best
        return best


class _OneQueue(_Separate):
    """All of a rank's items share one queue: each waits for the one posted before it."""

    title = "the programs deadlock where all communication of a rank is in one queue"

    def __init__(self, ranks: list[_Rank]) -> None:
        super().__init__(ranks)
        self.done = [0] * len(ranks)  # how many items of each rank's queue are done

    def run(self) -> None:
        ranks, stands, done = self.ranks, self.stands, self.done
        todo = list(range(len(ranks)))
        while todo:
            r = todo.pop()
            rank = ranks[r]
            peers, twins, needs, posted = rank.peers, rank.twins, rank.needs, rank.posted
            k, head = stands[r], done[r]
            while True:
                while needs[k] < head:
                    k += 1
                stands[r] = k
                if head >= posted[k]:
                    break
                peer, twin = peers[head], twins[head]
                if peer >= 0:
                    if done[peer] != twin or ranks[peer].posted[stands[peer]] <= twin:
                        break
                    done[peer] += 1
                    todo.append(peer)
                elif peer == ALL:
                    if any(self._missing(p, twin) for p in range(len(ranks))):
                        break
                    for p in range(len(ranks)):
                        done[p] += 1
                        todo.append(p)
                    head = done[r] - 1
                head += 1
                done[r] = head

    def _missing(self, r: int, join: int) -> bool:
        """Whether rank ``r`` has not come to the ``join``-th collective of all ranks."""
        rank = self.ranks[r]
        item = rank.joins[join]
        return self.done[r] < item or rank.posted[self.stands[r]] <= item

    def blockers(self, r: int) -> list[int]:
        rank, head = self.ranks[r], self.done[r]
        if rank.needs[self.stands[r]] == _END:
            return []
        if rank.peers[head] != ALL:
            return [rank.peers[head]]
        join = rank.twins[head]
        return [p for p in range(len(self.ranks)) if p != r and self._missing(p, join)]

    def reason(self, r: int, blocker: int, text: _Text) -> str:
        rank, head = self.ranks[r], self.done[r]
        at = text.wait(r, rank.wait_rows[self.stands[r]])
        holds = f"its queue is held by {text.post(r, rank.rows[head])}"
        row = self.twin(r, head, blocker)
        other = self.ranks[blocker]
        posted = row < other.wait_rows[self.stands[blocker]]
        why = "has posted behind others" if posted else "has not posted"
        return f"{at}; {holds}, which rank {blocker} {why}: {text.post(blocker, row)}"


class _Text:
    """Instructions in the words of a report."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings

    def wait(self, rank: int, row: int) -> str:
        return f"{self._findings.instruction((rank, row))} stands"

    def post(self, rank: int, row: int) -> str:
        at = self._findings.instruction((rank, row)).partition(", ")[2]
        return f"[{at}]"


def _report(run: _Separate, cycle: list[int], findings: Findings) -> None:
    ring = " → ".join(f"rank {r}" for r in [*cycle, cycle[0]])
    text = _Text(findings)
    reasons = [run.reason(r, cycle[(i + 1) % len(cycle)], text) for i, r in enumerate(cycle)]
    findings.note("E503", f"{run.title}: {ring}, each waiting for the next", tuple(reasons))
