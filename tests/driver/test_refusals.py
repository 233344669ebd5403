"""What a plan is refused for: the code, the place, and the numbers on both sides."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from schedc.diagnostics import DiagnosticError, render
from schedc.driver.build import compile_plan
from schedc.model.config import PRESETS
from schedc.sema.library import load_file
from tests.driver.plans import BLOCKED, PLAN, plan_with, refusal

FIXED_GROUPS = """\
schedule fixed(V = 3) {
    stages P * V
    place stage s on rank s % P
    let slots = [(v, m) for g in 0..M step 4, v in 0..V, m in g .. min(g + 4, M)]
    let first = 4
    order on rank r {
        let n = M * V
        let warmup = min(2 * (P - 1 - r) + (V - 1) * first, n)
        for k in 0..warmup      { let (v, m) = slots[k]           F(v * P + r, m) }
        for k in 0..n-warmup    { let (v, m) = slots[k + warmup]  F(v * P + r, m)
                                  let (v, m) = slots[k]           B((V - 1 - v) * P + r, m) }
        for k in n-warmup..n    { let (v, m) = slots[k]           B((V - 1 - v) * P + r, m) }
    }
}
"""

ONE_SHORT = """\
schedule short {
    place stage s on rank s
    order on rank r {
        for m in 0..M { F(r, m) }
        for m in 0..M - 1 { B(r, m) }
    }
}
"""

BOASTING = """\
schedule boasting {
    place stage s on rank s
    order on rank r { for m in 0..M { F(r, m) } for m in 0..M { B(r, m) } }
    check peak_activations(r) <= 1
}
"""

# PLAN's keys stand on lines: model 2, sequence 3, batch 4, mesh 5, schedule 6, precision 7.
CASES = {
    "more stages than units": (
        plan_with(mesh="pp = 8", batch="16 in microbatches of 2"),
        ["error[E802]", "p.sched:6:", "8 stages", "6 units", "4 layers"],
    ),
    "an empty stage in a layout": (
        plan_with(layers='"E t*4 H | "'),
        ["error[E802]", "p.sched:8:16", "stage 1"],
    ),
    "a layer left out": (
        plan_with(layers='"E t*2 | t H"'),
        ["error[E801]", "p.sched:8:16", "3 layers", "the model 4"],
    ),
    "a layer too many": (
        plan_with(layers='"E t*2 | t*3 H"'),
        ["error[E801]", "p.sched:8:16", "5 layers", "the model 4"],
    ),
    "a layout of another number of stages": (
        plan_with(layers='"E t | t*2 | t H"'),
        ["error[E814]", "p.sched:8:16", "3 stages", "the schedule 2"],
    ),
    "no layout": (plan_with(layers='"E t*3 & t H"'), ["error[E804]", "p.sched:8:16", '"&']),
    "a batch that dp does not divide": (
        plan_with(batch="15 in microbatches of 2"),
        ["error[E803]", "p.sched:4:16", "15", "dp = 2", "14 and 16"],
    ),
    "a batch of less than a microbatch": (
        plan_with(batch="6 in microbatches of 4"),
        ["error[E803]", "p.sched:4:16", "6", "3 sequences", "microbatch of 4", "of 3` or fewer"],
    ),
    "a name that begins like an axis": (
        plan_with(mesh="pp2=2"),
        ["error[E809]", "p.sched:5:16", "no axis `pp2`", "did you mean `pp`?"],
    ),
    "an axis of no ranks": (
        plan_with(mesh="dp = 2, pp = 0"),
        ["error[E811]", "p.sched:5:29", "`pp` is 0", "a whole number from 1"],
    ),
    "a negative axis": (
        plan_with(mesh="pp = -1"),
        ["error[E811]", "p.sched:5:21", "`pp` is -1", "a whole number from 1"],
    ),
    "an axis with an exponent": (
        plan_with(mesh="pp = 1e9"),
        ["error[E104]", "p.sched:5:21", "`1e9` is not a number", "write 1000000000"],
    ),
    "an axis of more ranks than there can be": (
        plan_with(mesh="pp = 1000000000"),
        ["error[E811]", "p.sched:5:21", "`pp` is 1000000000", "to 65536"],
    ),
    "an axis twice": (
        plan_with(mesh="dp = 2, pp = 2, dp = 4"),
        ["error[E808]", "p.sched:5:32", "axis `dp` stands twice"],
    ),
    "a key twice": (
        plan_with(sequence="16 sequence 32"),
        ["error[E808]", "p.sched:3:19", "`sequence` stands twice", "p.sched:3:5", "first here"],
    ),
    "an unknown key": (
        plan_with(model='"llama-test" sequnce 16'),
        ["error[E809]", "p.sched:2:29", "no key `sequnce`", "did you mean `sequence`?"],
    ),
    "a digit of another width": (
        plan_with(mesh="pp = ２"),
        ["error[E101]", "p.sched:5:21", "fullwidth digit two", "write `2`"],
    ),
    "an unknown preset": (
        plan_with(model='"llama-tset"'),
        ["error[E806]", "p.sched:2:16", "llama-tset", 'did you mean "llama-test"?'],
    ),
    "an order that cannot begin": (
        plan_with(schedule="blocked", before=BLOCKED),
        ["error[E401]", "p.sched:4:", "B(stage 0, microbatch 0)", "F(stage 0, microbatch 0)"],
    ),
    "a backward left out": (
        plan_with(schedule="short", before=ONE_SHORT),
        ["error[E301]", "stage 0", "microbatch 3", "rank 0", "rank 1"],
    ),
    "a false claim": (
        plan_with(schedule="boasting", before=BOASTING),
        ["error[E701]", "p.sched:4:5", "peak_activations(r) <= 1", "on rank 0", "is 4"],
    ),
}


@pytest.mark.parametrize(("text", "words"), CASES.values(), ids=CASES)
def test_refused(text: str, words: list[str]) -> None:
    shown = refusal(text)
    for word in words:
        assert word in shown, shown


def test_a_deadlock_prints_its_cycle_with_source_lines() -> None:
    """Fixed groups of four: with M = 5 the last round has one microbatch (language.md, Schedules).

    Forwards stand on lines 9 and 10, backwards on lines 11 and 12.
    """
    text = plan_with(
        schedule="fixed", mesh="pp = 4", batch="5 in microbatches of 1", model='"deep"',
        before=FIXED_GROUPS,
    )  # fmt: skip
    shown = refusal(text)
    assert shown.startswith("error[E401]")
    assert "p.sched:10:" in shown
    assert "p.sched:11:" in shown
    assert "rank" in shown
    assert "stage" in shown


def test_four_microbatches_in_groups_of_four_do_not_deadlock() -> None:
    """The same text with M = 4 is only short of layers: 12 stages, 6 units."""
    text = plan_with(
        schedule="fixed", mesh="pp = 4", batch="4 in microbatches of 1", before=FIXED_GROUPS
    )
    assert refusal(text).startswith("error[E802]: 12 stages, but only 6 units")


def test_settings_are_places_too() -> None:
    shown = refusal(PLAN, {"layers": "E t*2 | t H"})
    assert "error[E801]" in shown
    assert "--> --set:1:8" in shown
    assert "layers=E t*2 | t H" in shown
    shown = refusal(PLAN, {"P": "2"})
    assert "error[E812]" in shown
    assert "set `pp`" in shown


def test_several_mistakes_come_together() -> None:
    shown = refusal(plan_with(batch="15 in microbatches of 2", optimizer="adam", zero="1"))
    assert [line.split("]")[0] for line in shown.splitlines() if line.startswith("error")] == [
        "error[E811",
        "error[E810",
    ]
    assert "did you mean" in shown


def test_a_broken_config_is_shown_at_its_line(tmp_path: Path) -> None:
    config = json.dumps(PRESETS["llama-test"].to_hf() | {"hidden_act": "gelu"}, indent=1)
    (tmp_path / "config.json").write_text(config)
    (tmp_path / "p.sched").write_text(plan_with(model='"config.json"'))
    with pytest.raises(DiagnosticError) as caught:
        compile_plan(load_file(tmp_path / "p.sched"), "p", {})
    shown = render(caught.value.diagnostics)
    line = 1 + config[: config.index('"hidden_act"')].count("\n")
    assert f"config.json:{line}:2" in shown
    assert "p.sched:2:16" in shown
    assert "gelu" in shown


@pytest.mark.parametrize("model", ["no/such/folder", "."])
def test_a_model_that_cannot_be_read(model: str, tmp_path: Path) -> None:
    (tmp_path / "p.sched").write_text(plan_with(model=f'"{model}"'))
    with pytest.raises(DiagnosticError) as caught:
        compile_plan(load_file(tmp_path / "p.sched"), "p", {})
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E806"
    assert diagnostic.span is not None
    assert diagnostic.span.line == 2
