"""Event simulation of rank programs: when every instruction starts and ends, exactly."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from schedc.diagnostics import Diagnostic, DiagnosticError
from schedc.ir.timeline import Ticks
from schedc.program.body import Body, Call
from schedc.program.durations import Durations
from schedc.program.instructions import (
    BODY,
    CODE,
    QUEUE,
    REF,
    SEQUENCE,
    Code,
    Recv,
    Send,
    WaitMessage,
)
from schedc.program.print import instruction_place, instruction_text
from schedc.program.program import Programs, Queue, RankProgram, tied_ranks
from schedc.simulate.ticks import require_64_bits


@dataclass(frozen=True, slots=True)
class Collective:
    """A sum of which a rank takes part: ``name`` is ``count tie norm report`` or a unit.

    It was posted within or at ``row``, began at ``start`` (later than the post where it had to wait
    for other ranks, or for the reduction before it) and was there at ``end``; all in ticks.
    """

    name: str
    row: int
    posted: int
    start: int
    end: int


@dataclass(frozen=True, eq=False)
class ProgramTimeline:
    """Start and end of every instruction of ``programs``, in whole ticks of ``tick`` time units.

    ``start[r][i]`` belongs to row ``i`` of rank ``r``'s stream. A stream has no gaps: a row starts
    when the one before it ends, the first at 0. What a wait takes is what it blocks.
    ``reductions[r]`` are in the order in which they were started; ``sums[r]`` are the count, the
    tie, the norm and the report, as far as the program has them. ``message`` is the ticks that a
    message takes.
    """

    programs: Programs
    tick: Fraction
    message: int
    start: tuple[Ticks, ...]
    end: tuple[Ticks, ...]
    reductions: tuple[tuple[Collective, ...], ...]
    sums: tuple[tuple[Collective, ...], ...]


def simulate_programs(programs: Programs, durations: Durations) -> ProgramTimeline:
    """Every instruction's start and end by the rules of :class:`Durations`.

    *Contract.* ``programs`` are verified; ``durations`` knows every graph and every unit that is
    reduced. Linear in the number of instructions. Raises DiagnosticError: E503 where the ranks wait
    for one another for ever (who waits for what, with places), E308 where ticks leave 64 bits.

    *Pseudocode.*::

        a rank runs until it waits for what is not posted yet, and goes on once it is
        run, step: advance the rank's clock
        send: there at clock + message        recv, and tie, norm, report when all have: there now
        wait: the clock becomes at least the time at which it is there;
            one for a send only needs the peer's receive to be posted, whenever that was
    """
    return _Simulation(programs, durations).run()


ADVANCE, SEND, POST, AWAIT, BLOCK, REDUCING, COUNT, JOIN = range(8)
"""What a row does to the clock. Its value is a duration, a key of ``ready``, a body or a code."""

_FORM = np.full(len(Code), ADVANCE)
_FORM[[Code.SEND, Code.RECV, Code.COUNT]] = SEND, POST, COUNT
_FORM[[Code.TIE, Code.NORM, Code.REPORT]] = JOIN
_FORM[[Code.WAIT_MESSAGE, Code.WAIT_REDUCE, Code.WAIT_COUNT]] = AWAIT
_FORM[[Code.WAIT_TIE, Code.WAIT_NORM, Code.WAIT_REPORT]] = AWAIT

JOINS = {
    Code.TIE: ("tie", Code.WAIT_TIE),
    Code.NORM: ("norm", Code.WAIT_NORM),
    Code.REPORT: ("report", Code.WAIT_REPORT),
}
"""The sums over pipeline ranks, in the order in which a stream has them, and their waits."""


class _Keys:
    """Numbers for all that is posted once and waited for.

    Message ``m`` is there under key m, its receive is posted under ``messages`` + m. Behind these
    follow tie, norm, report, each rank's count and each rank's reductions by unit.
    """

    def __init__(self, programs: Programs) -> None:
        queues: dict[Queue, int] = {}
        links: list[Ticks] = []
        for program in programs:
            table = program.stream.table
            posts = table[(table[:, CODE] == Code.SEND) | (table[:, CODE] == Code.RECV)]
            numbers = [queues.setdefault(queue, len(queues)) for queue in program.queues]
            queue = np.array([*numbers, 0], dtype=np.int64)[posts[:, QUEUE]]
            links.append(queue << 32 | posts[:, SEQUENCE])
        found, inverse = np.unique(np.concatenate(links), return_inverse=True)
        cuts = np.cumsum([len(link) for link in links])[:-1]
        self.messages = len(found)
        self.of_posts: tuple[Ticks, ...] = tuple(np.split(inverse.reshape(-1), cuts))
        self.of_join = {code: 2 * self.messages + i for i, code in enumerate(JOINS)}
        self.count = 2 * self.messages + len(JOINS)
        units = [len(program.stream.units) for program in programs]
        offsets = np.cumsum([self.count + len(programs), *units]).tolist()
        self.units: list[int] = offsets[:-1]
        self.total: int = offsets[-1]


class _Simulation:
    """All ranks' clocks, and when what they posted is there."""

    def __init__(self, programs: Programs, durations: Durations) -> None:
        self.programs, self.durations = programs, durations
        self.keys = _Keys(programs)
        self.ready = [-1] * self.keys.total
        self.waiters: dict[int, list[int]] = {}
        self.runnable = list(range(len(programs)))
        self.clock = [0] * len(programs)
        self.ends: list[list[int]] = [[] for _ in programs]
        self.reductions: list[list[Collective]] = [[] for _ in programs]
        self.takes = {
            Code.TIE: durations.tie,
            Code.NORM: durations.norm,
            Code.REPORT: durations.report,
        }
        self.members: dict[Code, tuple[int, ...]] = {
            code: tied_ranks(programs) if code is Code.TIE else tuple(range(len(programs)))
            for code in JOINS
        }
        self.posted: dict[Code, dict[int, tuple[int, int]]] = {code: {} for code in JOINS}
        self.counts: list[Collective | None] = [None] * len(programs)
        self.bodies = [[_BodyTimes.of(b, durations) for b in p.bodies] for p in programs]
        require_64_bits(sum(self._ticks(program) for program in programs), "durations")
        self.rows = [self._compile(program) for program in programs]

    def run(self) -> ProgramTimeline:
        while self.runnable:
            self._advance(self.runnable.pop())
        if any(len(e) < len(p.stream) for e, p in zip(self.ends, self.programs, strict=True)):
            raise self._hang()
        end = tuple(np.array(ends, dtype=np.int64) for ends in self.ends)
        return ProgramTimeline(
            self.programs,
            self.durations.tick,
            self.durations.message,
            tuple(np.concatenate([[0], e[:-1]]) if len(e) else e for e in end),
            end,
            tuple(map(tuple, self.reductions)),
            tuple(self._sums(rank) for rank in range(len(self.programs))),
        )

    def _ticks(self, program: RankProgram) -> int:
        """No less than what a program can add to any clock."""
        table, durations = program.stream.table, self.durations
        counts = np.bincount(table[:, CODE], minlength=len(Code)).tolist()
        runs = table[table[:, CODE] == Code.RUN, BODY]
        bodies = self.bodies[program.rank]
        calls = np.bincount(runs, minlength=len(bodies)).tolist()
        return (
            sum(n * body.ticks for n, body in zip(calls, bodies, strict=True))
            + sum(durations.reduce[unit] for body in bodies for _, unit in body.posts)
            + counts[Code.SEND] * durations.message
            + counts[Code.STEP] * durations.step[program.rank]
            + durations.count
            + sum(self.takes.values())
        )

    def _compile(self, program: RankProgram) -> tuple[list[int], list[int]]:
        """For each row what it does to the clock, and the value that goes with it."""
        table, keys, rank = program.stream.table, self.keys, program.rank
        code, ref = table[:, CODE], table[:, REF]
        form, value = _FORM[code], np.zeros(len(table), dtype=np.int64)
        reducing = np.array([*(bool(b.posts) for b in self.bodies[rank]), False])
        ticks = np.array([*(b.ticks for b in self.bodies[rank]), 0], dtype=np.int64)
        run = code == Code.RUN
        form[run & reducing[table[:, BODY]]] = REDUCING
        value[run] = np.where(form == REDUCING, table[:, BODY], ticks[table[:, BODY]])[run]
        value[code == Code.STEP] = self.durations.step[rank]
        value[(code == Code.SEND) | (code == Code.RECV)] = keys.of_posts[rank]
        value[code == Code.RECV] += keys.messages
        # A receive waits for its message, a send for its receive: the other half of the pair.
        of_message = np.flatnonzero(code == Code.WAIT_MESSAGE)
        post = ref[of_message]
        sent = form[post] == SEND
        form[of_message[sent]] = BLOCK
        value[of_message] = value[post] + np.where(sent, keys.messages, -keys.messages)
        of_unit = code == Code.WAIT_REDUCE
        value[of_unit] = keys.units[rank] + ref[of_unit]
        value[(code == Code.COUNT) | (code == Code.WAIT_COUNT)] = keys.count + rank
        for join, (_, wait) in JOINS.items():
            value[code == wait] = keys.of_join[join]
        value[form == JOIN] = code[form == JOIN]
        return form.tolist(), value.tolist()

    def _advance(self, rank: int) -> None:
        """Run ``rank`` until it ends or waits for what is not posted yet."""
        forms, values = self.rows[rank]
        ready, end, now = self.ready, self.ends[rank], self.clock[rank]
        message = self.durations.message
        for row in range(len(end), len(forms)):
            form, value = forms[row], values[row]
            if form == ADVANCE:
                now += value
            elif form in (AWAIT, BLOCK):
                there = ready[value]
                if there < 0:
                    self.waiters.setdefault(value, []).append(rank)
                    break
                if there > now and form == AWAIT:
                    now = there
            elif form == SEND:
                self._post(value, now + message)
            elif form == POST:
                self._post(value, now)
            elif form == REDUCING:
                now = self._reduce(rank, row, value, now)
            elif form == COUNT:
                there = now + self.durations.count
                self.counts[rank] = Collective("count", row, now, now, there)
                self._post(value, there)
            else:
                self._join(Code(value), rank, row, now)
            end.append(now)
        self.clock[rank] = now

    def _post(self, key: int, there: int) -> None:
        self.ready[key] = there
        if key in self.waiters:
            self.runnable += self.waiters.pop(key)

    def _reduce(self, rank: int, row: int, body: int, now: int) -> int:
        """Run a body that starts reductions; each waits for the one before it."""
        done, times = self.reductions[rank], self.bodies[rank][body]
        units = self.programs[rank].stream.units
        for after, unit in times.posts:
            posted = now + after
            start = max(posted, done[-1].end) if done else posted
            end = start + self.durations.reduce[unit]
            done.append(Collective(unit, row, posted, start, end))
            self._post(self.keys.units[rank] + units.index(unit), end)
        return now + times.ticks

    def _join(self, code: Code, rank: int, row: int, now: int) -> None:
        """Post a sum over ranks, which begins when the last of them has posted it."""
        posts = self.posted[code]
        posts[rank] = (row, now)
        if len(posts) == len(self.members[code]):
            begins = max(time for _, time in posts.values())
            self._post(self.keys.of_join[code], begins + self.takes[code])

    def _sums(self, rank: int) -> tuple[Collective, ...]:
        count = self.counts[rank]
        sums = [count] if count is not None else []
        for code, (name, _) in JOINS.items():
            posts, key = self.posted[code], self.keys.of_join[code]
            if rank in posts and self.ready[key] >= 0:
                row, posted = posts[rank]
                begins = max(time for _, time in posts.values())
                sums.append(Collective(name, row, posted, begins, self.ready[key]))
        return tuple(sums)

    def _hang(self) -> DiagnosticError:
        notes = [
            f"rank {program.rank} waits at {_at(program, len(end))} for {self._awaited(program)}"
            for program, end in zip(self.programs, self.ends, strict=True)
            if len(end) < len(program.stream)
        ]
        message = "these programs hang: every rank below waits for what no other comes to do"
        return DiagnosticError(Diagnostic("E503", message, notes=tuple(notes)))

    def _awaited(self, program: RankProgram) -> str:
        instruction = program.stream[len(self.ends[program.rank])]
        if isinstance(instruction, WaitMessage):
            post = program.stream[instruction.of]
            assert isinstance(post, Send | Recv), "verified programs wait for what they posted"
            act = "receive" if isinstance(post, Send) else "send"
            queue = program.queues[post.queue]
            return f"rank {post.peer} to {act} {post.task}, queue {queue} seq {post.sequence}"
        row = len(self.ends[program.rank])
        for code, (name, wait) in JOINS.items():
            if program.stream.table[row, CODE] == wait:
                missing = [str(r) for r in self.members[code] if r not in self.posted[code]]
                return f"rank {', '.join(missing)} to post {name}"
        return "what it never posts"


def _at(program: RankProgram, row: int) -> str:
    place = instruction_place(program, row)
    return f"row {row}, {instruction_text(program, row)}" + (f" ({place})" if place else "")


@dataclass(frozen=True, slots=True)
class _BodyTimes:
    """How long a body takes, and after how long it starts which reductions."""

    ticks: int
    posts: tuple[tuple[int, str], ...]

    @staticmethod
    def of(body: Body, durations: Durations) -> _BodyTimes:
        ticks = 0
        posts: list[tuple[int, str]] = []
        for step in body.steps:
            if isinstance(step, Call):
                ticks += durations.calls[step.graph]
            else:
                posts.append((ticks, step.unit))
        return _BodyTimes(ticks, tuple(posts))
