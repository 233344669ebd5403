"""The frame of the command line: exit status, colour, what is loaded, and broken input."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest

import schedc as package
from schedc.cli.main import COMMANDS
from tests.cli.terminal import Terminal, schedc
from tests.driver.plans import BLOCKED, PLAN

__all__ = ["schedc"]

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "schedc"]


def test_exit_status(schedc: Terminal, tmp_path: Path) -> None:
    (tmp_path / "b.sched").write_text(BLOCKED)
    assert schedc("check", "gpipe").code == 0
    assert schedc("check", tmp_path / "b.sched").code == 1
    assert schedc("check").code == 2
    assert schedc("check", "gpipe", "--soup").code == 2
    assert schedc("check", "gpipe", "zb_h1").code == 2
    assert schedc().code == 2


def test_version_and_help(schedc: Terminal) -> None:
    assert schedc("--version").out == f"schedc, version {package.__version__}\n"
    for flag in ("-h", "--help"):
        found = schedc(flag)
        assert found.code == 0
        for command in COMMANDS:
            assert re.search(rf"^  {command} ", found.out, re.M)
            assert schedc(command, flag).code == 0


def test_unknown_commands(schedc: Terminal) -> None:
    found = schedc("chekc", "gpipe")
    assert found.code == 2
    assert "Did you mean 'check'?" in found.err
    assert schedc("frobnicate").code == 2


def test_a_bug_of_ours(schedc: Terminal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Status 3, the version, and a command line that can be pasted."""

    def broken(_: str) -> None:
        raise KeyError("who")

    monkeypatch.setattr("schedc.cli.check_command.all_targets", broken)
    monkeypatch.setattr(sys, "argv", ["schedc", "check", "my file.sched"])
    found = schedc("check", "my file.sched")
    assert found.code == 3
    assert f"schedc {package.__version__} has a bug: KeyError: 'who'" in found.err
    assert "schedc check 'my file.sched'" in found.err
    assert "SCHEDC_TRACEBACK=1" in found.err
    monkeypatch.setenv("SCHEDC_TRACEBACK", "1")
    with pytest.raises(KeyError):
        schedc("check", "my file.sched")


# ---- broken input -------------------------------------------------------------------------------

BROKEN: dict[str, bytes] = {
    "empty": b"",
    "blank": b" \n\t\r\n",
    "comment": b"# only",
    "binary": bytes(range(256)),
    "utf-16": "schedule s {}".encode("utf-16"),
    "nul": b"schedule s {\0}",
    "half": b"schedule s { place stage s on rank s",
    "brackets": b"(" * 5000,
    "blocks": b"schedule s { place stage s on rank s order on rank r " + b"{ if true " * 3000,
    "number": b"schedule s { let x = " + b"9" * 10000 + b" }",
    "one line": b"schedule s { place stage s on rank s order on rank r { } }" * 40,
    "html": b"<!DOCTYPE html><html><body>404</body></html>",
    "json": b'{"schedule": "gpipe"}',
    "python": b"def f():\n    return 3\n",
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_broken_files(schedc: Terminal, data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "b.sched"
    path.write_bytes(data)
    for command in ("check", "compile", "viz", "simulate"):
        found = schedc(command, path)
        assert found.code == 1, found.shown
        assert re.search(r"^error\[E\d{3}\]: ", found.err, re.M)
        assert str(path) in found.err


def test_what_is_no_file(schedc: Terminal, tmp_path: Path) -> None:
    (tmp_path / "folder.sched").mkdir()
    for target in (tmp_path, tmp_path / "folder.sched", tmp_path / "none.sched", "", "a/b:c", ":"):
        found = schedc("check", target)
        assert found.code == 1, found.shown
        assert re.search(r"^error\[E2\d\d\]: ", found.err, re.M)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_files_without_permission(schedc: Terminal, tmp_path: Path) -> None:
    path = tmp_path / "b.sched"
    path.write_text(PLAN)
    path.chmod(0)
    found = schedc("check", path)
    assert found.code == 1
    assert "Permission denied" in found.err
    path.chmod(0o600)
    tmp_path.chmod(0o500)
    try:
        for arguments in (
            ["compile", path, "-o", tmp_path / "o"],
            ["viz", path, "-o", tmp_path / "o.svg"],
        ):
            found = schedc(*arguments)
            assert found.code == 2
            assert "Permission denied" in found.err
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.parametrize("size", ["10 ** 9", "65537", str(10**40), "2 ** 5000", "1.5", "-3"])
def test_impossible_sizes(schedc: Terminal, size: str) -> None:
    for letter in "PM" if size != "65537" else "P":  # so many microbatches are possible
        found = schedc("check", "one_f_one_b", "--set", f"{letter}={size}")
        assert found.code == 1, found.shown
        assert re.search(r"^error\[E2\d\d\]: ", found.err, re.M)


# ---- colour, terminals, pipes -------------------------------------------------------------------


def in_a_terminal(*arguments: str, **environment: str) -> str:
    """What a command shows where its output is a terminal."""
    ours, theirs = pty.openpty()
    kept = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLORTERM", "COLUMNS")}
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
        env={**kept, "TERM": "xterm-256color", **environment},
        cwd=ROOT,
    )
    os.close(theirs)
    data = b""
    while select.select([ours], [], [], 60)[0]:
        try:
            read = os.read(ours, 65536)
        except OSError:  # Linux says so where all writers are gone
            break
        if not read:
            break
        data += read
    os.close(ours)
    process.wait(60)
    return data.decode()


def test_colour_in_a_terminal() -> None:
    assert "\x1b[" in in_a_terminal("viz", "gpipe")
    assert "\x1b[" not in in_a_terminal("viz", "gpipe", NO_COLOR="1")
    assert "\x1b[" in in_a_terminal("check", "none.sched", NO_COLOR=""), "empty is not set"
    assert "\x1b[" not in in_a_terminal("check", "none.sched", "--color", "never")


def test_a_pipe_has_no_colour(schedc: Terminal, tmp_path: Path) -> None:
    (tmp_path / "b.sched").write_text(BLOCKED)
    for arguments in (["check", "zb_h1"], ["viz", "zb_h1"], ["simulate", "zb_h1"], ["list"],
                      ["check", tmp_path / "b.sched"]):  # fmt: skip
        assert "\x1b" not in schedc(*arguments).shown
    assert "\x1b[" in schedc("viz", "zb_h1", "--color", "always").out
    assert "\x1b[" in schedc("check", "zb_h1", "--color", "always").out
    assert "\x1b[" in schedc("check", tmp_path / "b.sched", "--color", "always").err


def test_a_terminal_without_unicode() -> None:
    for command in ("viz", "check"):
        done = subprocess.run(
            [*COMMAND, command, "gpipe"],
            env={**os.environ, "PYTHONIOENCODING": "latin-1"},
            cwd=ROOT,
            capture_output=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        assert b"33" in done.stdout
        assert "−".encode() not in done.stdout


def test_a_reader_that_leaves() -> None:
    """As in ``schedc … | head -1``: no traceback, no complaint."""
    process = subprocess.Popen(
        [*COMMAND, "compile", "interleaved", "--emit", "program", "--set", "P=8", "--set", "M=64"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b"schedc program 1\n"
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(60) in (0, 1)  # as click has it


# ---- what is loaded -----------------------------------------------------------------------------

SPY = """
import json, sys
from schedc.cli.main import main
codes = []
for arguments in json.loads(sys.argv[1]):
    try:
        main(arguments)
        codes.append(0)
    except SystemExit as stop:
        codes.append(stop.code)
names = sorted(name for name in sys.modules if "." not in name)
distributed = None
if "torch" in names:
    import torch.distributed
    distributed = torch.distributed.is_initialized()
print("SPY", json.dumps([codes, names, distributed]))
"""


def loaded_by(*commands: list[str]) -> tuple[list[str], bool | None]:
    """The modules that the commands load, and whether a process group was made."""
    done = subprocess.run(
        [sys.executable, "-c", SPY, json.dumps(commands)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "SPY" in done.stdout, done.stderr
    codes, names, distributed = json.loads(done.stdout.rpartition("SPY ")[2])
    assert codes == [0] * len(commands), done.stderr
    return names, distributed


def test_bare_schedules_need_neither_torch_nor_networkx() -> None:
    names, _ = loaded_by(
        ["--help"], ["--version"], ["list"], ["explain", "E401"], ["check", "--help"],
        ["compile", "--help"], ["simulate", "--help"], ["check", "zb_h1"],
        ["check", "zb_h1", "--json"], ["viz", "zb_h1"], ["simulate", "zb_h1"],
        ["compile", "zb_h1", "--emit", "program"], ["compile", "llama_tiny_zb", "--emit", "plan"],
        ["fmt", "--check", "schedules", "docs/examples"],
    )  # fmt: skip
    assert "numpy" in names
    assert not {"torch", "networkx", "transformers", "ortools"} & set(names)


def test_help_needs_hardly_anything() -> None:
    names, _ = loaded_by(["--help"], ["--version"])
    assert not {"torch", "networkx", "numpy", "lark", "rich"} & set(names)


def test_plans_need_no_process_group(tmp_path: Path) -> None:
    path = tmp_path / "p.sched"
    path.write_text(PLAN)
    names, distributed = loaded_by(
        ["check", str(path)], ["compile", str(path), "-o", str(tmp_path / "out")]
    )
    assert "torch" in names
    assert distributed is False
    assert "transformers" not in names
