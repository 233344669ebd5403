"""PyTorch's schedule CSV in and out, against torch itself."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from torch.distributed.pipelining.schedules import (
    _Action,
    _add_send_recv,
    _simulate_comms_compute,
)

from schedc.diagnostics import DiagnosticError
from schedc.driver.exchange import export_torch_csv, import_torch_csv, read_verified_csv
from schedc.exchange.torch_csv import DERIVED, read_torch_csv, write_torch_csv
from schedc.exchange.torch_messages import verify_torch_messages
from schedc.ir.cost import Costs
from schedc.ir.order import SPAN, Order
from schedc.ir.text import order_digest
from schedc.ir.verify import verify_order
from schedc.sema.library import bundled, load_text
from schedc.sema.schedule import instantiate

FILES = Path(__file__).parent.parent / "data" / "torch_csv"
GOOD = sorted(path.name for path in FILES.glob("*_p2_*.csv"))
SIZES = [(1, 2), (2, 4), (3, 7), (4, 8)]


def same(order: Order, other: Order) -> bool:
    tables = zip(order.tables, other.tables, strict=True)
    return order.pairs == other.pairs and all(
        np.array_equal(a[:, :SPAN], b[:, :SPAN]) for a, b in tables
    )


@pytest.mark.parametrize("name", GOOD)
def test_torchs_own_files_come_in(name: str) -> None:
    text, schedule = import_torch_csv(FILES / name)
    library = load_text("imported.sched", text)
    (only,) = library.local_schedules
    order = schedule.order
    back = instantiate(library, only, order.ranks, order.microbatches, {}).order
    assert same(back, order)
    assert back.rank_of == order.rank_of
    with pytest.raises(DiagnosticError, match="this order is for P = 2, M = "):
        instantiate(library, only, 2, order.microbatches + 1, {})
    assert schedule.communicates == (".comms." in name)
    assert schedule.derived == (
        ("UNSHARD", "REDUCE_GRAD", "RESHARD") if schedule.communicates else ()
    )
    other = name.replace(".comms.", ".compute.")
    one = read_verified_csv(FILES / other).order
    # Torch's lowering takes the first slot of DualPipeV's last rank apart; all else is the same.
    assert same(one, order)


@pytest.mark.parametrize(("name", "ours"), [("1f1b", "one_f_one_b"), ("DualPipeV", "dualpipev")])
def test_what_both_know_is_the_same_order(name: str, ours: str) -> None:
    theirs = read_verified_csv(FILES / f"{name}_p2_m4.compute.csv").order
    assert same(theirs, instantiate(bundled(), ours, 2, 4, {}).order)


def test_a_circular_wait_is_refused() -> None:
    """A21: torch loads this file and hangs."""
    with pytest.raises(DiagnosticError) as caught:
        read_verified_csv(FILES / "bad_circular_wait.comms.csv")
    (only,) = caught.value.diagnostics
    assert only.code == "E401"
    assert only.span is not None
    assert (only.span.line, only.span.column) == (1, 23)


def test_swapped_receives_are_refused() -> None:
    """Torch loads this file and trains on wrong gradients."""
    with pytest.raises(DiagnosticError) as caught:
        read_verified_csv(FILES / "bad_swapped_recv.comms.csv")
    (only,) = caught.value.diagnostics
    assert only.code == "E509"
    assert "0RECV_B1 where rank 1 comes to 1SEND_B0" in only.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0F0,0B0garbage", r"row 1 \(rank 0\), cell 2: `0B0garbage` is no action"),
        ("0F0,0B0,1G0", "cell 3: `1G0` is no action"),
        ("0F0,0B", "cell 2: `0B`: B needs a microbatch"),
        ("0F0,0B0,0UNSHARD1", "UNSHARD is of a whole stage and has no microbatch"),
        ("0F0,(0F1;0B0)OVERLAP", "`\\(0F1;0B0\\)OVERLAP` is no action"),
        ("0F0,(0F1)OVERLAP_F_B", "is no action"),
        ("0F0,(0F1;0SEND_F0)OVERLAP_F_B", "overlaps something that is no F, B, I or W"),
        ("-1F0", "is no action"),
        ("0F0 0B0", "is no action"),
        ("0f0,0B0", "is no action"),
        ("", "the file has no operation"),
        ("\n\n", "the file has no operation"),
        ("0UNSHARD", "the file has no operation"),
        ("0F0,2F0,0B0,2B0", "no row has an operation of stage 1"),
    ],
)
def test_what_is_no_schedule_is_refused(text: str, message: str) -> None:
    with pytest.raises(DiagnosticError, match=message) as caught:
        read_torch_csv(text, "x.csv", "x")
    assert all(diagnostic.code == "E310" for diagnostic in caught.value.diagnostics)


def test_line_ends_blanks_and_idle_cells() -> None:
    plain = read_torch_csv("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", "x", "x").order
    other = read_torch_csv(" 0F0 ,0F1,,,0B0,0B1\r\n,1F0,1B0,,1F1,1B1\r\n\r\n", "x", "x").order
    assert same(plain, other)


@pytest.mark.parametrize("name", bundled().schedules)
@pytest.mark.parametrize(("P", "M"), SIZES)
def test_out_and_in_again(name: str, P: int, M: int, tmp_path: Path) -> None:
    settings = {"P": str(P), "M": str(max(M, 2 * P) if name == "dualpipev" else M)}
    order = None
    for messages in (False, True):
        text, order = export_torch_csv(bundled(), name, settings, Costs(), messages)
        path = tmp_path / f"{name}.csv"
        path.write_text(text)
        _, schedule = import_torch_csv(path)
        expected = order.one_by_one() if messages else order
        assert order_digest(schedule.order) == order_digest(expected)
        assert schedule.communicates == (messages and P > 1)
        assert_torch_finishes(text, order, messages)


def assert_torch_finishes(text: str, order: Order, messages: bool) -> None:
    """Torch's own simulator comes to an end; it raises where an action never gets its turn."""
    rows: dict[int, list] = {}
    for rank, row in enumerate(text.splitlines()):
        actions = [_Action.from_str(cell) for cell in row.split(",")]
        flat = (part for action in actions for part in action.sub_actions or (action,))
        rows[rank] = [a for a in flat if a.computation_type.value not in DERIVED]
    rank_of = order.rank_of.__getitem__
    if not messages:
        rows = _add_send_recv(rows, rank_of, order.stages)
    _simulate_comms_compute(rows, rank_of, order.stages)


def test_a_slot_that_torch_has_no_word_for() -> None:
    text = (
        "schedule s { place stage s on rank s order on rank r { F(0, 0) I(0, 0) F(0, 1) "
        "overlap { W(0, 0) | I(0, 1) } W(0, 1) } }"
    )
    order = instantiate(load_text("s.sched", text), "s", 1, 2, {}).order
    with pytest.raises(DiagnosticError, match=r"no word for W.* with I"):
        write_torch_csv(order)


@pytest.mark.parametrize("seed", range(120))
def test_edited_messages_are_refused(seed: int) -> None:
    """Drop, repeat or exchange messages: refused, unless two ranks still post in one order."""
    pick = random.Random(seed)
    name = pick.choice([name for name in GOOD if ".comms." in name])
    rows = [line.split(",") for line in (FILES / name).read_text().splitlines()]
    row = pick.choice(rows)
    at = [i for i, cell in enumerate(row) if "SEND" in cell or "RECV" in cell]
    edit = pick.choice(("drop", "repeat", "exchange", "move"))
    where = pick.choice(at)
    if edit == "drop":
        del row[where]
    elif edit == "repeat":
        row.insert(pick.randrange(len(row)), row[where])
    elif edit == "exchange":
        other = pick.choice([i for i in at if i != where])
        row[where], row[other] = row[other], row[where]
    else:
        row.insert(pick.randrange(len(row)), row.pop(where))
    text = "\n".join(map(",".join, rows))
    refused = _refused(text)
    assert refused in (None, "E509", "E503")
    if edit in ("drop", "repeat"):
        assert refused is not None
        return
    if refused is None:  # It was a harmless move: both ends still agree, and all is in its place.
        assert_torch_finishes(text, read_torch_csv(text, "x", "x").order, messages=True)


def _refused(text: str) -> str | None:
    schedule = read_torch_csv(text, "x.csv", "x")
    verify_order(schedule.order)
    try:
        verify_torch_messages(schedule)
    except DiagnosticError as error:
        return error.diagnostics[0].code
    return None


def test_a_send_that_stands_too_late() -> None:
    """The operations alone are fine; but rank 0 waits for what comes of what it holds back."""
    rows = ["0F0,0RECV_B0,0B0,0SEND_F0", "1RECV_F0,1F0,1B0,1SEND_B0"]
    assert _refused("\n".join(rows)) == "E503"
    rows[0] = "0F0,0SEND_F0,0RECV_B0,0B0"
    assert _refused("\n".join(rows)) is None


def test_both_ranks_send_first() -> None:
    """A21, pytorch#172668: each rank's send would wait for a receive that stands behind its own."""
    rows = [
        "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1",
        "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1",
    ]
    assert _refused("\n".join(rows)) == "E503"


@pytest.mark.gloo
@pytest.mark.parametrize(
    ("name", "form"),
    [("zb_v", "compute_only"), ("zb_v", "compute_comms"), ("zb_1p", "compute_comms"),
     ("dualpipev", "compute_only")],
)  # fmt: skip
def test_torch_runs_it_with_the_same_gradients(name: str, form: str, tmp_path: Path) -> None:
    settings = {"P": "2", "M": "5"}
    text, order = export_torch_csv(bundled(), name, settings, Costs(), form == "compute_comms")
    (tmp_path / "s.csv").write_text(text)
    script = str(Path(__file__).with_name("torch_run.py"))
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *(script, str(tmp_path / "s.csv"), form, str(order.stages), "5"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("difference") == 2
