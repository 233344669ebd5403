"""The training loop of one rank, the same on every transport."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol, TextIO

import torch
from safetensors.torch import save_file
from torch import Tensor

from schedc.runtime.assemble import assemble, on_cpu
from schedc.runtime.config import RunConfig
from schedc.runtime.evaluation import EvaluationRecord
from schedc.runtime.first_fault import first_fault
from schedc.runtime.learning_rate import learning_rate
from schedc.runtime.machine import StepResult
from schedc.runtime.outputs import writing
from schedc.runtime.rank import Rank
from schedc.runtime.transports.interface import Control
from schedc.runtime.weights import write_checkpoint


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A finished step, as progress and metrics tell it. ``step`` counts from 1."""

    step: int
    loss: float
    grad_norm: float
    lr: float
    tokens_per_second: float
    step_seconds: float
    valid_labels: int
    skipped: str | None
    loss_scale: float


class Observer(Protocol):
    """Is told of steps."""

    def step_begins(self, step: int) -> None: ...

    def step_ends(self, record: StepRecord, result: StepResult) -> None: ...

    def evaluated(self, record: EvaluationRecord) -> None: ...


@dataclass(slots=True)
class History:
    """Keeps every step's record and result."""

    records: list[StepRecord] = field(default_factory=list[StepRecord])
    results: list[StepResult] = field(default_factory=list[StepResult])
    evaluations: list[EvaluationRecord] = field(default_factory=list[EvaluationRecord])

    def step_begins(self, step: int) -> None:
        return None

    def step_ends(self, record: StepRecord, result: StepResult) -> None:
        self.records.append(record)
        self.results.append(result)

    def evaluated(self, record: EvaluationRecord) -> None:
        self.evaluations.append(record)


def train(
    rank: Rank,
    config: RunConfig,
    observers: tuple[Observer, ...] = (),
    keep_gradients: bool = False,
    evaluate: Callable[[int], EvaluationRecord] | None = None,
) -> dict[str, Tensor]:
    """Run ``config.steps`` steps. Returns this rank's gradients of the first step if asked to keep.

    They are taken after the reduction over dp and before clipping. ``evaluate`` is called before
    the first step, after every ``config.eval_every`` and after the last.
    """
    kept: dict[str, Tensor] = {}

    def keep() -> None:
        with torch.inference_mode(False), torch.no_grad():
            kept.update({name: on_cpu(gradient) for name, gradient in rank.gradients().items()})

    def evaluate_after(steps: int) -> None:
        every = config.eval_every or config.steps or 1
        if evaluate is not None and (steps % every == 0 or steps == config.steps):
            record = evaluate(steps)
            for observer in observers:
                observer.evaluated(record)

    evaluate_after(0)
    for step in range(config.steps):
        rank.machine.before_update = keep if keep_gradients and step == 0 else None
        for observer in observers:
            observer.step_begins(step)
        record, result = run_step(rank, config, step)
        for observer in observers:
            observer.step_ends(record, result)
        evaluate_after(step + 1)
    return kept


def run_step(rank: Rank, config: RunConfig, step: int) -> tuple[StepRecord, StepResult]:
    """One step. It waits for all ranks' norm and losses, so its time is all ranks'.

    The learning rate follows the updates that were made: a skipped step does not count. Where a
    step's numbers are not finite, all ranks find out together where that began.
    """
    rate = learning_rate(
        rank.optimizer.updates,
        peak=config.lr,
        warmup=config.warmup,
        steps=config.steps,
        schedule=config.lr_schedule,
        minimum=config.min_lr,
    )
    began = time.perf_counter()
    with torch.inference_mode():
        rank.machine.begin(step, rate)
        rank.executor.begin()
        finished = rank.executor.advance()
        assert finished, "a wait of this transport has to block"
        result = rank.machine.result()
    seconds = time.perf_counter() - began
    if result.fault:
        result = replace(result, skipped=f"{result.skipped}, {first_fault(rank)}")
    tokens = rank.manifest.batch * rank.manifest.sequence
    record = StepRecord(
        step=step + 1,
        loss=result.loss,
        grad_norm=result.norm,
        lr=rate,
        tokens_per_second=tokens / seconds,
        step_seconds=seconds,
        valid_labels=result.valid,
        skipped=result.skipped,
        loss_scale=result.loss_scale,
    )
    return record, result


class MetricsFile:
    """Writes a JSON line a step or evaluation; a number that is not finite is null there."""

    def __init__(self, file: TextIO) -> None:
        self.file = file

    def step_begins(self, step: int) -> None:
        return None

    def step_ends(self, record: StepRecord, result: StepResult) -> None:
        self._write(record)

    def evaluated(self, record: EvaluationRecord) -> None:
        self._write(record)

    def _write(self, record: StepRecord | EvaluationRecord) -> None:
        line = {name: getattr(record, name) for name in record.__slots__}
        for name, value in line.items():
            if isinstance(value, float) and not math.isfinite(value):
                line[name] = None
        self.file.write(json.dumps(line, allow_nan=False) + "\n")
        self.file.flush()


def save_gradients(
    rank: Rank, control: Control, config: RunConfig, gradients: dict[str, Tensor]
) -> None:
    """``--dump-gradients``: rank 0 writes all gradients under Hugging Face's names."""
    whole = assemble(control, rank.manifest, gradients, gradients=True)
    path = config.dump_gradients
    if control.rank == 0 and path is not None:
        with writing(path):
            save_file(whole, path, metadata={"format": "pt"})


def export(rank: Rank, control: Control, config: RunConfig) -> None:
    """``--export``: rank 0 writes a Hugging Face checkpoint folder, the masters rounded to a dtype.

    By default to that of the plan's precision, which is what trained: a bf16 model is read and
    written bit for bit. fp32 loses nothing of the masters.
    """
    dtype = config.export_dtype or rank.manifest.precision.model
    whole = assemble(control, rank.manifest, rank.parameters(), dtype)
    if control.rank == 0 and config.export is not None:
        write_checkpoint(config.export, whole, rank.manifest.config)
