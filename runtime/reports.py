"""What a run measures of itself on request: graph times before, a step's memory, a step's times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from schedc.runtime.clocks import clock_offset
from schedc.runtime.config import RunConfig
from schedc.runtime.evaluation import EvaluationRecord
from schedc.runtime.graph_times import measure, to_json
from schedc.runtime.machine import StepResult
from schedc.runtime.measured import RankTimes, measured_trace
from schedc.runtime.memory import MemoryTracker, bytes_of
from schedc.runtime.outputs import writing
from schedc.runtime.rank import Rank
from schedc.runtime.training import StepRecord
from schedc.runtime.transports.interface import Control

MEMORY_STEP = 1
"""The step whose memory is measured: the second, when the optimizer's state is there."""


class Reports:
    """Observes the steps of one rank; rank 0 writes the files."""

    def __init__(self, rank: Rank, control: Control, config: RunConfig) -> None:
        self.rank, self.control, self.config = rank, control, config
        wanted = config.memory_out is not None or config.trace_out is not None
        self._memory_step = min(MEMORY_STEP, config.steps - 1) if wanted else -1
        self._tracker: MemoryTracker | None = None
        self._memory: list[int] = []
        self._persistent: dict[str, int] = {}
        self._step_seconds: list[float] = []
        self._now = rank.monitor.now

    def before(self) -> None:
        """``--times-out``."""
        if self.config.times_out is not None:
            times = measure(self.rank, self.control, self.config.clip)
            if self.control.rank == 0:
                _write(self.config.times_out, to_json(times))

    def step_begins(self, step: int) -> None:
        if step != self._memory_step:
            return
        persistent = self.rank.persistent()
        self._persistent = {kind: bytes_of(tensors) for kind, tensors in persistent.items()}
        everything = [tensor for tensors in persistent.values() for tensor in tensors]
        tracker = MemoryTracker(everything, self.rank.device)
        stays = sum(self._persistent.values())
        self._now = read_clock = self.rank.monitor.now

        def now() -> int:
            self._memory.append(stays + tracker.take_peak())
            return read_clock()

        self.rank.monitor.now = now
        self._tracker = tracker
        tracker.__enter__()

    def step_ends(self, record: StepRecord, result: StepResult) -> None:
        if self._tracker is None:
            self._step_seconds.append(record.step_seconds)
            return
        self._tracker.__exit__(None, None, None)
        self._tracker = None
        self.rank.monitor.now = self._now
        del self._memory[0]  # from the step's begin

    def evaluated(self, record: EvaluationRecord) -> None:
        return None

    def after(self) -> None:
        """``--trace-out`` and ``--memory-out``."""
        if self._memory_step < 0:
            return
        offset = clock_offset(self.control)
        monitor = self.rank.monitor
        monitor.settle()
        mine: dict[str, Any] = {
            "began": monitor.began + offset,
            "ends": [end + offset for end in monitor.ends],
            "memory": self._memory,
            "persistent": self._persistent,
        }
        everybody = self.control.gather(mine)
        if self.control.rank == 0:
            mesh = self.rank.manifest.mesh
            pipeline = [everybody[mesh.rank_at(pp=pp)] for pp in range(mesh.pp)]
            self._write_trace(pipeline)
            self._write_memory(pipeline)

    def _write_trace(self, pipeline: list[dict[str, Any]]) -> None:
        path, manifest = self.config.trace_out, self.rank.manifest
        if path is None:
            return
        times = [RankTimes(r["began"], r["ends"], r["memory"]) for r in pipeline]
        notes = (
            f"step {self.config.steps} of a run, first replica; memory of step "
            f"{self._memory_step + 1}",
            "a message ends when it was first waited for: it may have been there earlier",
        )
        figures = {"schedule": manifest.schedule, "P": manifest.mesh.pp, "M": manifest.microbatches}
        trace = measured_trace(self.rank.artifact.programs, times, manifest.name, figures, notes)
        _write(path, trace.to_json())

    def _write_memory(self, pipeline: list[dict[str, Any]]) -> None:
        path = self.config.memory_out
        if path is None:
            return
        ranks = [
            {"rank": pp, "peak_bytes": max(r["memory"]), "persistent": r["persistent"]}
            for pp, r in enumerate(pipeline)
        ]
        fields = {"schema": "schedc memory 1", "step": self._memory_step + 1, "ranks": ranks}
        _write(path, json.dumps(fields, indent=1) + "\n")


def _write(path: Path, text: str) -> None:
    with writing(path):
        path.write_text(text, encoding="utf-8")
