"""Progress: no rank waits for ever, on any of three machines (E503).

**Events.** A message is one event of its two ranks, and so is ``tie``; ``norm`` and ``report`` are
each one event of all ranks; ``count`` and the reductions of a body, which only replicas take part
in, are events of their rank (see below). A rank executes its program in order; it posts its part of
an event, and goes on; only a wait blocks, until its event is done.

**Machines.** An event is done once every rank of it has posted it (a rendezvous: nothing is ever
buffered, so a transfer begins when the receive is posted) and, on each of these ranks, all that was
posted before it in the same queue is done. The machines differ in what shares a queue of a rank:

1. *queues*: the messages of a pair of ranks, kind and direction; the sums over the same axes;
2. *communicators*: all messages of a kind in either direction, as NCCL's one stream a communicator;
3. *one queue*: everything, sums included: a rank's communication happens one by one.

**The union graph** has a node for every instruction and every event, and the edges

* instruction after the instruction before it (program order),
* wait after its event,
* event after the posts of it, on all its ranks,
* event after the event before it in a queue of one of its ranks.

*One topological sort decides.* What an instruction posts, and where, does not depend on time, on
data or on what others do: there are no wildcard receives, no polling, no choice. So whatever
happens, an instruction or event happens after its predecessors, and once those have happened it
does. If the graph has no cycle, everything happens, for any timing; if it has one, no node of it
ever does, for any timing, and a wait stands for ever. (Every cycle holds a wait, or two queues
that hold each other's events; behind those stands the wait for one of them, as each post is waited
for.) ``_Run`` is that sort; it counts for each event what it lacks.

*The third machine decides alone.* If e comes before f in a queue of machine 1 or 2, it does in the
only queue of machine 3. So what passes there passes on all; the weaker ones are only asked where
it fails, so as to name the weakest on which the programs hang.

*Slots add no edge.* A slot is filled again by an instruction that stands, on the same rank, after
the wait or run that freed it (:mod:`verify_buffers` proves it: nothing is written into a slot in
use, nothing freed before its transfer was waited for). A finite pool therefore speaks through
program order alone; the report says so where it does.

*Replicas and axes within a stage add none.* All coordinates of dp, cp and tp run the same program.
Put the copies of a program's graph on one another: a collective between copies, in a body or in the
stream, becomes an event of one rank. A cycle of the copies is a closed walk there, and so holds a
cycle; and what is a cycle there is one in the copies.

*Groups are not needed.* Messages posted as one group would be one event each still, joined in their
queue. All three machines are harder than that, and the third is what ``lower`` builds for: each
rank posts in one order of all transfers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from schedc.ir.order import Op
from schedc.program.body import Reduce
from schedc.program.instructions import BODY, CODE, OP, PEER, REF, Code
from schedc.program.program import RankProgram
from schedc.program.verify_columns import Bools, Columns, Findings, Ints
from schedc.program.verify_cycle import Stuck, neighbours, report_cycle
from schedc.program.verify_messages import Transfers

_NORM, _REPORT, _DP, _TIE, _MESSAGES = range(5)
"""Numbers of queues: those of sums by their axes, that of the tie, then those of messages."""


def check_progress(columns: Columns, transfers: Transfers, findings: Findings) -> None:
    """Sorts the union graph; reports the shortest cycle on the weakest machine that has one."""
    posts = _posts(columns, transfers)
    if _Run(posts, _one_queue(columns, posts.lines)).finishes():
        return
    for title, queue_of in _MACHINES:
        queues = queue_of(columns, posts.lines)
        run = _Run(posts, queues)
        if not run.finishes():
            stuck = Stuck(
                posts.ranks, posts.rows, posts.events, queues, posts.steps, run.at, run.lacks
            )
            report_cycle(title, columns, stuck, findings)
            return


@dataclass(frozen=True, eq=False)
class _Posts:
    """``lines`` of the table, at (``ranks``, ``rows``), post ``events``, numbered from 0.

    ``steps[r]`` are the posts and waits of rank r: (row, event, whether it waits), one column each.
    """

    lines: Ints
    ranks: Ints
    rows: Ints
    events: Ints
    steps: tuple[Ints, ...]


def _posts(columns: Columns, transfers: Transfers) -> _Posts:
    reducing = [_starts_reductions(columns, program) for program in columns.programs]
    posting = np.isin(
        columns.table[:, CODE],
        (Code.SEND, Code.RECV, Code.COUNT, Code.TIE, Code.NORM, Code.REPORT),
    )
    lines = (posting | np.concatenate(reducing)).nonzero()[0]
    event_of: Ints = np.full(len(columns.table), -1, dtype=np.int64)
    matched = len(transfers.sends)
    event_of[transfers.sends] = event_of[transfers.receives] = np.arange(matched)
    event_of[columns.rows(Code.NORM)] = matched
    event_of[columns.rows(Code.REPORT)] = matched + 1
    event_of[columns.rows(Code.TIE)] = matched + 2
    alone = lines[event_of[lines] < 0]
    event_of[alone] = matched + 3 + np.arange(len(alone))
    steps = tuple(_steps(columns, program, event_of) for program in columns.programs)
    return _Posts(lines, columns.rank[lines], columns.row[lines], event_of[lines], steps)


def _starts_reductions(columns: Columns, program: RankProgram) -> Bools:
    table = program.stream.table
    last = [index for index, body in enumerate(program.bodies) if body.last]
    return (table[:, CODE] == Code.RUN) & np.isin(table[:, BODY], last)


def _steps(columns: Columns, program: RankProgram, event_of: Ints) -> Ints:
    offset = int(columns.offsets[program.rank])
    table = program.stream.table
    mine = event_of[offset : offset + len(table)].copy()
    waits = (table[:, CODE] >= Code.WAIT_MESSAGE).nonzero()[0]
    mine[waits] = mine[_awaited_rows(program, waits)]
    rows = (mine >= 0).nonzero()[0]
    is_wait = (table[rows, CODE] >= Code.WAIT_MESSAGE).astype(np.int64)
    return np.stack([rows, mine[rows], is_wait], axis=1).astype(np.int64)


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


def _queues(columns: Columns, lines: Ints) -> Ints:
    """Machine 1: the queue of each post."""
    rank, peer = columns.rank[lines], columns.column(lines, PEER)
    is_send = columns.table[lines, CODE] == Code.SEND
    ends = np.where(is_send, rank, peer) * len(columns.programs) + np.where(is_send, peer, rank)
    return _with_sums(columns, lines, ends * 2)


def _communicators(columns: Columns, lines: Ints) -> Ints:
    """Machine 2: the communicator of each post."""
    return _with_sums(columns, lines, np.zeros(len(lines), dtype=np.int64))


def _with_sums(columns: Columns, lines: Ints, of_messages: Ints) -> Ints:
    code = columns.table[lines, CODE]
    queues = _MESSAGES + of_messages + (columns.table[lines, OP] != Op.F)
    queues[(code == Code.COUNT) | (code == Code.RUN)] = _DP
    for posted, queue in ((Code.NORM, _NORM), (Code.REPORT, _REPORT), (Code.TIE, _TIE)):
        queues[code == posted] = queue
    return queues


def _one_queue(columns: Columns, lines: Ints) -> Ints:
    """Machine 3."""
    return np.zeros(len(lines), dtype=np.int64)


_MACHINES: tuple[tuple[str, Callable[[Columns, Ints], Ints]], ...] = (
    ("the programs deadlock", _queues),
    ("the programs deadlock where all messages of a kind are in one queue", _communicators),
    ("the programs deadlock where all communication of a rank is in one queue", _one_queue),
)


class _Run:
    """Kahn's sort of the union graph, the chains of program order taken in one stride each.

    ``lacks[e]`` counts the posts and the events before it that event e still needs; ``at[r]`` is
    the step at which rank r stands.
    """

    def __init__(self, posts: _Posts, queues: Ints) -> None:
        before, after = neighbours(posts.ranks, queues, posts.events)
        size = int(posts.events.max(initial=-1)) + 1
        self.followers: list[list[int]] = [[] for _ in range(size)]
        pairs: list[list[int]] = np.stack([before, after], axis=1).tolist()
        for a, b in pairs:
            self.followers[a].append(b)
        counts = np.bincount(posts.events, minlength=size) + np.bincount(after, minlength=size)
        self.lacks: list[int] = counts.tolist()
        self.steps: list[list[int]] = [
            np.where(steps[:, 2] == 1, ~steps[:, 1], steps[:, 1]).tolist() for steps in posts.steps
        ]
        self.at = [0] * len(self.steps)

    def finishes(self) -> bool:
        """Whether all ranks come to their ends."""
        lacks = self.lacks
        waiting: dict[int, list[int]] = {}
        ready = list(range(len(self.steps)))
        while ready:
            rank = ready.pop()
            steps = self.steps[rank]
            for i in range(self.at[rank], len(steps)):
                event = steps[i]
                if event >= 0:
                    lacks[event] -= 1
                    if not lacks[event]:
                        self._settle(event, waiting, ready)
                elif lacks[~event]:
                    waiting.setdefault(~event, []).append(rank)
                    self.at[rank] = i
                    break
            else:
                self.at[rank] = len(steps)
        return all(at == len(steps) for at, steps in zip(self.at, self.steps, strict=True))

    def _settle(self, event: int, waiting: dict[int, list[int]], ready: list[int]) -> None:
        """An event is done, and with it what only waited for it."""
        lacks, followers = self.lacks, self.followers
        done = [event]
        for event in done:
            ready += waiting.pop(event, ())
            for follower in followers[event]:
                lacks[follower] -= 1
                if not lacks[follower]:
                    done.append(follower)
