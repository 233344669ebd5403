"""Whatever the text, the only error is a diagnostic, and every diagnostic has a place."""

import random
from pathlib import Path

import pytest

import schedc.schedules
from schedc.diagnostics import DiagnosticError, render
from schedc.sema.library import load_text
from schedc.sema.plan import make_plan
from schedc.sema.schedule import instantiate

SOURCES = [
    path.read_text(encoding="utf-8")
    for path in sorted(Path(schedc.schedules.__file__).parent.rglob("*.sched"))
]
PIECES = [
    *("(", ")", "{", "}", "[", "]", ",", ":", "..", ".", "=", "==", "*", "**", "/", "//", "-", "+"),
    *(" F", " B", " W*", " I*(r)", " R(r, 0)", " for", " if", " let", " in", " else", " not", " s"),
    *(" order", " P", " 0", " 7", " 1.5", '"', "#", "\n", "\r", "\t", "\ufeff", "é", "１", " GiB"),
    *(" policy {", " when", " check", " T.F", " makespan", " 2 ** 9999999", " 0..999999999"),
]


def mutated(rng: random.Random) -> str:
    text = rng.choice(SOURCES)
    for _ in range(rng.randint(1, 4)):
        at, length = rng.randrange(len(text) + 1), rng.choice([0, 0, 1, 3, 12])
        piece = rng.choice(PIECES) if rng.random() < 0.8 else text[rng.randrange(len(text)) :][:9]
        text = text[:at] + (piece if rng.random() < 0.8 else "") + text[at + length :]
    return text


@pytest.mark.parametrize("block", range(10))
def test_mutated_sources_give_diagnostics_at_most(block: int) -> None:
    for seed in range(30 * block, 30 * block + 30):
        text = mutated(random.Random(seed))
        try:
            library = load_text("fuzz.sched", text)
            for name in library.local_schedules:
                instantiate(library, name, 3, 4, {})
            for name in library.local_plans:
                make_plan(library, name, {})
        except DiagnosticError as error:
            found = error.diagnostics
        else:
            continue
        assert all(diagnostic.span is not None for diagnostic in found), (seed, text)
        assert render(found)
