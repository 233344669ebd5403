"""What a person sees of a run: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from typing import TextIO

from schedc.runtime.evaluation import EvaluationRecord
from schedc.runtime.machine import StepResult
from schedc.runtime.training import StepRecord


class Progress:
    """Tells rank 0's steps: every ``every``-th, the first and the last."""

    def __init__(self, steps: int, every: int, out: TextIO | None = None) -> None:
        self.steps, self.every = steps, every
        self.out = out if out is not None else sys.stdout
        self.live = self.out.isatty()
        self._open = False

    def step_begins(self, step: int) -> None:
        if self.live and step == 0:
            self._show(f"step 1/{self.steps} …")

    def step_ends(self, record: StepRecord, result: StepResult) -> None:
        if record.skipped is not None:
            self.close()
            warning = f"warning: step {record.step} is skipped: {record.skipped}"
            print(warning, file=sys.stderr, flush=True)
        due = record.step % self.every == 0 or record.step in (1, self.steps)
        if self.live or due:
            self._show(progress_line(record, self.steps))
        if self.live and (due or record.step == self.steps):
            self.close()

    def evaluated(self, record: EvaluationRecord) -> None:
        self.close()
        self.out.write(
            f"evaluation after {record.step} steps   loss {record.eval_loss:.4f}   "
            f"{record.eval_labels:,} labels   {record.eval_seconds:.3f} s\n"
        )
        self.out.flush()

    def close(self) -> None:
        """End the live line, so that other text starts on its own."""
        if self._open:
            self.out.write("\n")
            self._open = False

    def _show(self, line: str) -> None:
        self.out.write(f"\r\x1b[K{line}" if self.live else f"{line}\n")
        self.out.flush()
        self._open = self.live


def progress_line(record: StepRecord, steps: int) -> str:
    width = len(str(steps))
    return (
        f"step {record.step:>{width}}/{steps}   loss {record.loss:.4f}   "
        f"norm {record.grad_norm:.3f}   lr {record.lr:.2e}   "
        f"{record.tokens_per_second:,.0f} tokens/s   {record.step_seconds:.3f} s"
        + (f"   scale {record.loss_scale:.0f}" if record.loss_scale != 1 else "")
    )
