"""The bundled schedules and every statement of an order, against orders written by hand."""

import pytest

from schedc.catalogue import CATALOGUE
from schedc.diagnostics import DiagnosticError
from schedc.ir.cost import Costs
from schedc.ir.order import Op
from schedc.ir.verify import verify_order
from schedc.sema import order_body, values
from schedc.sema.claims import evaluate_claims
from schedc.sema.library import bundled
from schedc.sema.schedule import instantiate
from schedc.simulate.figures import figures
from schedc.simulate.order import simulate_order
from tests.language.programs import codes_of, microbatches, run, schedule_of, tasks

BY_HAND = {
    ("gpipe", 2, 2): ["F0.0 F0.1 B0.0 B0.1", "F1.0 F1.1 B1.0 B1.1"],
    ("one_f_one_b", 2, 3): [
        "F0.0 F0.1 B0.0 F0.2 B0.1 B0.2",
        "F1.0 B1.0 F1.1 B1.1 F1.2 B1.2",
    ],
    ("one_f_one_b", 3, 1): ["F0.0 B0.0", "F1.0 B1.0", "F2.0 B2.0"],
    ("zb_h1", 2, 3): [
        "F0.0 F0.1 I0.0 W0.0 F0.2 I0.1 W0.1 I0.2 W0.2",
        "F1.0 I1.0 F1.1 I1.1 W1.0 F1.2 I1.2 W1.1 W1.2",
    ],
    ("zb_h1", 1, 2): ["F0.0 I0.0 W0.0 F0.1 I0.1 W0.1"],
    # Two chunks a rank; rounds of two microbatches; warm-up 2 * (1 - r) + 2.
    ("interleaved", 2, 2): [
        "F0.0 F0.1 F2.0 F2.1 B2.0 B2.1 B0.0 B0.1",
        "F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 B1.0 B1.1",
    ],
    ("interleaved", 2, 1): ["F0.0 F2.0 B2.0 B0.0", "F1.0 F3.0 B3.0 B1.0"],
}


@pytest.mark.parametrize(("name", "P", "M"), BY_HAND, ids=lambda value: str(value))
def test_small_orders_by_hand(name: str, P: int, M: int) -> None:
    instance = instantiate(bundled(), name, P, M, {})
    assert [tasks(instance, rank) for rank in range(P)] == BY_HAND[name, P, M]


@pytest.mark.parametrize("name", sorted(set(bundled().schedules) - {"dualpipev"}))
@pytest.mark.parametrize("P", [1, 2, 3, 4])
@pytest.mark.parametrize("M", [1, 2, 3, 5, 8])
def test_bundled_schedules_are_sound_and_keep_their_claims(name: str, P: int, M: int) -> None:
    for V in (1, 2, 3) if name == "interleaved" else (None,):
        instance = instantiate(bundled(), name, P, M, {} if V is None else {"V": V})
        verify_order(instance.order)
        costs = Costs().of_stages(P, instance.order.stages)
        found = figures(simulate_order(instance.order, costs), costs)
        results = evaluate_claims(instance, found, costs)
        assert results
        assert all(result.holds is not False for result in results), results


@pytest.mark.parametrize("P", range(1, 9))
def test_dualpipev_is_sound_and_keeps_its_claims(P: int) -> None:
    """It needs 2 * P microbatches; the bubble's formula is DeepSeek-AI's."""
    for M in (2 * P, 2 * P + 1, 5 * P):
        instance = instantiate(bundled(), "dualpipev", P, M, {})
        verify_order(instance.order)
        costs = Costs().of_stages(P, instance.order.stages)
        found = figures(simulate_order(instance.order, costs), costs)
        assert all(result.holds for result in evaluate_claims(instance, found, costs))
    with pytest.raises(DiagnosticError, match=f"needs 2 \\* P .*M = {2 * P - 1}, P = {P}"):
        instantiate(bundled(), "dualpipev", P, 2 * P - 1, {})


@pytest.mark.parametrize(("P", "M", "makespan"), [(2, 4, 26), (4, 8, 54), (4, 16, 102)])
def test_dualpipev_takes_as_long_as_published(P: int, M: int, makespan: int) -> None:
    costs = Costs(*(values.Fraction(2),) * 3)
    stage_costs = costs.of_stages(P, 2 * P)
    order = instantiate(bundled(), "dualpipev", P, M, {}).order
    assert figures(simulate_order(order, stage_costs), stage_costs).makespan == makespan


def test_interleaved_with_more_ranks_than_microbatches_divide() -> None:
    """M = 5 at P = 4: one round of five, so that every chunk's first F comes in model order."""
    order = instantiate(bundled(), "interleaved", 4, 5, {"V": "3"})
    assert order.title == "interleaved(V=3)"
    assert order.order.rank_of == (0, 1, 2, 3) * 3
    assert order.order.stages_of[1] == (1, 5, 9)
    assert microbatches(order, Op.F, 3)[:5] == [0, 1, 2, 3, 4]


def test_spans_are_those_of_the_lines() -> None:
    order = instantiate(bundled(), "zb_h1", 2, 3, {}).order
    places = [str(order.span(1, index)) for index in range(3)]
    assert places == ["zb_h1.sched:9:35", "zb_h1.sched:9:53", "zb_h1.sched:9:35"]


# ---- statements -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "order"),
    [
        ("for m in 0..3 { F(0, m) }", "F0.0 F0.1 F0.2"),
        ("for m in 3..0 { F(0, m) }", ""),
        ("for m in 0..4 step 2 { F(0, m) }", "F0.0 F0.2"),
        ("for m in 2..-1 step -1 { F(0, m) }", "F0.2 F0.1 F0.0"),
        ("for a in 0..2, b in 0..2 { F(0, 2 * a + b) }", "F0.0 F0.1 F0.2 F0.3"),
        ("for (a, b) in [(0, 1), (0, 3)] { F(a, b) }", "F0.1 F0.3"),
        ("for m in [2, 0] { F(0, m) B(0, m) }", "F0.2 B0.2 F0.0 B0.0"),
        ("let x = 1 let x = x + 1 F(0, x)", "F0.2"),
        ("let x = 1 for m in 0..2 { let x = x + m F(0, x) } F(0, x)", "F0.1 F0.2 F0.1"),
        ("let (a, (b, c)) = (0, [1, 2]) F(a, b) F(a, c)", "F0.1 F0.2"),
        ("if M == 4 { F(0, 0) } F(0, 1)", "F0.0 F0.1"),
        ("if M == 5 { F(0, 0) } else { F(0, 1) }", "F0.1"),
        ("if M == 5 { F(0, 0) } else if M == 4 { F(0, 1) } else { F(0, 2) }", "F0.1"),
        ("if M == 5 { F(0, 0) } else if M == 6 { F(0, 1) } else { F(0, 2) }", "F0.2"),
        ("repeat 2 { F*(0) } repeat 0 { F*(0) }", "F0.0 F0.1"),
        ("F(0, 0) { }".replace("{ }", ""), "F0.0"),
        ("F* F* B* F* B*", "F0.0 F0.1 B0.0 F0.2 B0.1"),
        ("F(0, 1) F* F*", "F0.1 F0.0 F0.2"),
        ("F* F* I* B* W*", "F0.0 F0.1 I0.0 B0.1 W0.0"),
        ("F* F* F* I(0, 2) I(0, 0) W* W*", "F0.0 F0.1 F0.2 I0.2 I0.0 W0.2 W0.0"),
        ("F* F* I* I* W(0, 0) W*(0)", "F0.0 F0.1 I0.0 I0.1 W0.0 W0.1"),
        ("F(0, 0,)", "F0.0"),
        ("", ""),
    ],
)
def test_statements(body: str, order: str) -> None:
    assert tasks(run(schedule_of(body))) == order


def test_w_owed_longest_over_several_stages() -> None:
    text = schedule_of("F*(0) F*(1) I*(1) I*(0) W* W*", stages="stages 2 * P", place="s % P")
    assert tasks(run(text)) == "F0.0 F1.0 I1.0 I0.0 W1.0 W0.0"
    text = schedule_of("F*(0) F*(1) I*(1) I*(0) W*(0) W*", stages="stages 2 * P", place="s % P")
    assert tasks(run(text)) == "F0.0 F1.0 I1.0 I0.0 W0.0 W1.0"


def test_parameters_notes_and_requirements() -> None:
    text = """
    schedule s(K = 2, L = K * P, list = [1, 2]) {
        require K > 0 else "K = {K}"
        stages L
        place stage s on rank s % P
        let half = S / 2
        note "K = {K}, S = {S}, half = {half}, {{}} {list}"
        order on rank r { }
    }"""
    instance = run(text, P=2)
    assert instance.title == "s(K=2, L=4, list=[1, 2])"
    assert instance.notes == ("K = 2, S = 4, half = 2, {} [1, 2]",)
    assert instance.order.rank_of == (0, 1, 0, 1)
    assert run(text, P=2, K="1 + 2").parameters == {"K": 3, "L": 6, "list": [1, 2]}
    assert run(text, P=2, K=3, L=2).order.stages == 2
    with pytest.raises(DiagnosticError, match="K = 0"):
        run(text, K=0)
    with pytest.raises(DiagnosticError, match="no parameter `k`"):
        run(text, k=0)
    with pytest.raises(DiagnosticError, match="unknown name `P`"):
        run(text, K="P")
    with pytest.raises(DiagnosticError, match="E102"):
        run(text, K="1 +* 2")


@pytest.mark.parametrize(("P", "M"), [(0, 1), (1, 0), (-1, 1), (True, 1), (1.5, 2), (10**9, 1)])
def test_ranks_and_microbatches_are_whole_and_positive(P: int, M: int) -> None:
    with pytest.raises(DiagnosticError, match="E217"):
        instantiate(bundled(), "gpipe", P, M, {})


def test_a_rank_without_stages_may_do_nothing() -> None:
    text = schedule_of("if r < 2 { for m in 0..M { F(r, m) B(r, m) } }", stages="stages 2")
    assert [len(table) for table in run(text, P=3).order.tables] == [8, 8, 0]


def test_too_many_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_body, "MOST_OPERATIONS", 1000)
    text = schedule_of("for i in 0..900, j in 0..2 { F(r, 0) }")
    assert codes_of(text) == ["E209"]
    assert codes_of(schedule_of("repeat 600 { F(r, 0) }"), P=2) == ["E209"]
    assert codes_of(schedule_of("repeat 400 { F(r, 0) }"), P=2) == []


def test_too_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "MOST_STEPS", 1000)
    assert codes_of(schedule_of("for i in 0..100, j in 0..20 { }")) == ["E209"]
    assert codes_of(schedule_of("let x = sum([i for i in 0..600 if i < 0 or true])")) == ["E209"]
    assert codes_of(schedule_of("let x = sum(0..10 ** 9)")) == []


def test_mistakes_of_several_ranks_come_out_together() -> None:
    with pytest.raises(DiagnosticError) as caught:
        run(schedule_of("F(r, M) if r == 1 { F(0, 0) }"), P=4)
    (only,) = caught.value.diagnostics
    assert only.code == "E207"
    assert only.message == "F(0, 4) names microbatch 4, but the microbatches are 0..4"
    assert only.notes == ("at rank 0, P = 4, M = 4", "likewise on 3 other ranks: 1 to 3")


# ---- claims -----------------------------------------------------------------------------------


def claims_of(checks: str, costs: Costs | None = None, P: int = 2, M: int = 3):
    text = schedule_of("for m in 0..M { F(r, m) } for m in 0..M { B(r, m) }")[:-1] + checks + "}"
    instance = run(text, P, M)
    stage_costs = (costs or Costs()).of_stages(P, instance.order.stages)
    found = figures(simulate_order(instance.order, stage_costs), stage_costs)
    return evaluate_claims(instance, found, stage_costs)


def test_claims() -> None:
    """GPipe at P = 2, M = 3, F = I = W = 1: makespan 12, busy 9 a rank, 3 in flight, 6 messages."""
    results = claims_of(
        """
        check makespan == 12 and longest_stage == 12 - 2 * 1 or longest_stage == 12
        check bubble   ==   3   # a comment
            when    uniform
        check lower_bound == 9 and bubble_rate == 1 / 4 and messages == 6
        check busy(r) == 9 and bubble(r) == 3 and busy(0) == busy(P - 1)
        check peak_activations(r) < 3
        check peak_activations(r) == 3 when r > 0
        check T.F + T.I + T.W == 3 and T.B == 2 and T.F(0) == T.F(1) and T.B(1) == 2
        check makespan == 0 when M > 3
        check sum([busy(k) for k in 0..P]) == 18
        check true
        check not makespan == 12
        """
    )
    assert [result.holds for result in results] == [
        *(True, True, True, True, False, True, True, None, True, True, False)
    ]
    assert results[1].text == "bubble == 3 when uniform"
    assert results[1].found == "bubble is 3"
    assert results[4].found == "on rank 0: peak_activations(r) is 3"
    assert results[7].reason == "not the case here: M > 3"
    assert results[10].found == "makespan is 12"


def test_costs_without_a_stage_need_uniform_ones() -> None:
    (bare, guarded, by_stage) = claims_of(
        "check T.F == 1  check T.F == 1 when uniform  check T.F(0) == 1",
        Costs(comm=values.Fraction(1)),
    )
    assert bare.holds is None
    assert bare.reason == "`T.F` needs stages that are alike (uniform)"
    assert guarded.holds is None
    assert by_stage.holds is True


def test_a_claim_that_cannot_be_computed_is_an_error() -> None:
    with pytest.raises(DiagnosticError, match="E205"):
        claims_of("check makespan / 0 == 1")
    with pytest.raises(DiagnosticError, match="E206"):
        claims_of("check busy(P) == 1")
    with pytest.raises(DiagnosticError, match="E204"):
        claims_of("check makespan")


def test_names_of_the_schedule_come_before_figures() -> None:
    (result,) = claims_of("let makespan = 5 let r = 1 check makespan == 5 and r == 1")
    assert result.holds is True


def test_every_code_in_the_tree_has_a_page() -> None:
    import re
    from pathlib import Path

    import schedc

    root = Path(schedc.__file__).parent.parent
    used: set[str] = set()
    for folder in ("schedc", "runtime", "visualize"):
        for path in (root / folder).rglob("*.py"):
            if path.name != "catalogue.py":
                used |= set(re.findall(r'"(E\d{3})"', path.read_text(encoding="utf-8")))
    assert used - CATALOGUE.keys() == set()
    assert all(page.title and page.explanation for page in CATALOGUE.values())


def test_interleaved_with_fixed_rounds_deadlocks() -> None:
    """docs/language.md: groups of four at P = 4, M = 5, V = 3 make a cycle, which is printed."""
    text = str(bundled().schedule("interleaved").span.source.text)
    for old, new in [
        ("for g in 0..rounds, v", "for g in 0..M step 4, v"),
        ("ceil(g * M / rounds) .. ceil((g + 1) * M / rounds)", "g .. min(g + 4, M)"),
        ("let first = ceil(M / rounds)", "let first = 4"),
    ]:
        assert old in text
        text = text.replace(old, new)
    order = run(text, P=4, M=5, V=3).order
    with pytest.raises(DiagnosticError, match="E401"):
        verify_order(order)
