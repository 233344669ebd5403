"""How long the compiler takes for a large schedule, stage by stage, and how that grows with M.

``interleaved`` with V = 2 on P = 64 ranks, for a model without numbers: evaluate the schedule,
verify the order, simulate it, lower it to programs, reuse buffers, verify the programs (what
``schedc check`` does, which verifies after lowering too). Seconds of one run each, and how many
instructions came out. ``µs each`` is the total by instruction: where it stays, growth is linear.

    python -m benchmarks.compile_time [--json FILE] [--ranks P] [--microbatches M …]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.cases import machine, write_json
from schedc.driver.check import evaluate_schedule
from schedc.ir.cost import Costs
from schedc.ir.text import order_digest
from schedc.ir.verify import verify_order
from schedc.passes.lower import lower
from schedc.passes.reuse_buffers import reuse_buffers
from schedc.program.abstract import abstract_model
from schedc.program.verify import verify_programs
from schedc.sema.library import bundled
from schedc.simulate.order import simulate_order

SCHEDULE = "interleaved"
STAGES = ("evaluate", "verify order", "simulate", "lower", "verify lowered", "reuse", "verify")


def measure(ranks: int, microbatches: int) -> dict[str, float]:
    """Seconds of each stage, and the number of instructions."""
    found: dict[str, float] = {"ranks": ranks, "microbatches": microbatches}

    @contextmanager
    def timed(stage: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        found[stage] = time.perf_counter() - began

    with timed("evaluate"):
        sizes = {"P": str(ranks), "M": str(microbatches)}
        order = evaluate_schedule(bundled(), SCHEDULE, sizes).order
    with timed("verify order"):
        verify_order(order)
    with timed("simulate"):
        timeline = simulate_order(order, Costs().of_stages(order.ranks, order.stages))
    model, partition = abstract_model(order.stages)
    with timed("lower"):
        programs = lower(timeline, model, partition, f"{order.name} #{order_digest(order)}")
    with timed("verify lowered"):
        verify_programs(programs, model, replicas=1)
    with timed("reuse"):
        programs = reuse_buffers(programs)
    with timed("verify"):
        verify_programs(programs, model, replicas=1)
    found["total"] = sum(found[stage] for stage in STAGES)
    found["instructions"] = sum(len(program.stream) for program in programs)
    return found


def show(results: list[dict[str, float]]) -> None:
    table = Table(box=box.SIMPLE_HEAD, title=f"compiling {SCHEDULE}: seconds")
    for name in ("P", "M", *STAGES, "total", "instructions", "µs each"):
        table.add_column(name, justify="right", no_wrap=True)
    for found in results:
        table.add_row(
            f"{found['ranks']}",
            f"{found['microbatches']}",
            *(f"{found[stage]:.2f}" for stage in (*STAGES, "total")),
            f"{found['instructions']:,}",
            f"{found['total'] / found['instructions'] * 1e6:.1f}",
        )
    Console(width=140).print(table)
    print(f"machine: {machine()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers")
    parser.add_argument("--ranks", type=int, default=64, metavar="P")
    parser.add_argument("--microbatches", type=int, nargs="+", default=[128, 256, 512], metavar="M")
    options = parser.parse_args()
    results = [measure(options.ranks, microbatches) for microbatches in options.microbatches]
    show(results)
    write_json(options.json, results)


if __name__ == "__main__":
    main()
