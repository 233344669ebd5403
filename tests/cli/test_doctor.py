"""``schedc doctor``: on this machine, on others that a fake torch tells of, without torch."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from schedc.driver import doctor
from tests.cli.terminal import Terminal, schedc

__all__ = ["schedc"]

NAMES = (
    "Python", "torch", "CUDA", "NCCL", "flash-attn", "gloo", "dot", "cores", "memory", "disk",
)  # fmt: skip

OTHER_TORCH = """
from types import ModuleType, SimpleNamespace as Namespace
import sys

__version__ = "{version}"
version = Namespace(cuda={cuda!r})
gpu = Namespace(name="NVIDIA H200", total_memory=140 << 30, major={major}, minor=0)
cuda = sys.modules["torch.cuda"] = Namespace(
    is_available=lambda: {gpus} > 0,
    device_count=lambda: {gpus},
    get_device_properties=lambda index: gpu,
    nccl=Namespace(version=lambda: (2, 27, 5)),
)
distributed = sys.modules["torch.distributed"] = ModuleType("torch.distributed")
distributed.is_available = lambda: True
distributed.is_gloo_available = lambda: {gloo}
distributed.is_nccl_available = lambda: {nccl}
"""


def with_torch(folder: Path, text: str) -> dict[str, dict[str, object]]:
    """The findings where ``text`` is all of torch; the command must succeed."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(text)
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "schedc", "doctor", "--json"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return json.loads(done.stdout)


def other_torch(folder: Path, **values: object) -> dict[str, dict[str, object]]:
    usual = {"version": "2.12.0", "cuda": "12.8", "gpus": 2, "gloo": True, "nccl": True}
    usual["major"] = 9
    return with_torch(folder, OTHER_TORCH.format(**(usual | values)))


def test_this_machine(schedc: Terminal) -> None:
    found = schedc("doctor", "--json")
    assert found.code == 0
    findings = json.loads(found.out)
    assert tuple(findings) == ("schedc", *NAMES)
    assert findings["Python"]["detail"] == platform.python_version()
    assert findings["torch"] == {"found": True, "detail": torch.__version__, "cost": None}
    assert findings["CUDA"]["found"] == torch.cuda.is_available()
    assert findings["gloo"]["found"] == torch.distributed.is_gloo_available()
    assert findings["dot"]["found"] == (shutil.which("dot") is not None)
    assert int(findings["cores"]["detail"]) >= 1
    for name in NAMES:
        assert findings[name]["found"] or findings[name]["cost"], name


def test_a_line_each(schedc: Terminal) -> None:
    """The same as in JSON: what is there, what not, and after an arrow what that costs."""
    findings = json.loads(schedc("doctor", "--json").out)
    first, *lines = schedc("doctor").out.splitlines()
    assert first.startswith("schedc ")
    for name, line in zip(NAMES, lines, strict=True):
        finding = findings[name]
        assert line.startswith(f"{'+' if finding['found'] else '-'} {name} ")
        assert finding["detail"].split(" free")[0] in line or name == "disk"
        assert line.partition("→ ")[2] == (finding["cost"] or "")


def test_gpus(tmp_path: Path) -> None:
    findings = other_torch(tmp_path)
    assert findings["CUDA"]["detail"] == "12.8: 2 × NVIDIA H200, 140.0 GiB"
    assert findings["NCCL"] == {"found": True, "detail": "2.27.5", "cost": None}
    assert findings["CUDA"]["cost"] is None


@pytest.mark.parametrize(
    ("values", "name", "detail", "cost"),
    [
        ({"version": "2.4.1+cu121"}, "torch", "2.4.1+cu121", "2.11 or newer"),
        ({"gpus": 0}, "CUDA", "12.8, but no GPU", "CPUs"),
        ({"gpus": 0, "cuda": None, "nccl": False}, "NCCL", "not in this torch", "nothing"),
        ({"nccl": False}, "NCCL", "not in this torch", "the GPUs cannot be used"),
        ({}, "flash-attn", "not installed", "3 and 4 are faster"),
        ({"major": 8}, "flash-attn", "not installed", "nothing: torch ships"),
        ({"gloo": False}, "gloo", "not in this torch", "no run"),
    ],
)
def test_what_is_missing_and_what_that_costs(
    tmp_path: Path, values: dict[str, object], name: str, detail: str, cost: str
) -> None:
    finding = other_torch(tmp_path, **values)[name]
    assert (finding["found"], finding["detail"]) == (False, detail)
    assert cost in str(finding["cost"])


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        (
            "raise OSError('libcudart.so.12: no such file')",
            "OSError: libcudart.so.12: no such file",
        ),
        ("import os; os.abort()", "signal 6"),
        ("syntax error", "SyntaxError"),
    ],
)
def test_a_broken_torch_is_reported_not_suffered(tmp_path: Path, text: str, detail: str) -> None:
    findings = with_torch(tmp_path, text)
    assert findings["torch"]["found"] is False
    assert "broken" in str(findings["torch"]["detail"])
    assert detail in str(findings["torch"]["detail"])
    assert "nothing run" in str(findings["torch"]["cost"])
    for name in ("CUDA", "NCCL", "gloo"):
        assert findings[name] == {"found": False, "detail": "unknown", "cost": "see torch"}
    assert findings["Python"]["found"] is True


def test_without_torch(schedc: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_spec", lambda name: None)
    finding = json.loads(schedc("doctor", "--json").out)["torch"]
    assert (finding["found"], finding["detail"]) == (False, "not installed")


def test_flash_attention_of_any_version(
    schedc: Terminal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name, version in (("flash_attn", "2.8.3"), ("flash_attn_4", "4.0.0")):
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
    finding = json.loads(schedc("doctor", "--json").out)["flash-attn"]
    assert finding == {"found": True, "detail": "2.8.3, 4.0.0", "cost": None}


def test_a_folder_that_is_gone(
    schedc: Terminal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "here").rmdir()
    found = schedc("doctor", "--json")
    assert found.code == 0
    assert json.loads(found.out)["disk"]["found"] is False
