"""The watchdog: a thread in each process that notices when the run can no longer go on.

Every rank publishes where it is to the store that all share. Whoever notices trouble first (its
own row has not moved for too long, the next rank has not published for as long, its peer is gone,
its own code failed, it was told to end) becomes the judge: it reads where every rank is, names the
one that is the cause, prints that once, and ends everybody. The main thread may be stuck in a
transfer for ever, so processes are ended from here.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, Protocol

from schedc.runtime.position import ROW, STEP, STEPPING, SharedPosition
from schedc.runtime.verdict import (
    WAITING,
    Describer,
    Report,
    State,
    Status,
    children,
    judge,
    process_state,
)

ARRIVAL = 60.0
"""Seconds that a rank has, if the timeout is shorter and nobody stopped it, to come up: importing
torch takes some."""

PATIENCE = 1800.0
"""Seconds that a phase outside of steps has, likewise: reading a checkpoint may take minutes."""


class Store(Protocol):
    """What the watchdog needs of a torch store. Not shared with other threads."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...
    def add(self, key: str, value: int) -> int: ...


@dataclass(frozen=True, slots=True)
class Identity:
    """Which process this is."""

    rank: int
    world: int
    host: str
    pid: int


class Watchdog:
    """Watches one rank."""

    def __init__(
        self,
        store: Store,
        identity: Identity,
        timeout: float,
    ) -> None:
        self.store, self.identity, self.timeout = store, identity, timeout
        self.describer = Describer()
        """To be replaced once the programs are known."""
        self.interval = min(1.0, timeout / 20)
        self.shared = SharedPosition()
        self._phase, self._steps = "starts", False
        self._failure = ""
        self._code = 1
        self._beat = 0
        self._seen: tuple[str, int, int] = ("", 0, 0)
        self._moved = self._heard = time.monotonic()
        self._last_heard = ""
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._thread = threading.Thread(target=self._loop, name="watchdog", daemon=True)

    def start(self) -> None:
        """Start to watch. To be called in the main thread: also takes over SIGTERM and SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        # The C-level handler writes the number to the pipe even while the main thread is stuck.
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._publish()
        self._thread.start()

    @property
    def patience(self) -> float:
        """The age of a stall at which to judge, so that all is over within the timeout."""
        return self.timeout - 4 * self.interval

    def enter(self, phase: str, steps: bool = False) -> None:
        """A phase begins; where it ``steps`` through a program, every instruction is a move."""
        self._phase, self._steps = phase, steps
        self.shared.view[STEPPING] = int(steps)
        self._moved = time.monotonic()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """While the phase only waits for the other ranks: another one is the cause of a stall."""
        phase = self._phase
        self.enter(WAITING)
        yield
        self.enter(phase)

    def fail(self, failure: str, code: int = 1) -> NoReturn:
        """End all ranks because of this one; an empty ``failure`` says that a peer is lost."""
        self._failure, self._code = failure, code
        os.write(self._writer, b"\0")
        while True:
            time.sleep(3600)

    def stop(self) -> None:
        """The rank is done: nothing that happens to it from here on is trouble."""
        self._phase, self._steps = "done", False
        os.write(self._writer, b"\xff")
        self._thread.join()
        self.shared.remove()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)

    def _loop(self) -> None:
        try:
            while True:
                ready, _, _ = select.select([self._reader], [], [], self.interval)
                told = os.read(self._reader, 1)[0] if ready else None
                self._publish()
                if told == 0xFF:
                    return
                if self.store.check(["verdict"]):
                    self._leave()
                if told is not None or self._is_stalled() or self._next_is_silent():
                    self._settle(told)
        except RuntimeError as error:  # the store is gone, and with it whoever hosts it
            print(f"schedc: rank {self.identity.rank} lost the store: {error}", file=sys.stderr)
            os._exit(1)
        except Exception:  # a bug of ours: nobody would watch any more
            traceback.print_exc()
            os._exit(3)

    def _age(self) -> float:
        """Seconds since the row in progress last changed, as far as was seen."""
        now = time.monotonic()
        seen = (self._phase, self.shared.view[STEP], self.shared.view[ROW])
        if seen != self._seen:
            self._seen, self._moved = seen, now
        return now - self._moved

    def _is_stalled(self) -> bool:
        """Whether this rank has not moved for as long as its phase may take."""
        patience = self.patience if self._steps else max(self.patience, PATIENCE)
        return self._phase != WAITING and self._age() > patience

    def _next_is_silent(self) -> bool:
        """Whether the next rank has published nothing new for the timeout: in any phase.

        Each rank listens to one other, so that a stopped process is noticed at any size.
        """
        next_rank = (self.identity.rank + 1) % self.identity.world
        key = f"status/{next_rank}"
        now = time.monotonic()
        heard = self.store.get(key).decode() if self.store.check([key]) else ""
        if heard != self._last_heard or (heard and Status.from_json(heard).phase == "done"):
            self._last_heard, self._heard = heard, now
        if now - self._heard <= self.patience:
            return False
        return bool(heard) or now - self._heard > ARRIVAL or _is_stopped_beside(next_rank)

    def _publish(self) -> None:
        self._beat += 1
        age = self._age()
        phase, step, row = self._seen
        mine, file = self.identity, str(self.shared.path)
        row = row if self._steps else -1
        status = Status(mine.host, mine.pid, file, self._beat, phase, step, row, age, self._failure)
        self.store.set(f"status/{mine.rank}", status.to_json())

    def _settle(self, told: int | None) -> NoReturn:
        """Judge, or wait for the judge; either way this process ends here. Never returns."""
        if self.store.add("judge", 1) != 1:
            for _ in range(100):
                if self.store.check(["verdict"]):
                    break
                self._publish()
                time.sleep(self.interval)
            self._leave()
        reports = self._all_reports()
        cause = judge(reports, self.describer.waits)
        told_to_end = told in (signal.SIGTERM, signal.SIGINT)
        if told_to_end and reports[cause].state in (State.RUNS, State.DONE):
            text = f"schedc: ended by {signal.Signals(told or 0).name}"
            self._code = 128 + (told or 0)
        else:
            text = self.describer(reports, cause)
        print(text, file=sys.stderr, flush=True)
        self.store.set("verdict", json.dumps({"cause": cause}))
        self._end_others(reports)
        self.shared.remove()
        os._exit(self._code)

    def _all_reports(self) -> list[Report]:
        """Where every rank is: two looks, between which every living process publishes."""
        first = self._look()
        time.sleep(self.interval * 1.5)
        self._publish()
        host = self.identity.host
        reports: list[Report] = []
        for rank, (before, now) in enumerate(zip(first, self._look(), strict=True)):
            beats = before is not None and now is not None and before.beat != now.beat
            reports.append(Report(rank, now and now.refreshed(host), beats, host))
        return reports

    def _look(self) -> list[Status | None]:
        found: list[Status | None] = []
        for rank in range(self.identity.world):
            key = f"status/{rank}"
            known = self.store.check([key])
            found.append(Status.from_json(self.store.get(key).decode()) if known else None)
        return found

    def _leave(self) -> NoReturn:
        self.shared.remove()
        self.store.set(f"gone/{self.identity.rank}", "")
        os._exit(1)

    def _end_others(self, reports: list[Report]) -> None:
        """Give the others a moment to leave, then kill those of this host that cannot."""
        others = [r for r in reports if r.rank != self.identity.rank and r.state is not State.DONE]
        dead = {r.rank for r in others if r.state is State.DEAD}
        deadline = time.monotonic() + 3 * self.interval + 0.5
        while time.monotonic() < deadline:
            others = [r for r in others if not self.store.check([f"gone/{r.rank}"])]
            if all(r.state in (State.DEAD, State.STOPPED) for r in others):
                break
            time.sleep(0.02)
        for report in others:
            if report.status is None:
                for pid in _started_beside(report.rank):
                    _kill(pid)
            elif report.status.host == self.identity.host:
                gone = process_state(report.status.pid) in ("", "Z", "X")
                if report.rank not in dead and not gone:  # a dead one's number may be taken
                    _kill(report.status.pid)
                Path(report.status.file).unlink(missing_ok=True)


def _is_stopped_beside(rank: int) -> bool:
    """Whether ``rank`` was stopped before it came up: then it will not, however long one waits."""
    return any(process_state(pid) in ("T", "t") for pid in _started_beside(rank))


def _started_beside(rank: int) -> list[int]:
    """The process of ``rank`` that the launcher of this one started on this host, if there is one.

    It is told by its variables: a rank that was stopped before it came up has published nothing.
    """
    ours = {name: os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT")}
    return children(os.getppid(), ours | {"RANK": str(rank)})


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
