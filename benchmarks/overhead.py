"""The executor's own time, as a share of the step: what is neither arithmetic nor waiting.

A step's time is split row by row. The monitor says when each instruction ended; a stopwatch says
how much of it lay inside

* arithmetic: the generated graphs, adding gradients up, the squares of the norm, the optimizer;
* waiting: ``wait`` of what a transport posted.

Everything else is the executor's own: the loop, frames and operands of bodies, reading tokens and
labels, posting messages (torch.distributed's own cost of a post too), what surrounds a wait. The
programs, executor, machine and transports are the product's; only the callables that are measured
are wrapped. Their wrapping falls on the executor's side, so own times are upper bounds;
``instrument`` says about how much of the step that is.

Two clocks run. ``own`` is by the wall clock: where more processes run than cores, it contains what
others took while the executor was to run, most of all when a post wakes the receiver. ``own cpu``
is by the thread's processor time, which nobody else's work is in; the parts are listed by it. Both
are shares of the step's wall time, medians over the steps, of the rank with the largest ``own
cpu``. ``of work`` is ``own cpu`` over itself plus arithmetic: neither a long bubble nor a loaded
machine, which both lengthen the step, can hide anything there. The target is ``own`` under 3 % on
a machine that does nothing else; elsewhere, ``of work`` is the figure to go by.

    python -m benchmarks.overhead [--json FILE] [--steps N] [--plan NAME]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

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
from schedc.ops.generated import Graph
from schedc.program.artifact import Artifact
from schedc.program.instructions import CODE, Code
from schedc.program.program import RankProgram
from schedc.runtime import bodies
from schedc.runtime import machine as machines
from schedc.runtime import rank as ranks
from schedc.runtime.config import RunConfig
from schedc.runtime.rank import Rank
from schedc.runtime.training import run_step
from schedc.runtime.transports.interface import Link, Transport, Work
from schedc.runtime.transports.threads import Hub, ThreadsTransport

SCHEDULES = ("gpipe", "one_f_one_b", "interleaved", "zb_h1")
PLANS = ("hidden_256", "hidden_64")
WARM_UP = 3
KINDS = {
    Code.RUN: "bodies",
    Code.LOAD: "loads",
    Code.SEND: "posts",
    Code.RECV: "posts",
    **{code: "waits" for code in Code if code >= Code.WAIT_MESSAGE},
}
"""What own time is listed under, by instruction; all others are the step's end."""
PARTS = ("bodies", "loads", "posts", "waits", "end of step", "around")


class Reading(NamedTuple):
    """Two clocks, and what they showed inside arithmetic and waiting so far; ns."""

    wall: int
    processor: int
    counted_wall: int
    counted_processor: int
    arithmetic: int  # of counted_processor


@dataclass(slots=True)
class Stopwatch:
    """Adds up what wrapped callables take; ``log`` has a reading of each row's end."""

    wall: int = 0
    processor: int = 0
    arithmetic: int = 0
    calls: int = 0
    log: list[Reading] = field(default_factory=list)

    def timed(self, work: Callable[..., Any], arithmetic: bool = True) -> Callable[..., Any]:
        """``work``, counted as arithmetic or as waiting."""
        clock, busy = time.perf_counter_ns, time.thread_time_ns

        def call(*arguments: Any) -> Any:
            began, ran = clock(), busy()
            result = work(*arguments)
            ran = busy() - ran
            self.wall += clock() - began
            self.processor += ran
            if arithmetic:
                self.arithmetic += ran
            self.calls += 1
            return result

        return call

    def tick(self) -> int:
        """The monitor's clock: an instruction ended."""
        now = time.perf_counter_ns()
        busy = time.thread_time_ns()
        self.log.append(Reading(now, busy, self.wall, self.processor, self.arithmetic))
        return now


class TimedWork:
    """Something posted whose wait is counted as waiting."""

    __slots__ = ("wait",)

    def __init__(self, watch: Stopwatch, work: Work) -> None:
        self.wait = watch.timed(work.wait, arithmetic=False)


class TimedTransport:
    """A transport whose waits are counted; posts are the executor's own time."""

    def __init__(self, watch: Stopwatch, inner: Transport[Tensor]) -> None:
        self.watch, self.inner = watch, inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def post_send(self, link: Link, payload: Tensor) -> Work:
        return TimedWork(self.watch, self.inner.post_send(link, payload))

    def post_recv(self, link: Link, payload: Tensor) -> Work:
        return TimedWork(self.watch, self.inner.post_recv(link, payload))

    def post_sum(self, name: str, payload: Tensor, axes: tuple[str, ...]) -> Work:
        return TimedWork(self.watch, self.inner.post_sum(name, payload, axes))


def timed_rank(
    artifact: Artifact, config: RunConfig, number: int, transport: Transport[Tensor]
) -> tuple[Rank, Stopwatch]:
    """A rank whose arithmetic and waits are timed. Handlers bind what is wrapped here, at load."""
    watch = Stopwatch()
    load_graphs = ranks.load_graphs

    def timed_graphs(artifact: Artifact, program: RankProgram) -> Mapping[str, Graph]:
        return {name: watch.timed(graph) for name, graph in load_graphs(artifact, program).items()}

    sums = mock.Mock(copy_=watch.timed(Tensor.copy_), add_=watch.timed(Tensor.add_))
    with (
        mock.patch.object(ranks, "load_graphs", timed_graphs),
        mock.patch.object(bodies, "Tensor", sums),
    ):
        rank = ready_rank(artifact, config, number, TimedTransport(watch, transport))
    rank.optimizer.step = watch.timed(rank.optimizer.step)
    rank.monitor.now = watch.tick
    return rank, watch


def measure(rank: Rank, watch: Stopwatch, config: RunConfig, steps: int) -> list[dict[str, float]]:
    """Each step's seconds: all, own by the wall clock, own by part, arithmetic, instrument."""
    codes = rank.program.stream.table[:, CODE].tolist()
    cost = instrument_cost()
    squares = watch.timed(machines.sum_of_squares)
    found = []
    with mock.patch.object(machines, "sum_of_squares", squares):
        for step in range(WARM_UP + steps):
            watch.log.clear()
            watch.calls = 0
            busy = time.thread_time_ns()
            record, _ = run_step(rank, config, 0)
            busy = time.thread_time_ns() - busy
            if step >= WARM_UP:
                split = own_time(watch.log, codes)
                first, last = watch.log[0], watch.log[-1]
                counted = (last.counted_wall - first.counted_wall) / 1e9
                split["around"] = (busy - last.processor + first.processor) / 1e9
                split["all"] = record.step_seconds
                split["own"] = record.step_seconds - counted
                split["own cpu"] = sum(split[part] for part in PARTS)
                split["instrument"] = cost * watch.calls
                found.append(split)
    return found


def own_time(log: list[Reading], codes: list[int]) -> dict[str, float]:
    """One step's processor seconds by part, from the readings at its begin and its rows' ends."""
    split: dict[str, float] = dict.fromkeys((*PARTS, "arithmetic"), 0.0)
    for (before, after), code in zip(pairwise(log), codes, strict=True):
        part = KINDS.get(Code(code), "end of step")
        counted = after.counted_processor - before.counted_processor
        split[part] += (after.processor - before.processor - counted) / 1e9
        split["arithmetic"] += (after.arithmetic - before.arithmetic) / 1e9
    return split


def instrument_cost(rounds: int = 20_000) -> float:
    """Seconds that wrapping a call puts on the executor's side: of a call of nothing."""
    watch = Stopwatch()
    nothing = watch.timed(lambda *_: None)
    found: list[float] = []
    for _ in range(5):
        watch.wall = 0
        began = time.perf_counter_ns()
        for _ in range(rounds):
            nothing(None, None)
        found.append((time.perf_counter_ns() - began - watch.wall) / rounds / 1e9)
    return min(found)


def summary(
    case: Case, transport: str, everybody: list[list[dict[str, float]]]
) -> dict[str, object]:
    """Medians of the rank with the largest share."""
    ranks: list[dict[str, float]] = []
    for steps in everybody:
        own = statistics.median(step["own"] / step["all"] for step in steps)
        cpu = statistics.median(step["own cpu"] / step["all"] for step in steps)
        work = [step["own cpu"] / (step["own cpu"] + step["arithmetic"]) for step in steps]
        shares = {"own share": own, "own cpu share": cpu, "of work": statistics.median(work)}
        medians = {key: statistics.median(step[key] for step in steps) for key in steps[0]}
        ranks.append({**medians, **shares})
    worst = max(ranks, key=lambda found: found["own cpu share"])
    named = {"plan": case.plan, "schedule": case.schedule, "transport": transport}
    return {**named, "steps": len(everybody[0]), **worst}


def on_gloo(work: Path) -> None:
    """What each process of the job does."""
    torch.set_num_threads(1)
    join_ranks()
    results = []
    for plan, schedule, steps in json.loads((work / "jobs.json").read_text()):
        case = Case(plan, schedule)
        artifact, config = open_case(case, work)
        rank, watch = timed_rank(artifact, config, dist.get_rank(), gloo(artifact))
        everybody: list[list[dict[str, float]]] = [[], []]
        dist.barrier()
        dist.all_gather_object(everybody, measure(rank, watch, config, steps))
        results.append(summary(case, "gloo, pp = 2", everybody))
    if dist.get_rank() == 0:
        (work / "results.json").write_text(json.dumps(results))
    dist.destroy_process_group()


def on_threads(case: Case, work: Path, steps: int) -> dict[str, object]:
    """The whole model on one rank in this process."""
    artifact, config = open_case(case, work)
    transport = ThreadsTransport(Hub(1), artifact.manifest.mesh, 0)
    rank, watch = timed_rank(artifact, config, 0, transport)
    return summary(case, "threads, pp = 1", [measure(rank, watch, config, steps)])


def show(results: list[dict[str, Any]]) -> None:
    table = Table(box=box.SIMPLE_HEAD, title="the executor's own time (parts in ms of processor)")
    for name in ("plan", "transport", "schedule"):
        table.add_column(name, no_wrap=True)
    for name in ("step", "own", "own cpu", "of work", "instrument", *PARTS):
        table.add_column(name, justify="right", no_wrap=True)
    for found in results:
        table.add_row(
            *(found[key] for key in ("plan", "transport", "schedule")),
            f"{found['all'] * 1e3:.1f} ms",
            f"{found['own share']:.2%}",
            f"{found['own cpu share']:.2%}",
            f"{found['of work']:.2%}",
            f"{found['instrument'] / found['all']:.2%}",
            *(f"{found[part] * 1e3:.2f}" for part in PARTS),
        )
    Console(width=160).print(table)
    print(f"machine: {machine()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers")
    parser.add_argument("--steps", type=int, default=10, help="that are timed, of each case")
    parser.add_argument("--plan", choices=PLANS, default=PLANS[0])
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        on_gloo(options.worker)
        return
    torch.set_num_threads(1)
    cases = [Case(options.plan, schedule) for schedule in SCHEDULES]
    with tempfile.TemporaryDirectory() as folder:
        single, double = Path(folder, "pp1"), Path(folder, "pp2")
        for case in cases:
            compile_case(case, single, {"pp": "1"})
            compile_case(case, double)
        results = [on_threads(case, single, options.steps) for case in cases]
        jobs = [(case.plan, case.schedule, options.steps) for case in cases]
        (double / "jobs.json").write_text(json.dumps(jobs))
        torchrun("benchmarks.overhead", double)
        results += json.loads((double / "results.json").read_text())
    show(results)
    write_json(options.json, results)


if __name__ == "__main__":
    main()
