"""Which rank is the cause when a run cannot go on, and how all ranks' places are told."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from pathlib import Path

from schedc.ir.mesh import Mesh
from schedc.program.instructions import CODE, PEER, REF, Code
from schedc.program.print import instruction_place, instruction_text
from schedc.program.program import Programs, RankProgram
from schedc.runtime.position import read_position

WAITING = "waits for the others"
"""The phase of a rank that only waits for the other ranks, outside of steps."""


EVALUATES = "evaluates"
"""The phase of a rank that steps through the program of an evaluation."""


class State(Enum):
    """What a rank's process does."""

    RUNS = "runs"
    DONE = "is done"
    FAILED = "failed"
    DEAD = "died"
    STOPPED = "is stopped"
    SILENT = "does not answer"


@dataclass(frozen=True, slots=True)
class Status:
    """What a rank publishes of itself.

    ``row`` is -1 outside of steps. ``age`` is how many seconds ago it last moved. ``file`` holds
    its position, up to date, for processes on the same host.
    """

    host: str
    pid: int
    file: str
    beat: int
    phase: str
    step: int
    row: int
    age: float
    failure: str

    def refreshed(self, host: str) -> Status:
        """With the position that the file says, where ``host`` can read it."""
        position = read_position(Path(self.file)) if host == self.host else None
        if position is None:
            return self
        step, row, stepping = position
        return replace(self, step=step, row=row if stepping else -1)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Status:
        return Status(**json.loads(text))


@dataclass(frozen=True, slots=True)
class Report:
    """A rank as the judge sees it. ``beats`` says whether it published between two looks."""

    rank: int
    status: Status | None
    beats: bool
    judge_host: str

    @property
    def state(self) -> State:
        status = self.status
        if status is None:
            return State.SILENT
        if status.phase == "done":
            return State.DONE
        if status.failure:
            return State.FAILED
        if status.host == self.judge_host:
            letter = process_state(status.pid)
            if letter in ("", "Z", "X"):
                return State.DEAD
            if letter in ("T", "t"):
                return State.STOPPED
        return State.RUNS if self.beats else State.SILENT

    @property
    def reason(self) -> str:
        """One sentence on this rank as the cause."""
        match self.state:
            case State.FAILED:
                assert self.status is not None
                return f"rank {self.rank} failed: {self.status.failure}"
            case State.DEAD:
                return f"rank {self.rank} died"
            case State.STOPPED:
                return f"rank {self.rank} is stopped"
            case State.SILENT if self.status is None:
                return f"rank {self.rank} did not come up"
            case State.SILENT:
                return f"rank {self.rank} does not answer: its process or its host is gone"
            case _:
                age = self.status.age if self.status is not None else 0.0
                return f"rank {self.rank} has not moved for {age:.1f} s"


def children(parent: int, variables: Mapping[str, str]) -> list[int]:
    """The processes of this host that ``parent`` started with these environment variables."""
    wanted = {f"{name}={value}".encode() for name, value in variables.items()}
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            its = int(stat.read_text().rpartition(")")[2].split()[1])
            given = (stat.parent / "environ").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        if its == parent and wanted <= set(given):
            found.append(int(stat.parent.name))
    return found


def process_state(pid: int) -> str:
    """The letter of a process's state on this host (Z zombie, T stopped); empty if it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "" if Path("/proc/self").exists() else "?"
    return stat.rpartition(")")[2].split()[0]


def judge(reports: Sequence[Report], waits: Callable[[Report], bool]) -> int:
    """The rank that is the cause.

    One that failed, died, is stopped or silent is, in this order. Else it is one that does
    something else than wait, the longest first; and if all of them wait, the one that has waited
    longest. ``waits`` tells whether the instruction that a rank is at is a wait.
    """
    for state in (State.FAILED, State.DEAD, State.STOPPED, State.SILENT):
        found = [report.rank for report in reports if report.state is state]
        if found:
            return found[0]

    def blame(report: Report) -> tuple[bool, float]:
        status = report.status
        if status is None or report.state is State.DONE:
            return False, -1.0
        idle = status.phase == WAITING if status.row < 0 else waits(report)
        return not idle, status.age

    return max(reports, key=blame).rank


class Describer:
    """Turns reports into text, with each rank's instruction, peer and ``.sched`` line.

    Before the programs are known no rank can be at an instruction, and none is asked for.
    """

    def __init__(
        self,
        programs: Programs = (),
        mesh: Mesh | None = None,
        sources: Mapping[str, Mapping[int, str]] | None = None,
        evaluation: Programs = (),
    ) -> None:
        self.programs, self.evaluation = programs, evaluation
        self.mesh, self.sources = mesh or Mesh(), sources or {}

    def waits(self, report: Report) -> bool:
        """Whether the instruction in progress waits for another rank."""
        assert report.status is not None
        program, row = self._program(report.rank, report.status), report.status.row
        at = int(program.stream.table[row, CODE]) if row < len(program.stream) else Code.STEP
        return at >= Code.WAIT_MESSAGE

    def __call__(self, reports: Sequence[Report], cause: int) -> str:
        lines = [f"schedc: {reports[cause].reason}", "all ranks are ended; they were at"]
        if self.mesh.size > self.mesh.pp and any(r.status and r.status.row >= 0 for r in reports):
            lines[1] += " (instructions name pipeline ranks)"
        for report in reports:
            lines += self._rank(report, report.rank == cause)
        return "\n".join(lines)

    def _program(self, rank: int, status: Status) -> RankProgram:
        programs = self.evaluation if status.phase == EVALUATES else self.programs
        return programs[self.mesh.coordinates(rank)["pp"]]

    def _rank(self, report: Report, is_cause: bool) -> list[str]:
        axes = [axis for axis in ("pp", "dp") if self.mesh.axis_size(axis) > 1]
        at = ", ".join(f"{axis} {self.mesh.coordinates(report.rank)[axis]}" for axis in axes)
        head = f"{'>' if is_cause else ' '} rank {report.rank}" + (f" ({at})" if at else "")
        status = report.status
        if status is None:
            return [f"{head}: never came up"]
        state = "" if report.state is State.RUNS else f"{report.state.value}, last seen at "
        if status.row < 0:
            return [f"{head}: {state}{status.phase}"]
        turn = "evaluation pass" if status.phase == EVALUATES else "step"
        return [f"{head}: {state}{turn} {status.step}, {self._instruction(report, status)}"]

    def _instruction(self, report: Report, status: Status) -> str:
        rank, row = report.rank, status.row
        program = self._program(rank, status)
        if row >= len(program.stream):
            return "between steps"
        words = [f"row {row} of {len(program.stream)}: {instruction_text(program, row)}"]
        peer = self._peer(rank, program, row)
        if peer:
            words.append(peer)
        place = self._place(program, row)
        if place:
            words.append(place)
        if report.state is State.RUNS:
            words.append(f"for {status.age:.1f} s")
        return "   ".join(words)

    def _message(self, program: RankProgram, row: int) -> int:
        """The row of the send or receive that the instruction is or waits for; -1 for none."""
        line = program.stream.table[row]
        if line[CODE] == Code.WAIT_MESSAGE:
            return int(line[REF])
        return row if line[CODE] in (Code.SEND, Code.RECV) else -1

    def _peer(self, rank: int, program: RankProgram, row: int) -> str:
        code = int(program.stream.table[row, CODE])
        post = self._message(program, row)
        if post >= 0:
            at = self.mesh.coordinates(rank) | {"pp": int(program.stream.table[post, PEER])}
            verb = "to" if program.stream.table[post, CODE] == Code.SEND else "from"
            text = "" if post == row else f" ({instruction_text(program, post)})"
            return f"{verb} rank {self.mesh.rank_at(**at)}{text}"
        if code == Code.WAIT_TIE:
            table = program.stream.table
            peer = int(table[table[:, CODE] == Code.TIE, PEER][0])
            return f"with rank {self.mesh.rank_at(**(self.mesh.coordinates(rank) | {'pp': peer}))}"
        axes = {
            Code.WAIT_REDUCE: ("dp",),
            Code.WAIT_COUNT: ("dp",),
            Code.WAIT_NORM: ("pp",),
            Code.WAIT_REPORT: ("dp", "pp"),
        }.get(Code(code))
        if axes is None:
            return ""
        group = next(group for group in self.mesh.groups(*axes) if rank in group)
        others = [str(other) for other in group if other != rank]
        return f"with rank{'s' * (len(others) > 1)} {', '.join(others)}" if others else ""

    def _place(self, program: RankProgram, row: int) -> str:
        """The ``.sched`` line of the instruction, or of what stands nearest to it."""
        rows = [(row, "#"), (self._message(program, row), "#")]
        rows += [(at, "# after") for at in range(row - 1, -1, -1)]
        rows += [(at, "# before") for at in range(row + 1, len(program.stream))]
        for at, word in rows:
            place = instruction_place(program, at) if at >= 0 else ""
            if place:
                name, _, number = place.rpartition(":")
                line = self.sources.get(name, {}).get(int(number), "").strip()
                return f"{word} {place}" + (f"  {line}" if line else "")
        return ""
