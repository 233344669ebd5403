"""What the benchmarks run: compiled plans, a file of tokens, processes that torchrun starts."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from schedc.driver.build import compile_plan
from schedc.program.artifact import Artifact, load_artifact, write_artifact
from schedc.runtime.config import RunConfig
from schedc.runtime.environment import Environment
from schedc.runtime.rank import Rank, load_states, make_rank, open_batches
from schedc.runtime.transports.gloo import GlooTransport
from schedc.runtime.transports.interface import Transport
from schedc.sema.library import load_file

ROOT = Path(__file__).resolve().parent.parent
PLANS = ROOT / "benchmarks" / "plans.sched"
PATIENCE = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class Case:
    """A plan of ``plans.sched`` under one schedule."""

    plan: str
    schedule: str

    def folder(self, work: Path) -> Path:
        return work / f"{self.plan}.{self.schedule}"


def compile_case(case: Case, work: Path, settings: Mapping[str, str] | None = None) -> None:
    """Compile into ``work``, and write one batch of random tokens beside it."""
    chosen = {"schedule": case.schedule, **(settings or {})}
    artifact = compile_plan(load_file(PLANS), case.plan, chosen).artifact
    write_artifact(artifact, case.folder(work))
    manifest = artifact.manifest
    vocabulary = manifest.config["vocab_size"]
    assert isinstance(vocabulary, int)
    torch.manual_seed(0)
    ids = torch.randint(0, vocabulary, (manifest.batch, manifest.sequence), dtype=torch.int32)
    save_file({"input_ids": ids}, case.folder(work) / "tokens.safetensors")


def open_case(case: Case, work: Path) -> tuple[Artifact, RunConfig]:
    """What :func:`compile_case` wrote, as a run reads it."""
    folder = case.folder(work)
    return load_artifact(folder), RunConfig(data=(folder / "tokens.safetensors",), lr=1e-4)


def ready_rank(
    artifact: Artifact, config: RunConfig, number: int, transport: Transport[torch.Tensor]
) -> Rank:
    """Global rank ``number``, with fresh parameters and its data."""
    units = artifact.programs[artifact.manifest.mesh.coordinates(number)["pp"]].units
    states = load_states(artifact.manifest, units, config)
    batches = open_batches(artifact.manifest, config)
    return make_rank(artifact, number, transport, config, states, batches)


def torchrun(module: str, work: Path, ranks: int = 2) -> None:
    """Run ``module`` on ``ranks`` processes of one torch thread each; it finds ``work`` in argv."""
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    command = (*launcher, "--nproc-per-node", str(ranks), "-m", module, "--worker", str(work))
    subprocess.run(command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)


def join_ranks() -> None:
    """Connect this process to the others that torchrun started."""
    environment = Environment.read(os.environ)
    environment.prefer_loopback()
    store = environment.prefixed(environment.connect(), "benchmark")
    dist.init_process_group(
        "gloo", store=store, rank=environment.rank, world_size=environment.world
    )


def gloo(artifact: Artifact) -> GlooTransport:
    return GlooTransport(artifact.manifest.mesh, PATIENCE)


def machine() -> dict[str, object]:
    """What numbers depend on, to stand beside them."""
    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load": round(os.getloadavg()[0], 1),
    }


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def write_json(path: Path | None, measured: object) -> None:
    """``--json``: the machine, and what was measured."""
    if path is not None:
        path.write_text(json.dumps({"machine": machine(), "measured": measured}, indent=1) + "\n")
