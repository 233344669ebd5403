"""Mutations of compiled programs: the verifier's verdict is what really happens.

The reference interpreter executes every mutated program. Whatever is dropped, repeated or changed
is refused; a swap is refused, or the programs still compute exactly one step. Nor is anything
refused that would have worked: the verdict is exact on all of these.
"""

from __future__ import annotations

from collections import Counter
from itertools import chain

import pytest

from schedc.diagnostics import DiagnosticError
from schedc.program.text import parse_program
from tests.program.interpreter import outcome
from tests.program.mutations import (
    accepted_swaps,
    changes,
    declared,
    dropped_queues,
    drops,
    repeats,
    swaps,
    verdict,
)
from tests.program.programs import SCHEDULES, compiled

REPLICAS = 2
SMALL = [
    *((schedule, ranks, 2) for schedule in SCHEDULES for ranks in (1, 2)),
    ("one_f_one_b", 2, 3),
    ("zb_h1", 2, 3),
]
LARGE = [
    *((schedule, 2, 4) for schedule in SCHEDULES),
    *((schedule, 3, 3) for schedule in SCHEDULES),
    ("one_f_one_b", 4, 4),
    ("zb_h1", 4, 4),
]


TIED = [
    (schedule, ranks, 2, True, ())
    for schedule, ranks in (("one_f_one_b", 2), ("zb_h1", 2), ("interleaved", 1), ("v_shaped", 2))
]
FROZEN = [
    ("one_f_one_b", 2, 2, False, ("embedding", "layers.0")),
    ("zb_h1", 2, 2, False, ("embedding", "layers.0")),
    ("zb_h1", 2, 2, False, ("layers.1", "head")),
    ("interleaved", 2, 2, False, ("embedding", "layers.0", "layers.1")),
    ("v_shaped", 2, 2, False, ("embedding", "layers.0", "layers.2")),
    ("zb_h1", 2, 2, True, ("layers.0", "layers.1")),
]


def check(
    schedule: str,
    ranks: int,
    microbatches: int,
    tied: bool = False,
    frozen: tuple[str, ...] = (),
    *,
    far: int,
) -> None:
    programs, model = compiled(schedule, ranks, microbatches, REPLICAS, tied, frozen)
    assert outcome(programs, REPLICAS, model) == "right"
    counts: Counter[tuple[str, str]] = Counter()
    mutations = chain(drops(programs), repeats(programs), swaps(programs, far), changes(programs))
    for mutation in mutations:
        codes = verdict(mutation.programs, model, REPLICAS)
        happens = outcome(mutation.programs, REPLICAS, model)
        where = f"{mutation.kind} {mutation.what}: verdict {codes}, and it {happens}"
        assert bool(codes) == (happens != "right"), where
        assert codes or mutation.kind.startswith("swap"), where
        if codes == ("E503",):
            assert happens == "hangs", where
        kind = mutation.kind if mutation.kind[:4] != "chan" else "change"
        counts[kind, "refused" if codes else "accepted"] += 1
    shown = ", ".join(f"{kind} {what} {n}" for (kind, what), n in sorted(counts.items()))
    print(f"{schedule} P={ranks} M={microbatches}: {shown}")
    assert not any(what == "accepted" and "swap" not in kind for kind, what in counts)
    assert counts["drop", "refused"] == counts["repeat", "refused"] > 0


@pytest.mark.parametrize(("schedule", "ranks", "microbatches"), SMALL)
def test_verdict_is_what_happens(schedule: str, ranks: int, microbatches: int) -> None:
    check(schedule, ranks, microbatches, far=100)


@pytest.mark.parametrize(("schedule", "ranks", "microbatches", "tied", "frozen"), [*TIED, *FROZEN])
def test_verdict_is_what_happens_where_gradients_are_tied_or_absent(
    schedule: str, ranks: int, microbatches: int, tied: bool, frozen: tuple[str, ...]
) -> None:
    check(schedule, ranks, microbatches, tied, frozen, far=100)


@pytest.mark.sweep
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("schedule", "ranks", "microbatches"), LARGE)
def test_verdict_is_what_happens_at_more_sizes(
    schedule: str, ranks: int, microbatches: int
) -> None:
    check(schedule, ranks, microbatches, far=400)


@pytest.mark.parametrize(
    ("schedule", "ranks", "microbatches", "tied", "frozen"),
    [*((*small, False, ()) for small in SMALL), *TIED, *FROZEN],
)
def test_bodies_pools_and_queues(
    schedule: str, ranks: int, microbatches: int, tied: bool, frozen: tuple[str, ...]
) -> None:
    """Refused, or harmless for a reason that is named; neither more nor less."""
    programs, model = compiled(schedule, ranks, microbatches, REPLICAS, tied, frozen)
    counts: Counter[str] = Counter()
    for mutation in declared(programs, model):
        codes = verdict(mutation.programs, model, REPLICAS)
        where = f"{mutation.kind} {mutation.what}: verdict {codes}, harmless: {mutation.harmless}"
        assert bool(codes) != bool(mutation.harmless), where
        if mutation.harmless:
            assert outcome(mutation.programs, REPLICAS, model) == "right", where
        counts[f"{mutation.kind} {'refused' if codes else 'accepted'}"] += 1
    for what, text in dropped_queues(programs):
        with pytest.raises(DiagnosticError) as caught:
            parse_program(text, what)
        assert {diagnostic.code for diagnostic in caught.value.diagnostics} == {"E507"}
        counts["queue drop refused"] += 1
    shown = ", ".join(f"{kind} {n}" for kind, n in sorted(counts.items()))
    print(f"{schedule} P={ranks} M={microbatches}: {shown}")


def test_accepted_swaps_can_be_run() -> None:
    """What tests of the runtime take from here."""
    programs, model = compiled("zb_h1", 2, 3)
    accepted = accepted_swaps(programs, model, REPLICAS)
    assert len(accepted) > 20
    assert all(outcome(mutation.programs, REPLICAS) == "right" for mutation in accepted)
