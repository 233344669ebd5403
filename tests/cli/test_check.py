"""``schedc check``: its JSON, its costs and settings, files of several schedules."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.terminal import Terminal, schedc
from tests.driver.plans import BLOCKED, PLAN, plan_with

__all__ = ["schedc"]

BOASTING = """\
schedule boasting {
    place stage s on rank s
    order on rank r { for m in 0..M { F(r, m) } for m in 0..M { B(r, m) } }
    check makespan == 1
}
"""

PLAIN = BOASTING.replace("boasting", "plain").replace("    check makespan == 1\n", "")


def checked(schedc: Terminal, *arguments: object) -> dict[str, object]:
    """What ``check --json`` prints; exit status 0."""
    found = schedc("check", "--json", *arguments)
    assert found.code == 0, found.shown
    return json.loads(found.out)


def test_json_of_zb_h1(schedc: Terminal) -> None:
    """P = 4, M = 8, F = I = W = 1: 3 M + P - 1 (Qi et al., 2024); the keys of architecture.md."""
    found = checked(schedc, "zb_h1")
    checks = found.pop("checks")
    assert found == {
        "schedule": "zb_h1",
        "P": 4,
        "M": 8,
        "S": 4,
        "costs": {"F": 1, "I": 1, "W": 1, "comm": 0},
        "makespan": 27.0,
        "longest_stage": 27.0,
        "lower_bound": 24.0,
        "bubble": 3.0,
        "bubble_rate": 3 / 27,
        "bubble_rate_longest_stage": 3 / 27,
        # Rank r runs P - r forwards before its first I; each I frees a half, as does each W, and
        # W follows I by r microbatches: P - r whole ones less what W is behind with.
        "peak_activations": [4.0, 3.5, 3.0, 2.5],
        "messages": 2 * 3 * 8,
        "deadlock_free": True,
        "notes": [],
    }
    assert [(c["text"], c["holds"]) for c in checks] == [
        ("peak_activations(r) <= P", True),
        (
            "bubble == (P - 1) * (T.F + T.I - T.W) "
            "when uniform and M >= P and T.F == T.I and T.I == T.W",
            True,
        ),
    ]


@pytest.mark.parametrize(
    ("schedule", "P", "M", "makespan"),
    [(s, *v) for s in ("gpipe", "one_f_one_b")
     for v in ((2, 1, 6), (2, 3, 12), (4, 2, 15), (4, 4, 21), (4, 8, 33), (3, 5, 21))]
    + [("interleaved", 4, 8, 3 * 8 + 3 * 3 / 2), ("zb_h1", 2, 5, 3 * 5 + 1)],
)  # fmt: skip
def test_makespans_of_issue_1(
    schedc: Terminal, schedule: str, P: int, M: int, makespan: float
) -> None:
    found = checked(schedc, schedule, "--set", f"P={P}", "--set", f"M={M}", "--cost", "F=1,B=2")
    assert found["makespan"] == makespan


@pytest.mark.parametrize(
    ("costs", "printed", "makespan"),
    [
        # GPipe, P = 4, M = 8: (M + P - 1) * (F + I + W) + 2 * (P - 1) * comm = 11 * … + 6 * comm.
        ("B=2", {"F": 1, "I": 1, "W": 1, "comm": 0}, 33),
        ("B=3", {"F": 1, "I": 1.5, "W": 1.5, "comm": 0}, 44),
        ("F=0.1,I=0.2,W=0.3", {"F": 0.1, "I": 0.2, "W": 0.3, "comm": 0}, 6.6),
        ("F=1/3, B=2/3", {"F": 1 / 3, "I": 1 / 3, "W": 1 / 3, "comm": 0}, 11),
        ("comm=0.5", {"F": 1, "I": 1, "W": 1, "comm": 0.5}, 36),
        ("F=0,comm=1.25", {"F": 0, "I": 1, "W": 1, "comm": 1.25}, 29.5),
        ("W=1000000", {"F": 1, "I": 1, "W": 1000000, "comm": 0}, 11 * 1000002),
        ("", {"F": 1, "I": 1, "W": 1, "comm": 0}, 33),
    ],
)
def test_costs(schedc: Terminal, costs: str, printed: dict[str, float], makespan: float) -> None:
    found = checked(schedc, "gpipe", "--cost", costs)
    assert found["costs"] == printed
    assert found["makespan"] == makespan


def test_decimal_costs_are_exact(schedc: Terminal) -> None:
    """GPipe claims bubble == (P - 1) * (T.F + T.B), which rounding would break."""
    found = checked(schedc, "gpipe", "--cost", "F=0.1,I=0.2,W=0.7", "--set", "P=7")
    assert [c["holds"] for c in found["checks"]] == [True, True]  # pyright: ignore


def test_memory_shares(schedc: Terminal) -> None:
    """Where I frees all, rank r of ZB-H1 holds P - r microbatches; where W does, always P."""
    assert checked(schedc, "zb_h1", "--cost", "mem_I=1")["peak_activations"] == [4, 3, 2, 1]
    assert checked(schedc, "zb_h1", "--cost", "mem_I=0")["peak_activations"] == [4, 4, 4, 4]


def test_claims_that_do_not_apply(schedc: Terminal) -> None:
    found = checked(schedc, "gpipe", "--cost", "comm=1")
    peak, bubble = found["checks"]  # pyright: ignore
    assert (peak["holds"], peak["reason"]) == (True, None)
    assert bubble["holds"] is None
    assert "uniform" in bubble["reason"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("F=1,F=2", ["'F' is given twice"]),
        ("G=1", ["no cost 'G'", "F, B, I, W, comm, mem_I"]),
        ("com=1", ["no cost 'com'", "did you mean 'comm'?"]),
        ("F", ["'F': a cost is a number"]),
        ("F=", ["a cost is a number"]),
        ("F=x", ["'F=x': a cost is a number, 0 or more"]),
        ("F=-1", ["a cost is a number, 0 or more"]),
        ("F=1e3", ["a cost is a number"]),
        ("F=inf", ["a cost is a number"]),
        ("F=1/0", ["a cost is a number"]),
        ("F=１", ["a cost is a number"]),
        ("F=" + "9" * 5000, ["a cost is a number"]),
        ("B=2,W=1", ["give B, or I and W, not both"]),
        ("mem_I=1.5", ["mem_I is a share: from 0 to 1"]),
        ("=1", ["no cost ''"]),
    ],
)
def test_wrong_costs(schedc: Terminal, value: str, words: list[str]) -> None:
    found = schedc("check", "gpipe", "--cost", value)
    assert found.code == 2
    assert "--cost" in found.err
    for word in words:
        assert word in found.err


@pytest.mark.parametrize("value", ["F=0." + "0" * 30 + "1", "comm=" + "9" * 30])
def test_costs_beyond_64_bits(schedc: Terminal, value: str) -> None:
    found = schedc("check", "gpipe", "--cost", value)
    assert found.code == 1
    assert "error[E308]" in found.err


@pytest.mark.parametrize(
    ("settings", "code", "words"),
    [
        (["P=2", "P=3"], 2, ["'P' is set twice"]),
        (["P"], 2, ["'P' is not NAME=VALUE"]),
        (["=2"], 2, ["is not NAME=VALUE"]),
        (["P="], 2, ["is not NAME=VALUE"]),
        (["K=2"], 1, ["error[E216]", "--set:1:1", "no parameter `K`", "its parameters are `V`"]),
        (["VV=2"], 1, ["error[E216]", "did you mean `V`?"]),
        (["V=2 +"], 1, ["--set:1", "error[E105]"]),
        (["V=]"], 1, ["error[E102]", "--set:1:3"]),
        (["P=0"], 1, ["error[E217]", "P = 0"]),
        (["P=100000000"], 1, ["error[E217]", "P = 100000000", "65536"]),
        (["P=" + "9" * 60], 1, ["error[E217]"]),
        (["M=1000000", "P=64"], 1, ["error[E209]"]),
        (["S=4"], 1, ["error[E207]", "`stages`"]),
        (["V=1 / 2"], 1, ["error[E204]", "interleaved.sched:8:", "V = 1/2"]),
        (["V=[true, false]"], 1, ["error[E204]"]),
    ],
    ids=str,
)
def test_wrong_settings(schedc: Terminal, settings: list[str], code: int, words: list[str]) -> None:
    arguments = [part for setting in settings for part in ("--set", setting)]
    found = schedc("check", "interleaved", *arguments)
    assert found.code == code, found.shown
    for word in words:
        assert word in found.err


def test_text_for_people(schedc: Terminal) -> None:
    found = schedc("check", "zb_h1")
    assert found.code == 0
    assert "zb_h1   P = 4, M = 8, S = 4" in found.out
    assert "makespan 27, bubble 3 (11.1%)" in found.out
    assert "48 messages; complete and free of deadlock: proved" in found.out
    assert found.out.count("check holds:") == 2
    assert not found.err


def test_titles_are_printed_as_they_are(schedc: Terminal, tmp_path: Path) -> None:
    """A value in brackets is not markup."""
    text = PLAIN.replace("plain", "plain(K = [true, false])")
    (tmp_path / "a.sched").write_text(text)
    found = schedc("check", tmp_path / "a.sched")
    assert found.code == 0
    assert "plain(K=[true, false])   P = 4" in found.out


# ---- files of several ---------------------------------------------------------------------------


def test_all_of_a_file_is_checked(schedc: Terminal, tmp_path: Path) -> None:
    path = tmp_path / "all.sched"
    path.write_text(PLAIN + PLAIN.replace("plain", "other") + PLAN)
    found = schedc("check", path)
    assert found.code == 0, found.shown
    assert [title in found.out for title in ("plain   P", "other   P", "p   zb_h1 on")] == [
        True
    ] * 3
    documents = checked(schedc, path)
    assert [d.get("plan", d["schedule"]) for d in documents] == ["plain", "other", "p"]  # pyright: ignore
    assert checked(schedc, f"{path}:other")["schedule"] == "other"


def test_mistakes_of_all_of_a_file_come_together(schedc: Terminal, tmp_path: Path) -> None:
    path = tmp_path / "all.sched"
    path.write_text(BOASTING + PLAIN + BLOCKED + plan_with(layers='"E t*4 | t H"'))
    found = schedc("check", path)
    assert found.code == 1
    assert "plain   P = 4" in found.out
    for code in ("E701", "E401", "E801"):
        assert f"error[{code}]" in found.err
    found = schedc("check", path, "--json")
    assert found.code == 1
    assert [d["schedule"] for d in json.loads(found.out)] == ["boasting", "plain"]


def test_a_false_claim_is_printed_with_what_is_known(schedc: Terminal, tmp_path: Path) -> None:
    path = tmp_path / "a.sched"
    path.write_text(BOASTING)
    found = schedc("check", path)
    assert found.code == 1
    assert "check FALSE: makespan == 1" in found.out
    assert "error[E701]" in found.err
    assert f"{path}:4:5" in found.err
    assert "makespan is 33" in found.err
    found = schedc("check", path, "--json")
    assert found.code == 1
    document = json.loads(found.out)
    assert document["makespan"] == 33
    assert document["checks"] == [{"text": "makespan == 1", "holds": False, "reason": None}]


def test_settings_need_one_target(schedc: Terminal, tmp_path: Path) -> None:
    path = tmp_path / "all.sched"
    path.write_text(PLAIN + PLAIN.replace("plain", "other"))
    found = schedc("check", path, "--set", "P=2")
    assert found.code == 2
    assert "plain, other" in found.err
    assert checked(schedc, f"{path}:plain", "--set", "P=2")["P"] == 2


# ---- plans --------------------------------------------------------------------------------------


def test_json_of_a_plan(schedc: Terminal, tmp_path: Path) -> None:
    (tmp_path / "p.sched").write_text(PLAN)
    found = checked(schedc, tmp_path / "p.sched", "--set", "dp=1")
    sizes = {k: found[k] for k in ("plan", "schedule", "P", "M", "S", "deadlock_free")}
    assert sizes == {
        "plan": "p", "schedule": "zb_h1", "P": 2, "M": 8, "S": 2, "deadlock_free": True,
    }  # fmt: skip
    assert found["mesh"] == {"dp": 1, "pp": 2, "cp": 1, "tp": 1}
    assert found["stages"] == [
        ["embedding", "layers.0", "layers.1"], ["layers.2", "layers.3", "head"],
    ]  # fmt: skip
    assert found["messages"] == 2 * 8
    assert len(found["peak_bytes"]) == len(found["busy"]) == len(found["instructions"]) == 2  # pyright: ignore
    assert "FLOPs" in str(found["notes"])


def test_costs_of_a_plan_are_its_own(schedc: Terminal, tmp_path: Path) -> None:
    path = tmp_path / "p.sched"
    path.write_text(PLAN)
    for command in ("check", "simulate", "viz"):
        found = schedc(command, path, "--cost", "F=2")
        assert found.code == 2
        assert "--cost prices a bare schedule" in found.err
