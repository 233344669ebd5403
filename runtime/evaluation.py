"""Evaluation: the loss on data of its own, by forward passes with the parameters as they stand."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from schedc.diagnostics import Diagnostic, DiagnosticError
from schedc.runtime.data import Batches, microbatch_rows
from schedc.runtime.executor import Executor
from schedc.runtime.first_fault import Inspector
from schedc.runtime.loss_scale import LossScale
from schedc.runtime.machine import StepResult, TensorMachine
from schedc.runtime.position import STEP
from schedc.runtime.rank import Rank, make_monitor
from schedc.runtime.share import Share


@dataclass(frozen=True, slots=True)
class EvaluationRecord:
    """An evaluation after ``step`` steps; the loss is the mean over all ``eval_labels``."""

    step: int
    eval_loss: float
    eval_labels: int
    eval_seconds: float


class Evaluator:
    """Runs a rank's evaluation program over all of the data, in as many passes as that takes.

    Buffers live for one evaluation only; gradients and the optimizer are never touched.
    """

    def __init__(self, rank: Rank, batches: Batches) -> None:
        self.rank, self.batches = rank, batches
        self.program = rank.artifact.evaluation[rank.program.rank]

    def evaluate(self, step: int) -> EvaluationRecord:
        """The same on every rank. Raises E902 where the data has no valid label."""
        began = time.perf_counter()
        total, valid = 0.0, 0
        for result in self._passes():
            total += result.loss * result.valid
            valid += result.valid
        if not valid:
            message = f"no label of the evaluation data is valid: {self.batches.summary}"
            raise DiagnosticError(Diagnostic("E902", message))
        return EvaluationRecord(step, total / valid, valid, time.perf_counter() - began)

    def _passes(self) -> list[StepResult]:
        machine, executor = self._machine()
        position = executor.monitor.position = self.rank.monitor.position
        step, position[STEP] = position[STEP], 0
        results: list[StepResult] = []
        with torch.inference_mode():
            for number in range(-(-self.batches.sequences // self.batches.batch_size)):
                machine.begin(number, 0.0)
                executor.begin()
                finished = executor.advance()
                assert finished, "a wait of this transport has to block"
                results.append(machine.result())
        position[STEP] = step
        return results

    def _machine(self) -> tuple[TensorMachine, Executor[torch.Tensor]]:
        rank, manifest = self.rank, self.rank.manifest
        dp = manifest.mesh.coordinates(rank.number)["dp"]
        microbatches = range(self.program.microbatches)
        rows = tuple(microbatch_rows(manifest, dp, m, evaluates=True) for m in microbatches)
        machine = TensorMachine(
            self.program,
            manifest.signatures,
            rank.graphs,
            rank.states,
            rank.rotary,
            rank.transport,
            rank.optimizer,
            Share(self.batches, rows, rank.device),
            {},
            LossScale(0),
            Inspector(manifest, dp, rank.states),
        )
        monitor = make_monitor(self.program, rank.device)
        return machine, Executor(self.program, rank.transport, machine, monitor)
