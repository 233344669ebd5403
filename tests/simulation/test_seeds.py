"""Deterministic simulation: the verifier's verdict is what happens, under every seed tried.

Claimed of a seed's programs, on each of three machines (queues as they are, one a communicator, one
a rank): where the verifier accepts them, they finish, do exactly one step (every value, sum and
slot is checked) and leave all slots empty, however long instructions and transfers take and
whenever data moves; where it says that they deadlock, they hang whatever the timing, on the machine
that it names and on all that demand more, and finish on those that demand less. Where a rank dies,
everyone else ends or waits for it.

Replay one with ``pytest 'tests/simulation/test_seeds.py::test_seeds' --seed N``.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.auditor import run, run_with_death
from tests.simulation.cases import MACHINES, case_of

TIMINGS = 2
"""Timings of each case and machine."""


def check(seed: int) -> Counter[str]:
    """Everything claimed of a seed; what was seen."""
    case = case_of(seed)
    seen: Counter[str] = Counter()
    for machine in MACHINES:
        for timing in range(TIMINGS):
            finished = run(case, machine, seed * TIMINGS + timing).finished
            hangs = case.hangs_on(machine)
            said = "hang" if hangs else "finish"
            assert finished != hangs, f"{case.name}: the verifier says they {said} on {machine}"
            seen[f"{machine}: {'finished' if finished else 'hung'}"] += 1
        if not case.hangs_on(machine):
            simulated, _ = run_with_death(case, machine, seed)
            seen["deaths"] += 1
            seen["ranks that ended all the same"] += sum(p.finished for p in simulated.paces)
    seen[f"verdict: {f'deadlock on {case.deadlock}' if case.deadlock else 'accepted'}"] += 1
    return seen


def sweep(seeds: range) -> None:
    seen: Counter[str] = Counter()
    for seed in seeds:
        try:
            seen += check(seed)
        except Exception as error:
            replay = f"pytest 'tests/simulation/test_seeds.py::test_seeds' --seed {seed}"
            raise AssertionError(f"seed {seed} fails: {error}\nreplay: {replay}") from error
    print(f"{len(seeds)} seeds: " + ", ".join(f"{what} {n}" for what, n in sorted(seen.items())))
    if len(seeds) >= 50:  # the claim has teeth only if both verdicts come up
        for what in ("accepted", *(f"deadlock on {machine}" for machine in MACHINES)):
            assert seen[f"verdict: {what}"], what


def test_seeds(request: pytest.FixtureRequest) -> None:
    seed: int | None = request.config.getoption("--seed", default=None)
    sweep(range(50) if seed is None else range(seed, seed + 1))


@pytest.mark.sweep
@pytest.mark.timeout(1800)
def test_a_thousand_seeds() -> None:
    sweep(range(1000))


def test_a_seed_is_a_run() -> None:
    """The same seed gives the same trace, event by event; another one gives another."""
    case = case_of(3)
    first, again, other = (run(case, "queues", seed).world.trace for seed in (1, 1, 2))
    assert first == again
    assert first != other
