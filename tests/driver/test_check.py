"""Checking bare schedules: sizes, figures, and the proof under any costs."""

from __future__ import annotations

from fractions import Fraction

import pytest

from schedc.diagnostics import DiagnosticError
from schedc.driver.check import check_schedule, evaluate_schedule, refuse_false_claims
from schedc.ir.cost import Costs
from schedc.sema.library import bundled, load_text

SCHEDULES = ("gpipe", "one_f_one_b", "interleaved", "zb_h1")


def test_sizes() -> None:
    """P = 4 and M = 8 unless set (language.md, Files)."""
    order = evaluate_schedule(bundled(), "interleaved", {}).order
    assert (order.ranks, order.microbatches, order.stages) == (4, 8, 8)
    order = evaluate_schedule(bundled(), "interleaved", {"P": "2", "M": "3 * 2", "V": "3"}).order
    assert (order.ranks, order.microbatches, order.stages) == (2, 6, 6)


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"S": "4"}, "E207"),
        ({"P": "two"}, "E201"),
        ({"P": '"2"'}, "E207"),
        ({"P": "1 / 2"}, "E207"),
        ({"M": "true"}, "E207"),
        ({"M": "0"}, "E217"),
        ({"P": "-1"}, "E217"),
        ({"P": "1000000"}, "E217"),
        ({"M": "10 ** 30"}, "E217"),
        ({"V": "0"}, "E207"),
        ({"K": "1"}, "E216"),
        ({"P": "4 +"}, "E105"),
    ],
    ids=str,
)
def test_wrong_sizes(settings: dict[str, str], code: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        evaluate_schedule(bundled(), "interleaved", settings)
    assert [diagnostic.code for diagnostic in caught.value.diagnostics] == [code]


ZERO = Fraction(0)
FREE = [Costs(F=ZERO), Costs(W=ZERO), Costs(I=ZERO, W=ZERO), Costs(F=ZERO, I=ZERO, W=ZERO)]


@pytest.mark.parametrize("costs", FREE, ids=lambda c: f"F={c.F} I={c.I} W={c.W}")
@pytest.mark.parametrize("name", SCHEDULES)
def test_operations_may_cost_nothing(name: str, costs: Costs) -> None:
    """The proof does not depend on costs; the busiest rank does M of everything of its stages."""
    report = check_schedule(bundled(), name, {}, costs)
    assert report.to_json()["deadlock_free"] is True
    assert report.figures.lower_bound == 8 * (costs.F + costs.I + costs.W)


def test_a_false_claim_is_reported_and_refused_on_demand() -> None:
    text = (
        "schedule s { place stage s on rank s\n"
        "order on rank r { for m in 0..M { F(r, m) } for m in 0..M { B(r, m) } }\n"
        "check makespan == 1\ncheck bubble == 9\ncheck bubble == 0 when M > 100 }"
    )
    report = check_schedule(load_text("s.sched", text), "s", {}, Costs())
    assert [claim.holds for claim in report.claims] == [False, True, None]
    with pytest.raises(DiagnosticError) as caught:
        refuse_false_claims(report)
    (diagnostic,) = caught.value.diagnostics
    assert (diagnostic.code, diagnostic.span and diagnostic.span.line) == ("E701", 3)
    assert diagnostic.notes == ("makespan is 33",)  # 3 * (M + P - 1)


def test_the_critical_path_is_as_long_as_the_makespan() -> None:
    """GPipe with F = 1, B = 2, no latency: its operations, end to end, take 33."""
    report = check_schedule(bundled(), "gpipe", {}, Costs())
    path = report.critical_path()
    assert sum({"F": 1, "B": 2}[op] for op, _, _ in path) == report.figures.makespan == 33
    assert path[0] == ("F", 0, 0)
    assert path[-1][:2] == ("B", 0)
