"""Policies and patterns in the language: their orders, places, parameters; what costs change."""

from __future__ import annotations

from fractions import Fraction

import pytest

from schedc.ir.cost import Costs
from schedc.ir.order import SPAN, Order
from schedc.ir.verify import verify_order
from schedc.sema.library import bundled, load_text
from schedc.sema.schedule import instantiate
from tests.language.programs import run, tasks

STRAIGHT = "place stage s on rank s"
V = "stages 2 * P  place stage s on rank (s if s < P else 2 * P - 1 - s)"
POLICY_1F1B = f"schedule s {{ {STRAIGHT} policy {{ prefer B, F  limit activations <= P - r }} }}"
PATTERN_1F1B = f"""schedule s {{ {STRAIGHT}
    pattern every 2 on rank r {{ F(r) at r  B(r) at 2 * P - 1 - r }} }}"""


def same(order: Order, other: Order) -> bool:
    pairs = zip(order.tables, other.tables, strict=True)
    return all((a[:, :SPAN] == b[:, :SPAN]).all() for a, b in pairs)


@pytest.mark.parametrize("P", range(1, 6))
@pytest.mark.parametrize("M", range(1, 10))
def test_1f1b_as_a_policy_and_as_a_pattern(P: int, M: int) -> None:
    """Backwards first, and no more in flight than ranks below; and the building block of 1F1B."""
    known = instantiate(bundled(), "one_f_one_b", P, M, {}).order
    assert same(run(POLICY_1F1B, P, M).order, known)
    assert same(run(PATTERN_1F1B, P, M).order, known)


@pytest.mark.parametrize(("P", "M"), [(1, 3), (2, 2), (4, 8)])
def test_gpipe_as_a_policy(P: int, M: int) -> None:
    text = f"schedule s {{ {STRAIGHT} policy {{ prefer F, B }} }}"
    assert same(run(text, P, M).order, instantiate(bundled(), "gpipe", P, M, {}).order)


@pytest.mark.parametrize(
    ("said", "order"),
    [  # One rank with two stages: everything is ready as soon as it can be.
        ("prefer B, F  tie deepest stage", "F0.0 F1.0 B1.0 B0.0 F0.1 F1.1 B1.1 B0.1"),
        ("prefer B, F", "F0.0 F1.0 B1.0 B0.0 F0.1 F1.1 B1.1 B0.1"),
        ("prefer B, F  tie shallowest stage", "F0.0 F0.1 F1.0 B1.0 B0.0 F1.1 B1.1 B0.1"),
        ("prefer F, B  tie newest microbatch", "F0.1 F1.1 F0.0 F1.0 B1.1 B0.1 B1.0 B0.0"),
        (
            "prefer F, B  tie shallowest stage, newest microbatch",
            "F0.1 F0.0 F1.1 F1.0 B1.1 B0.1 B1.0 B0.0",
        ),
        (
            "split backward  prefer W, I, F",
            "F0.0 F1.0 I1.0 W1.0 I0.0 W0.0 F0.1 F1.1 I1.1 W1.1 I0.1 W0.1",
        ),
        (
            "split backward  prefer F, I, W  limit activations <= 1",
            "F0.0 F1.0 I1.0 I0.0 F0.1 W1.0 W0.0 F1.1 I1.1 I0.1 W1.1 W0.1",
        ),
    ],
)
def test_what_goes_first(said: str, order: str) -> None:
    text = f"schedule s {{ stages 2  place stage s on rank 0  policy {{ {said} }} }}"
    assert tasks(run(text, P=1, M=2)) == order


def test_a_limit_may_speak_of_the_rank_or_of_a_variable_of_that_name() -> None:
    assert "limit activations <= P - r" in POLICY_1F1B
    shadowed = POLICY_1F1B.replace("policy", "let r = 0 policy")
    last = run(shadowed, P=4, M=8).order.tables[3]
    assert len(last) == 16
    assert same(run(shadowed, P=4, M=8).order, run(POLICY_1F1B.replace("- r", ""), 4, 8).order)


def test_costs_decide_and_an_order_that_is_written_out_stays() -> None:
    cheap, dear = (Costs(W=Fraction(w)) for w in ("1/4", "4"))
    for name in ("zb_1p", "zb_v", "v_half"):
        one, other = (instantiate(bundled(), name, 4, 8, {}, costs) for costs in (cheap, dear))
        assert one.by_costs
        assert not same(one.order, other.order)
        again = one.for_costs(dear.of_stages(4, one.order.stages))
        assert same(again.order, other.order)
        verify_order(again.order)
    written = instantiate(bundled(), "zb_h1", 4, 8, {})
    assert not written.by_costs
    assert written.for_costs(cheap.of_stages(4, 4)) is written


def test_operations_know_their_lines() -> None:
    library = load_text(
        "mine.sched",
        f"""schedule a {{ {STRAIGHT}
            policy {{
                prefer B, F
            }}
        }}
        schedule b {{ {V}
            pattern every 6 on rank r {{
                for (s, i) in [(r, 4 * P - 1 - r), (2 * P - 1 - r, 2 * P + r)] {{
                    F(s) at s
                    I(s) at i
                }}
                W(*) in holes
            }}
        }}""",
    )
    lines = {
        name: {
            (task.op.name, order.span(0, index).line)  # pyright: ignore
            for index, task in enumerate(order.tasks(0))
        }
        for name in ("a", "b")
        for order in (instantiate(library, name, 2, 3, {}).order,)
    }
    assert lines == {"a": {("F", 3), ("B", 3)}, "b": {("F", 9), ("I", 10), ("W", 12)}}
    v_min = instantiate(bundled(), "v_min", 2, 3, {}).order
    assert same(instantiate(library, "b", 2, 3, {}).order, v_min)


def test_weight_gradients_may_have_slots_of_their_own() -> None:
    text = f"""schedule s {{ {STRAIGHT}
        pattern every 3 on rank r {{
            if r == 0 {{ F(0) at 0  I(0) at 4  W(0) at 5 }}
            else {{ let late = 2  F(1) at late  I(1) at 3  W(1) at 4 }}
        }} }}"""
    assert tasks(run(text, P=2, M=2), 1) == "F1.0 I1.0 W1.0 F1.1 I1.1 W1.1"
    assert tasks(run(text, P=2, M=2), 0) == "F0.0 F0.1 I0.0 W0.0 I0.1 W0.1"


def test_an_empty_rank_and_one_microbatch() -> None:
    text = "schedule s { stages 2  place stage s on rank s  policy { prefer B, F } }"
    assert [len(table) for table in run(text, P=3, M=1).order.tables] == [2, 2, 0]
    text = f"schedule s {{ {V} policy {{ prefer B, F  limit activations <= 1  lookahead }} }}"
    assert tasks(run(text, P=1, M=1)) == "F0.0 F1.0 B1.0 B0.0"
