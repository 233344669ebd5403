"""A rank that dies or stalls ends the run, with one message that names it and its place."""

from __future__ import annotations

import re
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from schedc.program.artifact import write_artifact
from tests.runtime.builds import Shape, artifact_of, write_data
from tests.runtime.launching import Finished, Running, start

pytestmark = pytest.mark.gloo

SHAPE = Shape("zb_h1", 2, 4)
TIMEOUT = 6.0
ENDING = 6.0
"""Seconds that torchrun and a loaded machine may take beyond it."""


def started(folder: Path, build: Path) -> Running:
    data = write_data(folder / "data.safetensors", SHAPE.batch, 2)
    return start(
        2, folder, build, "--data", data, "--steps", "1000000", "--timeout", str(TIMEOUT),
        "--log-every", "1000",
    )  # fmt: skip


def check_message(done: Finished, cause: str) -> None:
    assert done.code != 0
    assert done.ours.count("schedc:") == 1, done.err
    assert cause in done.ours
    for rank in (0, 1):
        place = rf"rank {rank} \(pp {rank}\): .*row \d+ of \d+: \w+.*# .*zb_h1\.sched:\d+"
        assert re.search(place, done.ours), done.ours
    assert "Traceback" not in done.ours


@pytest.mark.parametrize(
    ("number", "cause", "seconds"),
    [
        (signal.SIGKILL, "schedc: rank 1 died", ENDING),
        (signal.SIGSTOP, "schedc: rank 1 is stopped", TIMEOUT + ENDING),
    ],
)
def test_a_killed_or_stopped_rank_ends_all(
    number: signal.Signals, cause: str, seconds: float, tmp_path: Path
) -> None:
    write_artifact(artifact_of(SHAPE), tmp_path / "build")
    running = started(tmp_path, tmp_path / "build")
    running.wait_for_step()
    processes = [running.process_of(rank) for rank in (0, 1)]
    running.signal(1, number)
    done = running.finish(timeout=60)
    check_message(done, cause)
    assert re.search(r"> rank 1 \(pp 1\): .*, last seen at step \d+, row", done.ours)
    waits = re.search(r"  rank 0 \(pp 0\): .*", done.ours)
    assert waits is not None
    assert re.search(r"rank 1", waits[0].removeprefix("  rank 0 (pp 0)")), waits[0]
    assert done.seconds < seconds
    for process in processes:
        assert not list(Path("/dev/shm").glob(f"schedc-{process}-*"))


def test_a_rank_stopped_while_it_sets_up_is_named(tmp_path: Path) -> None:
    """Mostly it has been heard of by then; else it is one that did not come up."""
    write_artifact(artifact_of(SHAPE), tmp_path / "build")
    running = started(tmp_path, tmp_path / "build")
    stopped = running.wait_for_process(1)
    while not list(Path("/dev/shm").glob(f"schedc-{stopped}-*")):  # made before the first wait
        time.sleep(0.001)
    running.signal(1, signal.SIGSTOP)
    done = running.finish(timeout=60)
    assert done.code != 0
    end = "\nall ranks are ended; they were at\n"
    assert re.search(rf"schedc: rank 1 (is stopped|did not come up){end}", done.ours), done.err
    assert re.search(r"> rank 1.*: (is stopped, last seen at |never came up)", done.ours)
    if "is stopped" in done.ours:
        assert not list(Path("/dev/shm").glob(f"schedc-{stopped}-*"))


def test_a_rank_stopped_before_anybody_heard_of_it_is_named(tmp_path: Path) -> None:
    write_artifact(artifact_of(SHAPE), tmp_path / "build")
    running = started(tmp_path, tmp_path / "build")
    running.wait_for_process(1)
    running.signal(1, signal.SIGSTOP)
    done = running.finish(timeout=60)
    assert done.code != 0
    assert "schedc: rank 1 did not come up\nall ranks are ended; they were at\n" in done.ours
    assert "  rank 0: waits for the others\n> rank 1: never came up" in done.ours


def test_a_rank_stuck_in_compute_is_named_with_its_instruction(tmp_path: Path) -> None:
    """A44: the graph of W sleeps on rank 1 from its 20th call on; rank 0 only waits for it."""
    artifact = artifact_of(SHAPE)
    source = artifact.graphs["head.W"]
    stuck = source.replace(
        "    args.clear()\n",
        "    args.clear()\n    CALLS.append(1)\n    time.sleep(0 if len(CALLS) < 20 else 1000)\n",
        1,
    ).replace("import torch\n", "import time\n\nimport torch\n\nCALLS = []\n", 1)
    assert stuck != source
    graphs = artifact.graphs | {"head.W": stuck}
    write_artifact(replace(artifact, graphs=graphs), tmp_path / "build")
    running = started(tmp_path, tmp_path / "build")
    running.wait_for_step()
    done = running.finish(timeout=60)
    check_message(done, "schedc: rank 1 has not moved for")
    cause = re.search(r"> rank 1 .*", done.ours)
    assert cause is not None
    assert re.search(r"step 5, row \d+ of \d+: W s1 m3 .*# zb_h1\.sched:\d+", cause[0])
    assert done.seconds < TIMEOUT + ENDING


def test_a_rank_that_fails_is_named_with_what_happened(tmp_path: Path) -> None:
    artifact = artifact_of(SHAPE)
    failing = artifact.graphs["head.W"].replace("    args.clear()\n", "    args.clear(1)\n", 1)
    graphs = artifact.graphs | {"head.W": failing}
    write_artifact(replace(artifact, graphs=graphs), tmp_path / "build")
    done = started(tmp_path, tmp_path / "build").finish(timeout=60)
    assert done.code != 0
    message = done.err[done.err.index("schedc: rank 1 failed") :]
    assert "TypeError" in message
    assert "this is a bug of schedc" in message
    assert re.search(
        r"> rank 1 \(pp 1\): failed, last seen at step 1, row \d+ of \d+: W s1", message
    )
