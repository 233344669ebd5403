"""``schedc diff``, ``import`` and ``export`` as a person runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.terminal import Terminal, schedc

__all__ = ["schedc"]

FILES = Path(__file__).parent.parent / "data" / "torch_csv"


def test_equal_and_different(schedc: Terminal) -> None:
    found = schedc("diff", "one_f_one_b", "one_f_one_b")
    assert found.code == 0
    assert "the orders are equal" in found.out
    found = schedc("diff", "one_f_one_b", "zb_h1", "--set", "P=2", "--set", "M=3")
    assert found.code == 1
    assert "rank 0 parts at slot 2: B(0, 0) against I(0, 0)" in found.out
    assert "rank 1 parts at slot 1: B(1, 0) against I(1, 0)" in found.out


def test_figures_at_the_same_costs(schedc: Terminal) -> None:
    """1F1B and ZB-H1 at P = 4, M = 8, F = I = W = 2: 66 and 54."""
    found = schedc("diff", "one_f_one_b", "zb_h1", "--cost", "F=2,I=2,W=2", "--json")
    assert found.code == 1
    document = json.loads(found.out)
    assert document["first"]["makespan"] == 66
    assert document["second"]["makespan"] == 54
    assert document["first"]["messages"] == document["second"]["messages"] == 48
    assert document["same_placement"]
    assert not document["equal"]
    assert [d["rank"] for d in document["differences"]] == [0, 1, 2, 3]


def test_a_csv_brings_its_own_sizes(schedc: Terminal) -> None:
    csv = str(FILES / "DualPipeV_p2_m4.compute.csv")
    assert schedc("diff", csv, "dualpipev").code == 0
    found = schedc("diff", csv, "dualpipev", "--set", "M=5")
    assert found.code == 1
    assert "has M = 4, and is compared at M = 5" in found.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("one_f_one_b", "llama_tiny_zb"), "`llama_tiny_zb` is a plan"),
        (("one_f_one_b", "zb_1p", "--set", "V=2"), "neither schedule has a parameter `V`"),
        (("one_f_one_b", "nothing.csv"), "cannot read nothing.csv"),
    ],
)
def test_what_cannot_be_compared(schedc: Terminal, arguments: tuple[str, ...], words: str) -> None:
    found = schedc("diff", *arguments)
    assert found.code == 1
    assert words in found.err


def test_in_and_out(schedc: Terminal, tmp_path: Path) -> None:
    sched, csv = tmp_path / "mine.sched", tmp_path / "mine.csv"
    found = schedc("import", str(FILES / "ZBVZeroBubble_p2_m4.comms.csv"), "-o", str(sched))
    assert found.code == 0
    assert "its messages are right" in found.err
    assert "left out: UNSHARD, REDUCE_GRAD, RESHARD" in found.err
    sizes = ("--set", "P=2", "--set", "M=4")
    assert schedc("check", str(sched), *sizes).code == 0
    found = schedc("export", str(sched), "--to", "torch-csv", "-o", str(csv), *sizes)
    assert found.code == 0
    theirs = (FILES / "ZBVZeroBubble_p2_m4.compute.csv").read_text()
    assert rows_of(csv.read_text()) == rows_of(theirs)
    found = schedc("export", "llama_tiny_zb", "--to", "torch-csv")
    assert found.code == 1
    assert "is a plan" in found.err


def rows_of(text: str) -> list[list[str]]:
    """The cells of each row, but for idle ones."""
    return [[cell for cell in row.split(",") if cell] for row in text.splitlines()]
