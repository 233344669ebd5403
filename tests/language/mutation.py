"""Mutated sources and settings, what goes wrong with them, and a smaller one that goes as wrong."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import schedc.schedules
from schedc.diagnostics import DiagnosticError, render
from schedc.ir.cost import Costs
from schedc.ir.verify import verify_order
from schedc.sema.claims import claims_to_diagnostics, evaluate_claims
from schedc.sema.library import Library, load_text
from schedc.sema.plan import SETTINGS, make_plan
from schedc.sema.schedule import Instance, instantiate
from schedc.simulate.figures import figures
from schedc.simulate.order import simulate_order
from schedc.syntax.format import format_source
from schedc.syntax.parse import make_source, parse_file

FOLDERS = (Path(schedc.schedules.__file__).parent, Path(__file__).parents[2] / "docs" / "examples")
WIDER = """\
import "gpipe.sched"  # more of the language than the bundled files use
schedule wide(K = 1 + 1, L = [1, 2]) {
    stages 2 * P
    place stage s on rank (s if s < P else 2 * P - 1 - s)
    require K >= 1 and not false else "K is {K}, {{M}} {M / 3}"
    note "P = {P}, \\"quoted\\", {[x // 2 for x in L]}"
    let (a, (b, c)) = (1, (2.5, "text"))
    let down = [(s, m) for s in 0..S, m in 0..M if s + m >= a]
    order on rank r {
        let mine = [r, 2 * P - 1 - r]
        for s in mine, m in 0..M step 1 { F(s, m) }
        for i in 0..len(mine) {
            repeat M {
                if K == 0 { I*(r)  W* }
                else if r % 2 != 0 and len(down) > 0 { B*(mine[-1 - i]) }
                else { I*(mine[1 - i])  W*(mine[1 - i]) }
            }
        }
    }
    check sum([abs(x - 2) for x in L if x > 0]) // 1 <= len(L[0:1]) ** 2  when T.F(0) == 1 / 2
    check busy(r) + peak_activations(0) < max(makespan, 99) or bubble_rate >= 0.25
}
"""
LATER = """\
cluster h100 { memory 80 GiB  link 450 GB/s }
schedule later {
    order on rank r { overlap { F(r, 0) | B(r, 0) } }
    policy { prefer I, F, W  limit activations <= K * P }
    split sequence 2  copies 2
}
plan every {
    model "llama-tiny" sequence 2 * 64 batch 32 in microbatches of 2 mesh dp = 1, pp = 2, cp = 1
    schedule interleaved(V = 2) layers "E t*3 | t*3 H" precision bf16 { master fp32 } zero 1
    recompute { stage 0 full } context ring zigzag sequence_parallel on optimizer sgd
    freeze "embed*", "norm" cluster h100 colour { a b }
}
"""
SOURCES = [
    path.read_text(encoding="utf-8") for each in FOLDERS for path in sorted(each.rglob("*.sched"))
] + [WIDER, LATER]
PIECES = [
    *("(", ")", "{", "}", "[", "]", ",", ":", "..", ".", "=", "==", "*", "**", "/", "//", "-", "+"),
    *(" F", " B", " W*", " I*(r)", " R(r, 0)", " for", " if", " let", " in", " else", " not", " s"),
    *(" order", " P", " 0", " 7", " 1.5", '"', "#", "\n", "\r", "\t", "\ufeff", "é", "１", " GiB"),
    *(" policy {", " when", " check", " T.F", " makespan", " 2 ** 9999999", " 0..999999999"),
    *(" % ", " < ", "|", ";", "\\", "{x}", "\x00", "\u00a0", "\u2028", "\U0001f600", " 80 GB/s"),
    *(" true", " and", " step -1", " step 0", " M", " [x for x in 0..3]", " (1, 2)", " - -", " S"),
    *(" mesh", " zero 7", " import", " plan p {", " schedule s {", " stages 0", " 1 / 0", '"{"'),
]
VALUES = [
    *("1", "2", "0", "-1", "7 / 2", "1.5", "2 ** 9999", "1 / 0", "", " ", "x", '"', "(", "[1]"),
    *("80 GiB", "true", "zb_h1", "interleaved(V = 3)", "balanced", "gpipe(K = 2)", "E t | t H"),
    *("9" * 30, "0..3", "not 1", "fp32", "adamw", "\ufeff1", "1 2", "\n", "\t3", "min(", "#", "F"),
    *("é", "M"),
]


@dataclass(frozen=True)
class Case:
    """A text and what ``--set`` would say."""

    text: str
    settings: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        shown = "".join(f" --set {name!r}={value!r}" for name, value in self.settings)
        return f"{self.text!r}{shown}\n{self.text}"


def mutated(seed: int) -> Case:
    """The case of a seed: one to four edits of a source, now and then a few settings."""
    rng = random.Random(seed)
    text = rng.choice(SOURCES)
    for _ in range(rng.randint(1, 4)):
        at, length = rng.randrange(len(text) + 1), rng.choice([0, 0, 1, 3, 12])
        piece = rng.choice(PIECES) if rng.random() < 0.8 else text[rng.randrange(len(text)) :][:9]
        text = text[:at] + (piece if rng.random() < 0.8 else "") + text[at + length :]
    if rng.random() < 0.7:
        return Case(text)
    names = [*SETTINGS, "P", "V", "K", "schedule.V", "schedule.K", "mesh", "é", ""]
    chosen = {rng.choice(names): rng.choice(VALUES) for _ in range(rng.randint(1, 3))}
    return Case(text, tuple(chosen.items()))


# ---- what may go wrong --------------------------------------------------------------------------


def _claims(instance: Instance, costs: Costs) -> None:
    """Decide the claims of an order that is right."""
    try:
        verify_order(instance.order)
    except DiagnosticError:
        return
    stage_costs = costs.of_stages(instance.order.ranks, instance.order.stages)
    found = figures(simulate_order(instance.order, stage_costs), stage_costs)
    false = claims_to_diagnostics(evaluate_claims(instance, found, stage_costs))
    if false:
        raise DiagnosticError(false)


def _actions(case: Case) -> list[Callable[[], object]]:
    """All that is done with a case once it is loaded; each may end in diagnostics."""
    settings = dict(case.settings)

    def check(library: Library, name: str) -> None:
        _claims(instantiate(library, name, 3, 4, settings), Costs())

    def format_twice() -> None:
        parse_file(make_source("fuzz.sched", case.text))
        once = format_source(make_source("fuzz.sched", case.text))
        assert format_source(make_source("fuzz.sched", once)) == once, (
            "formatting is not idempotent"
        )

    try:
        library = load_text("fuzz.sched", case.text)
    except DiagnosticError:
        return [lambda: load_text("fuzz.sched", case.text), format_twice]
    return [
        *(lambda name=name: check(library, name) for name in library.local_schedules),
        *(lambda name=name: make_plan(library, name, settings) for name in library.local_plans),
        format_twice,
    ]


def failure(case: Case) -> str | None:
    """What is wrong with how a case is handled: an exception, or a diagnostic without a place."""
    try:
        for action in _actions(case):
            try:
                action()
            except DiagnosticError as error:
                for diagnostic in error.diagnostics:
                    if (
                        diagnostic.span is None
                        or min(diagnostic.span.line, diagnostic.span.column) < 1
                    ):
                        return f"no line and column: {diagnostic.code} {diagnostic.message}"
                render(error.diagnostics)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}"
    return None


def minimised(case: Case, fails: Callable[[Case], str | None], most: int = 2000) -> Case:
    """A smaller case that fails in the same way: pieces are cut out as long as it does."""
    wanted = fails(case)
    tries = 0

    def still(smaller: Case) -> bool:
        nonlocal tries
        tries += 1
        return fails(smaller) == wanted

    for setting in case.settings:
        smaller = replace(case, settings=tuple(s for s in case.settings if s != setting))
        case = smaller if still(smaller) else case
    length = len(case.text) // 2
    while length and tries < most:
        at = 0
        while at < len(case.text) and tries < most:
            smaller = replace(case, text=case.text[:at] + case.text[at + length :])
            if still(smaller):
                case = smaller
            else:
                at += length
        length //= 2
    return case
