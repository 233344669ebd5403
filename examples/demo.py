"""Compiles the bundled plan, trains it for 30 steps on real text, compares prediction and run.

What ``make demo`` runs. The text is the source of this machine's Python standard library: real,
on every machine, no download. Everything is written below ``build/demo``.
"""

from __future__ import annotations

import json
import os
import shlex
import statistics
import subprocess
import sys
import sysconfig
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
PLAN = "llama_tiny_zb"
RANKS = 4
OUT = Path("build/demo")
BUILD = OUT / PLAN


def run(*words: str | Path) -> None:
    """Show a command as one would type it, and run it; its failure ends the demo."""
    arguments = [str(word) for word in words]
    print(f"\n$ {shlex.join(arguments)}", flush=True)
    modules = {"schedc": "schedc", "torchrun": "torch.distributed.run"}
    command = [sys.executable, "-m", modules[arguments[0]], *arguments[1:]]
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    if code := subprocess.run(command, cwd=ROOT, env=environment).returncode:
        sys.exit(code)


def train() -> None:
    """Thirty steps over gloo; before them every rank times its graphs, all at once."""
    text = sysconfig.get_paths()["stdlib"]
    run(
        "torchrun", "--nproc-per-node", str(RANKS), "runtime/exec.py", BUILD,
        "--data", text, "--steps", "30", "--lr", "1e-3", "--warmup", "3", "--transport", "gloo",
        "--times-out", OUT / "times.json",
        "--trace-out", OUT / "measured.json",
        "--metrics", OUT / "metrics.jsonl",
    )  # fmt: skip


def summary() -> Table:
    """Loss first and last; predicted and measured step time, bubble and memory side by side."""
    lines = (ROOT / OUT / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines]
    predicted = json.loads((ROOT / BUILD / "timeline.json").read_text())["figures"]
    measured = json.loads((ROOT / OUT / "measured.json").read_text())["figures"]
    last = statistics.mean(step["loss"] for step in steps[-5:])
    speed = statistics.median(step["tokens_per_second"] for step in steps)
    seconds = statistics.median(step["step_seconds"] for step in steps)

    table = Table(box=box.SIMPLE_HEAD, title=f"{PLAN}: {len(steps)} steps")
    for name in ("", "predicted", "measured"):
        table.add_column(name, justify="left" if not name else "right")
    table.add_row("loss, first → mean of the last five", "", f"{steps[0]['loss']:.3f} → {last:.3f}")
    table.add_row("tokens/s (median step)", "", f"{speed:,.0f}")
    table.add_row(
        "step time (median step)", f"{predicted['step_makespan']:.3f} s", f"{seconds:.3f} s"
    )
    table.add_row(
        "bubble of the compute", *(f"{f['bubble_rate']:.1%}" for f in (predicted, measured))
    )
    for rank in range(len(predicted["peak_bytes"])):
        peaks = (f"{f['peak_bytes'][rank] / 2**20:.2f} MiB" for f in (predicted, measured))
        table.add_row(f"peak memory of pipeline rank {rank}", *peaks)
    return table


def main() -> None:
    (ROOT / OUT).mkdir(parents=True, exist_ok=True)
    run("schedc", "compile", PLAN, "-o", BUILD)
    train()
    run("schedc", "simulate", BUILD, "--times", OUT / "times.json")
    charts = {"predicted": BUILD, "measured": OUT / "measured.json"}
    for name, source in charts.items():
        run("schedc", "viz", source, "-o", OUT / f"{name}.svg")
    print()
    Console().print(summary())
    note = json.loads((ROOT / OUT / "times.json").read_text())["note"]
    print(f"prediction from times {note}")
    for name in charts:
        print(f"{name} diagram: {OUT / name}.svg")


if __name__ == "__main__":
    main()
