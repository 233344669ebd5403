"""What this machine and Python have of what schedc can use, and what each absence costs.

Needs no torch, and survives one that is broken: that is asked in a process of its own.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

OLDEST_TORCH = (2, 11)
RANKS_OF_THE_DEMO = 4
LITTLE_DISK = 2 << 30
"""Bytes: less than a checkpoint of a model with half a billion parameters."""

FLASH_ATTENTION = ("flash-attn", "flash-attn-3", "flash-attn-4")
"""Distributions: version 2 and, beside it or alone, 3 and 4."""

PATIENCE = 120
"""Seconds: torch on a cold network disk takes its time."""


@dataclass(frozen=True, slots=True)
class Finding:
    """``name`` is there (``found``) or not; ``detail`` says what; ``cost`` what that costs."""

    name: str
    found: bool
    detail: str
    cost: str = ""


def examine() -> tuple[Finding, ...]:
    """All findings, always the same names in the same order. Never raises for what is missing."""
    torch, problem = _ask_torch()
    return (
        Finding("Python", True, platform.python_version()),
        _torch(torch, problem),
        *_gpus(torch),
        _flash_attention(torch),
        _gloo(torch),
        _dot(),
        _cores(),
        _memory(),
        _disk(),
    )


# ---- torch --------------------------------------------------------------------------------------


def _ask_torch() -> tuple[dict[str, Any] | None, str]:
    """What the probe says, or why it says nothing."""
    if find_spec("torch") is None:
        return None, "not installed"
    probe = Path(__file__).with_name("torch_probe.py")
    command = [sys.executable, "-P", str(probe)]  # -P: its folder's modules are not for import
    try:
        done = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        return None, f"does not load within {PATIENCE} s"
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1]), ""  # torch may print lines of its own
    if done.returncode < 0:
        return None, f"broken: signal {-done.returncode} while it loads"
    lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    return None, f"broken: {lines[-1]}"


def _torch(torch: dict[str, Any] | None, problem: str) -> Finding:
    if torch is None:
        cost = "schedules can be checked and drawn, but no plan compiled and nothing run"
        return Finding("torch", False, problem, cost)
    version = torch["torch"]
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        return Finding("torch", False, version, f"schedc needs {oldest} or newer to compile or run")
    return Finding("torch", True, version)


def _gpus(torch: dict[str, Any] | None) -> tuple[Finding, Finding]:
    """CUDA and NCCL."""
    if torch is None:
        return _unknown("CUDA"), _unknown("NCCL")
    gpus = torch["gpus"]
    if gpus:
        names = {(gpu["name"], gpu["bytes"]) for gpu in gpus}
        kinds = ", ".join(f"{name}, {_size(amount)}" for name, amount in sorted(names))
        cuda = Finding("CUDA", True, f"{torch['cuda']}: {len(gpus)} × {kinds}")
    else:
        why = f"{torch['cuda']}, but no GPU" if torch["cuda"] else "not in this torch"
        cuda = Finding("CUDA", False, why, "runs use CPUs: right, but slow")
    if torch["nccl"] is not None:
        return cuda, Finding("NCCL", True, torch["nccl"])
    cost = "the GPUs cannot be used" if gpus else "nothing without GPUs"
    return cuda, Finding("NCCL", False, "not in this torch", cost)


def _gloo(torch: dict[str, Any] | None) -> Finding:
    if torch is None:
        return _unknown("gloo")
    if torch["gloo"]:
        return Finding("gloo", True, "in torch")
    return Finding("gloo", False, "not in this torch", "no run, on CPUs or GPUs: it sets them up")


def _unknown(name: str) -> Finding:
    return Finding(name, False, "unknown", "see torch")


def _flash_attention(torch: dict[str, Any] | None) -> Finding:
    """By what is installed: importing it would need a GPU."""
    versions = [version for name in FLASH_ATTENTION if (version := _version(name))]
    if versions:
        return Finding("flash-attn", True, ", ".join(versions))
    gpus = torch["gpus"] if torch is not None else []
    cost = "nothing without GPUs"
    if gpus:
        cost = "nothing: torch ships flash-attn 2"
    if any(gpu["capability"] >= [9, 0] for gpu in gpus):
        cost = "torch ships flash-attn 2; 3 and 4 are faster on such a GPU"
    return Finding("flash-attn", False, "not installed", cost)


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


# ---- the machine --------------------------------------------------------------------------------


def _dot() -> Finding:
    path = shutil.which("dot")
    if path is not None:
        return Finding("dot", True, path)
    return Finding("dot", False, "not on PATH", "nothing for bubble diagrams: they do not need it")


def _cores() -> Finding:
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    few = cores < RANKS_OF_THE_DEMO
    cost = f"the {RANKS_OF_THE_DEMO} ranks of the demo share them: right, but slower" if few else ""
    return Finding("cores", True, str(cores), cost)


def _memory() -> Finding:
    """What the machine has, or the control group allows if that is less."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return Finding("memory", False, "unknown", "nothing")
    limit = _number(Path("/sys/fs/cgroup/memory.max"))
    if limit is not None and limit < total:
        return Finding("memory", True, f"{_size(limit)} of the machine's {_size(total)}")
    return Finding("memory", True, _size(total))


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no such file; "max"
        return None


def _disk() -> Finding:
    try:
        here = Path.cwd()
        usage = shutil.disk_usage(here)
    except OSError as error:
        return Finding("disk", False, error.strerror or str(error), "nothing can be written here")
    cost = "a checkpoint may not fit" if usage.free < LITTLE_DISK else ""
    return Finding(
        "disk", True, f"{_size(usage.free)} free of {_size(usage.total)} in {here}", cost
    )


def _size(amount: int) -> str:
    return f"{amount / 2**30:.1f} GiB"
