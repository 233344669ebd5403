"""Whom the judge kills: only processes that are still there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from schedc.runtime import verdict, watchdog
from schedc.runtime.verdict import EVALUATES, Describer, Report, Status, process_state
from schedc.runtime.watchdog import Identity, Watchdog
from tests.runtime.builds import Shape, artifact_of


class Silence:
    """A store in which nobody says anything."""

    asked = False

    def set(self, key: str, value: str) -> None:
        return None

    def get(self, key: str) -> bytes:
        return b""

    def check(self, keys: list[str]) -> bool:
        self.asked = True
        return False

    def add(self, key: str, value: int) -> int:
        return value


def test_only_living_processes_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1 has gone, 2 is a zombie, 3 lives; 4 was dead, then another process got its number."""
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    gone, zombie = (subprocess.Popen([sys.executable, "-c", ""]) for _ in range(2))
    gone.wait()
    while process_state(zombie.pid) != "Z":
        time.sleep(0.01)
    living, stranger = subprocess.Popen(sleep), subprocess.Popen(sleep)
    pids = [gone.pid, zombie.pid, living.pid, stranger.pid]
    store, killed = Silence(), list[int]()

    def state_of(pid: int) -> str:
        return "" if pid == stranger.pid and not store.asked else process_state(pid)

    monkeypatch.setattr(watchdog, "process_state", state_of)
    monkeypatch.setattr(verdict, "process_state", state_of)
    monkeypatch.setattr(watchdog, "_kill", killed.append)
    me = Identity(0, 5, "here", os.getpid())
    dog = Watchdog(store, me, 1.0)
    reports: list[Report] = []
    for rank, pid in enumerate(pids, 1):
        file = tmp_path / str(rank)
        file.touch()
        status = Status("here", pid, str(file), 1, "trains", 0, 0, 9.0, "")
        reports.append(Report(rank, status, False, "here"))
    try:
        dog._end_others(reports)  # pyright: ignore[reportPrivateUsage]
    finally:
        dog.shared.remove()
        for process in (zombie, living, stranger):
            process.kill()
            process.wait()
    assert killed == [living.pid]
    assert list(tmp_path.iterdir()) == []


ALONE = """
import os, time
from torch.distributed import TCPStore
from schedc.runtime import watchdog
watchdog.ARRIVAL, watchdog.PATIENCE = {arrival}, {patience}
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
dog = watchdog.Watchdog(store, watchdog.Identity(0, {world}, "here", os.getpid()), 1.0)
dog.start()
{then}
"""


def alone(world: int, then: str, arrival: float = 60, patience: float = 60) -> tuple[int, str]:
    """Rank 0 of ``world`` as a process without the others."""
    script = ALONE.format(world=world, then=then, arrival=arrival, patience=patience)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    return done.returncode, done.stderr


def test_a_rank_that_never_comes_up_is_named_and_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "here")
    monkeypatch.setenv("MASTER_PORT", "1")
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    absent = subprocess.Popen(sleep, env={**os.environ, "RANK": "1"})
    others = [
        subprocess.Popen(sleep, env={**os.environ, "RANK": "2"}),
        subprocess.Popen(sleep, env={**os.environ, "RANK": "1", "MASTER_PORT": "2"}),
    ]
    code, said = alone(2, "with dog.waiting(): time.sleep(50)", arrival=1)
    assert code == 1
    assert said == (
        "schedc: rank 1 did not come up\n"
        "all ranks are ended; they were at\n"
        "  rank 0: waits for the others\n"
        "> rank 1: never came up\n"
    )
    assert absent.wait(timeout=10) == -signal.SIGKILL
    for other in others:
        assert other.poll() is None
        other.kill()
        other.wait()


def test_a_phase_outside_of_steps_that_never_ends_is_named() -> None:
    code, said = alone(1, "dog.enter('reads data and parameters'); time.sleep(50)", patience=1)
    assert code == 1
    assert "schedc: rank 0 has not moved for" in said
    assert "> rank 0: reads data and parameters\n" in said


def test_a_rank_that_waits_for_others_is_never_the_stalled_one() -> None:
    assert alone(1, "with dog.waiting(): time.sleep(3)\ndog.stop()", patience=1) == (0, "")


def test_a_place_in_an_evaluation_is_told_from_its_own_program() -> None:
    artifact = artifact_of(Shape("zb_h1", 2, 3))
    describer = Describer((), artifact.manifest.mesh, {}, artifact.evaluation)
    statuses = [Status("here", os.getpid(), "", 1, EVALUATES, 2, row, 9.0, "") for row in (1, 3)]
    reports = [Report(rank, status, True, "here") for rank, status in enumerate(statuses)]
    text = describer(reports, 0)
    assert "> rank 0 (pp 0): evaluation pass 2, row 1 of 12: load tokens.0 <- m0" in text
    assert "  rank 1 (pp 1): evaluation pass 2, row 3 of 12: wait x.0   from rank 0" in text
    assert not describer.waits(reports[0])
    assert describer.waits(reports[1])
