"""Step times of the same model and schedules under schedc and ``torch.distributed.pipelining``.

Two processes over gloo, one torch thread each, pp = 2, eight microbatches of two sequences; the
same Llama, cut into the same stages, from the same weights, on the same batch. Before anything is
timed, losses and all gradients of both must agree. Then steps of ours and theirs alternate in one
job, the order swapped each round, with a barrier before each; a step lasts from the first rank's
begin to the last rank's end, by the clock that both processes share. Three spans are reported:

* gradients: loss and accumulated gradients of all microbatches, the pipeline itself. For ours this
  includes reading tokens and labels; torch has them in memory;
* step: the above, the loss on all ranks, the global norm, clipping, fused AdamW;
* processor: the step's processor time, both processes together. No waiting is in it, and other
  processes on the machine hardly disturb it.

``ratio`` is the median of ours over the median of theirs: below 1 means that ours is faster.
``quartiles`` are those of the rounds' own ratios: how far the machine's noise reaches.

    python -m benchmarks.against_torch [--json FILE] [--rounds N] [--plan NAME] [--schedule NAME]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from operator import truediv
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.cases import (
    Case,
    compile_case,
    gloo,
    join_ranks,
    machine,
    open_case,
    ready_rank,
    torchrun,
    write_json,
)
from benchmarks.torch_pipeline import SCHEDULES, TorchRank
from schedc.model.config import PRESETS
from schedc.program.artifact import Artifact
from schedc.program.instructions import CODE, Code
from schedc.runtime.config import RunConfig
from schedc.runtime.rank import Rank
from schedc.runtime.training import run_step

MODELS = {"hidden_256": "llama-tiny", "hidden_64": "llama-test"}
WARM_UP = 3
SPANS = ("gradients", "step", "processor")


class Times(NamedTuple):
    """When a rank's step began, had its gradients, and ended, and its processor time, in ns."""

    began: int
    gradients: int
    ended: int
    processor: int


class Ours:
    """A rank of a compiled plan, timed by its own monitor."""

    def __init__(self, rank: Rank, config: RunConfig) -> None:
        self.rank, self.config = rank, config
        codes = rank.program.stream.table[:, CODE].tolist()
        self.norm = codes.index(Code.NORM)
        self.loss = 0.0
        self.kept: dict[str, torch.Tensor] = {}

    def keep(self) -> None:
        with torch.inference_mode(False):
            self.kept = {name: value.clone() for name, value in self.rank.gradients().items()}

    def step(self) -> Times:
        busy = time.process_time_ns()
        _, result = run_step(self.rank, self.config, 0)
        busy = time.process_time_ns() - busy
        self.loss = result.loss
        monitor = self.rank.monitor
        return Times(monitor.began, monitor.ends[self.norm - 1], monitor.ends[-1], busy)


class Theirs:
    """A rank of torch's pipeline."""

    def __init__(self, rank: TorchRank, tokens: torch.Tensor, labels: torch.Tensor) -> None:
        self.rank, self.tokens, self.labels = rank, tokens, labels

    def step(self) -> Times:
        busy, began = time.process_time_ns(), time.perf_counter_ns()
        self.rank.gradients(self.tokens, self.labels)
        there = time.perf_counter_ns()
        self.rank.update()
        ended = time.perf_counter_ns()
        return Times(began, there, ended, time.process_time_ns() - busy)


def check_equal(ours: Ours, theirs: Theirs) -> None:
    """One step of both: equal loss and gradients, or nothing is worth timing."""
    ours.rank.machine.before_update = ours.keep
    ours.step()
    ours.rank.machine.before_update = None
    theirs.rank.gradients(theirs.tokens, theirs.labels)
    for name, parameter in theirs.rank.parameters.items():
        torch.testing.assert_close(ours.kept[name], parameter.grad, rtol=1e-4, atol=1e-7)
    theirs.rank.update()
    assert abs(ours.loss - theirs.rank.loss.item()) < 1e-6 * ours.loss, (
        ours.loss,
        theirs.rank.loss,
    )


def set_up(case: Case, artifact: Artifact, config: RunConfig) -> tuple[Ours, Theirs]:
    rank = ready_rank(artifact, config, dist.get_rank(), gloo(artifact))
    share = rank.machine.share
    assert share.batches is not None
    tokens, labels = share.batches.batch(0)
    llama = PRESETS[MODELS[case.plan]]
    other = TorchRank(llama, artifact.manifest, case.schedule, rank.parameters(), share.valid(0))
    return Ours(rank, config), Theirs(other, tokens, labels)


def measure(case: Case, work: Path, rounds: int) -> dict[str, object]:
    """All of one case, on rank 0; elsewhere nothing of meaning."""
    artifact, config = open_case(case, work)
    ours, theirs = set_up(case, artifact, config)
    check_equal(ours, theirs)
    times: dict[str, list[Times]] = {"ours": [], "theirs": []}
    for number in range(WARM_UP + rounds):
        sides = [("ours", ours), ("theirs", theirs)]
        for name, side in sides if number % 2 else reversed(sides):
            dist.barrier()
            found = side.step()
            if number >= WARM_UP:
                times[name].append(found)
    everybody: list[dict[str, list[Times]]] = [{}, {}]
    dist.all_gather_object(everybody, times)
    return {"plan": case.plan, "schedule": case.schedule, "rounds": rounds, **compare(everybody)}


def seconds_of(step: tuple[Times, ...], span: str) -> float:
    """One step's span, from the times of all ranks."""
    if span == "processor":
        return sum(each.processor for each in step) / 1e9
    ends = (each.ended if span == "step" else each.gradients for each in step)
    return (max(ends) - min(each.began for each in step)) / 1e9


def compare(everybody: list[dict[str, list[Times]]]) -> dict[str, object]:
    """Medians, ratios and spread of all spans, from all ranks' times."""
    found: dict[str, object] = {}
    for span in SPANS:
        ours, theirs = (
            [seconds_of(step, span) for step in zip(*(t[name] for t in everybody), strict=True)]
            for name in ("ours", "theirs")
        )
        low, _, high = statistics.quantiles(map(truediv, ours, theirs), n=4)
        medians = statistics.median(ours), statistics.median(theirs)
        found[span] = {
            "ours": medians[0],
            "theirs": medians[1],
            "ratio": medians[0] / medians[1],
            "quartiles": [low, high],
        }
    return found


def show(results: list[dict]) -> None:
    table = Table(box=box.SIMPLE_HEAD, title="schedc against torch.distributed.pipelining")
    names = ("plan", "schedule", "span", "ours", "torch", "ratio", "quartiles")
    for name in names:
        table.add_column(name, justify="left" if name in names[:3] else "right", no_wrap=True)
    for result in results:
        for span in SPANS:
            found = result[span]
            low, high = found["quartiles"]
            times = [f"{found[name] * 1e3:.1f} ms" for name in ("ours", "theirs")]
            ratio = (f"{found['ratio']:.3f}", f"{low:.2f} … {high:.2f}")
            table.add_row(result["plan"], result["schedule"], span, *times, *ratio)
    Console(width=100).print(table)
    print(f"machine: {machine()}")


def work_on(work: Path) -> None:
    """What each process of the job does."""
    torch.set_num_threads(1)
    join_ranks()
    jobs = json.loads((work / "jobs.json").read_text())
    results = [measure(Case(plan, schedule), work, rounds) for plan, schedule, rounds in jobs]
    if dist.get_rank() == 0:
        (work / "results.json").write_text(json.dumps(results))
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers")
    parser.add_argument("--rounds", type=int, default=20, help="of hidden 256; three times at 64")
    parser.add_argument("--plan", choices=MODELS, help="one size only")
    parser.add_argument("--schedule", choices=SCHEDULES, help="one schedule only")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        work_on(options.worker)
        return
    plans = (options.plan,) if options.plan else tuple(MODELS)
    schedules = (options.schedule,) if options.schedule else tuple(SCHEDULES)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        jobs = []
        for plan in plans:
            rounds = options.rounds * (3 if plan == "hidden_64" else 1)
            for schedule in schedules:
                compile_case(Case(plan, schedule), work)
                jobs.append((plan, schedule, rounds))
        (work / "jobs.json").write_text(json.dumps(jobs))
        torchrun("benchmarks.against_torch", work)
        results = json.loads((work / "results.json").read_text())
    show(results)
    write_json(options.json, results)


if __name__ == "__main__":
    main()
