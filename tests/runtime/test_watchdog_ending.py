"""Whom the judge kills: only processes that are still there."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from schedc.ir.mesh import Mesh
from schedc.runtime import verdict, watchdog
from schedc.runtime.verdict import Describer, Report, Status, process_state
from schedc.runtime.watchdog import Identity, Watchdog


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
    dog = Watchdog(store, me, 1.0, Describer((), Mesh(pp=5), {}))
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
