"""What a seed stands for: compiled programs, edited or not, and what the verifier says of them."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import numpy as np

from schedc.diagnostics import Diagnostic, DiagnosticError
from schedc.program.instructions import CODE, REF, Code, Stream
from schedc.program.program import Programs, RankProgram
from schedc.program.signature import Model
from schedc.program.verify import verify_programs
from tests.program.programs import SCHEDULES, compiled
from tests.simulation.world import Lane, by_communicator, by_queue, in_one

MACHINES: dict[str, Lane] = {"queues": by_queue, "communicators": by_communicator, "one": in_one}
"""From the weakest demands to the strongest."""

TITLES = {
    "the programs deadlock:": "queues",
    "the programs deadlock where all messages of a kind are in one queue:": "communicators",
    "the programs deadlock where all communication of a rank is in one queue:": "one",
}


@dataclass(frozen=True)
class Case:
    """``deadlock`` is the weakest machine on which the verifier says the programs hang, or None."""

    name: str
    programs: Programs
    model: Model
    replicas: int
    deadlock: str | None

    def hangs_on(self, machine: str) -> bool:
        names = list(MACHINES)
        return self.deadlock is not None and names.index(machine) >= names.index(self.deadlock)


def case_of(seed: int) -> Case:
    """The programs of ``seed``: of a bundled schedule; most seeds edit them, until they deadlock.

    Edits that the verifier refuses for another reason than a deadlock are thrown away, for what
    such programs do is no question of timing; the mutation tests ask it.
    """
    pick = random.Random(seed)
    wanted = pick.choice(("as compiled", "accepted", "accepted", *MACHINES))
    # Only where stages wrap around are there messages of a kind in two directions.
    schedules = ("interleaved",) if wanted == "communicators" else SCHEDULES
    schedule, replicas = pick.choice(schedules), pick.choice((1, 2))
    ranks = pick.choice((2, 2, 3, 4) if wanted in MACHINES else (1, 2, 3, 4))
    microbatches = pick.choice((2, 3, 4, 5) if wanted in MACHINES else (1, 2, 3, 4, 5))
    programs, model = compiled(schedule, ranks, microbatches, replicas)
    name = f"{schedule} P={ranks} M={microbatches} dp={replicas}"
    edits = 0
    for _ in range(0 if wanted == "as compiled" else 40):
        edited = _edited(programs, pick)
        codes, deadlock = verdict(edited, model, replicas)
        if codes in ((), ("E503",)) and (deadlock is None or deadlock == wanted):
            programs, edits = edited, edits + 1
            if deadlock or (edits == 12 and wanted == "accepted"):
                return Case(f"{name}, {edits} edits", programs, model, replicas, deadlock)
    return Case(f"{name}, {edits} edits", programs, model, replicas, None)


def verdict(programs: Programs, model: Model, replicas: int) -> tuple[tuple[str, ...], str | None]:
    """The verifier's codes, and the weakest machine that it says they hang on."""
    try:
        verify_programs(programs, model, replicas)
    except DiagnosticError as error:
        codes = tuple(sorted({diagnostic.code for diagnostic in error.diagnostics}))
        return codes, _machine(error.diagnostics[0]) if codes == ("E503",) else None
    return (), None


def _machine(diagnostic: Diagnostic) -> str | None:
    return next((m for title, m in TITLES.items() if diagnostic.message.startswith(title)), None)


def _edited(programs: Programs, pick: random.Random) -> Programs:
    """One rank's stream with instructions moved: as a slip, or as someone impatient would."""
    program = pick.choice(programs)
    table = program.stream.table
    size = len(table)
    waits = (table[:, CODE] == Code.WAIT_MESSAGE).nonzero()[0].tolist()
    order = list(range(size))
    how = pick.choice(("move", "wait at once", "post late")) if waits else "move"
    if how == "move":
        row, far = pick.randrange(size), pick.choice((1, 2, 4, 8, size))
        order.insert(min(max(row + pick.randint(-far, far), 0), size - 1), order.pop(row))
    else:
        wait = pick.choice(waits)
        post = int(table[wait, REF])
        order.remove(wait)
        order.remove(post)
        target = post if how == "wait at once" else min(post + pick.randint(1, 12), size - 2)
        order[target:target] = [post, wait]
    return (*programs[: program.rank], _reordered(program, order), *programs[program.rank + 1 :])


def _reordered(program: RankProgram, order: list[int]) -> RankProgram:
    """The rows in another order; waits stay those of their posts."""
    table = program.stream.table[order].copy()
    place = np.argsort(order)
    waits = table[:, CODE] == Code.WAIT_MESSAGE
    table[waits, REF] = place[table[waits, REF]]
    old = program.stream
    return replace(program, stream=Stream(table, old.operands, old.units, old.places))
