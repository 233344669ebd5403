"""What compiling a plan of Llama-3-405B's shape takes: seconds and memory, and how they grow.

Each case is ``schedc compile`` in a process of its own, from its start to its end, with the peak of
its resident memory. One number at a time is changed from the largest case's: layers, P, M.

    python -m benchmarks.compile_large [--json FILE] [--precision fp32|bf16] [--schedule NAME]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from benchmarks.cases import ROOT, machine, write_json

CONFIG = {
    "model_type": "llama",
    "hidden_size": 16384,
    "num_attention_heads": 128,
    "num_key_value_heads": 8,
    "intermediate_size": 53248,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "tie_word_embeddings": False,
}
"""Llama-3-405B but for its 126 layers."""

PLAN = """
plan large {{
    model      "config.json"
    sequence   8192
    batch      {microbatches} in microbatches of 1
    mesh       pp = {ranks}
    schedule   {schedule}
    precision  {precision}
}}
"""


@dataclass(frozen=True, slots=True)
class Case:
    layers: int = 126
    ranks: int = 16
    microbatches: int = 64


CASES = (
    Case(),
    *(replace(Case(), layers=layers) for layers in (32, 63)),
    *(replace(Case(), ranks=ranks) for ranks in (4, 8)),
    *(replace(Case(), microbatches=microbatches) for microbatches in (16, 256)),
)


def measure(case: Case, schedule: str, precision: str) -> dict[str, float]:
    """Seconds and peak resident MiB of compiling ``case``, and the size of what it wrote."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = CONFIG | {"num_hidden_layers": case.layers}
        (folder / "config.json").write_text(json.dumps(config))
        plan = PLAN.format(
            ranks=case.ranks,
            microbatches=case.microbatches,
            schedule=schedule,
            precision=precision,
        )
        (folder / "large.sched").write_text(plan)
        command = [sys.executable, "-m", "schedc", "compile", "large.sched", "-o", "build"]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        began = time.perf_counter()
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"{case} does not compile")
        written = sum(path.stat().st_size for path in (folder / "build").rglob("*.*"))
    return {
        "layers": case.layers,
        "ranks": case.ranks,
        "microbatches": case.microbatches,
        "seconds": seconds,
        "processor_seconds": usage.ru_utime + usage.ru_stime,
        "peak_mib": usage.ru_maxrss / 1024,
        "written_mib": written / 2**20,
    }


def show(results: list[dict[str, float]], title: str) -> None:
    table = Table(box=box.SIMPLE_HEAD, title=title)
    for name in ("layers", "P", "M", "seconds", "of processor", "peak MiB", "written MiB"):
        table.add_column(name, justify="right", no_wrap=True)
    for found in results:
        table.add_row(
            *(f"{found[key]}" for key in ("layers", "ranks", "microbatches")),
            *(f"{found[key]:.1f}" for key in ("seconds", "processor_seconds")),
            f"{found['peak_mib']:.0f}",
            f"{found['written_mib']:.1f}",
        )
    Console(width=100).print(table)
    print(f"machine: {machine()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--schedule", default="interleaved")
    options = parser.parse_args()
    results = [measure(case, options.schedule, options.precision) for case in CASES]
    show(results, f"compiling Llama-3-405B's shape, {options.schedule}, {options.precision}")
    write_json(options.json, results)


if __name__ == "__main__":
    main()
