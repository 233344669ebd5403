"""Starting runs as a user does: torchrun and runtime/exec.py in processes of their own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from schedc.runtime.verdict import children

ROOT = Path(__file__).resolve().parents[2]
EXEC = ROOT / "runtime" / "exec.py"


@dataclass(frozen=True, slots=True)
class Finished:
    code: int
    out: str
    err: str
    seconds: float

    @property
    def ours(self) -> str:
        """Standard error without what torchrun itself writes once a rank has failed."""
        lines = self.err.split("Traceback (most recent call last):\n  File")[0].splitlines()
        return "\n".join(line for line in lines if not re.match(r"[WE]\d{4} ", line))


def command(ranks: int, *arguments: str | Path, script: Path = EXEC) -> list[str]:
    """One rank runs without torchrun."""
    python = [sys.executable]
    if ranks > 1:
        python += ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-port=0"]
        python += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    return [*python, str(script), *map(str, arguments)]


def environment() -> dict[str, str]:
    """Without GPUs: runs are compared with the oracle on the CPU, and have more ranks than GPUs."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def launch(
    ranks: int, *arguments: str | Path, timeout: float = 120, script: Path = EXEC
) -> Finished:
    began = time.monotonic()
    done = subprocess.run(
        command(ranks, *arguments, script=script),
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment(),
        cwd="/",
    )
    return Finished(done.returncode, done.stdout, done.stderr, time.monotonic() - began)


@dataclass(slots=True)
class Running:
    """A run in progress, of several ranks."""

    process: subprocess.Popen[str]
    out: Path
    err: Path

    def wait_for_step(self, timeout: float = 90) -> None:
        """Return once the first step is done."""
        deadline = time.monotonic() + timeout
        while "step" not in self.out.read_text():
            assert self.process.poll() is None, self.err.read_text()
            assert time.monotonic() < deadline, "the run does not come up"
            time.sleep(0.05)

    def wait_for_process(self, rank: int, timeout: float = 60) -> int:
        """Return the process id of a rank once there is one."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            try:
                return self.process_of(rank)
            except AssertionError:
                time.sleep(0.01)
        raise AssertionError(f"rank {rank} does not come up")

    def process_of(self, rank: int) -> int:
        """The process id of a rank."""
        for pid in children(self.process.pid, {"RANK": str(rank)}):
            return pid
        raise AssertionError(f"rank {rank} is not there")

    def signal(self, rank: int, number: signal.Signals) -> float:
        """Send a signal to a rank; returns when."""
        os.kill(self.process_of(rank), number)
        return time.monotonic()

    def finish(self, timeout: float) -> Finished:
        began = time.monotonic()
        code = self.process.wait(timeout)
        seconds = time.monotonic() - began
        return Finished(code, self.out.read_text(), self.err.read_text(), seconds)


def start(ranks: int, folder: Path, *arguments: str | Path) -> Running:
    out, err = folder / "out", folder / "err"
    with out.open("w") as to_out, err.open("w") as to_err:
        process = subprocess.Popen(
            command(ranks, *arguments), stdout=to_out, stderr=to_err, text=True, env=environment()
        )
    return Running(process, out, err)
