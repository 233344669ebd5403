"""``schedc fmt``: what it writes, what it leaves alone, and its exit status."""

import io
import os
import stat
from pathlib import Path

import pytest

from schedc.cli.main import main

MESSY = "schedule s{ place stage s on rank s\r\n\torder on rank r {F(r,0)} }"
TIDY = "schedule s {\n    place stage s on rank s\n    order on rank r { F(r, 0) }\n}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fmt(*arguments: str) -> int:
    """The exit status."""
    try:
        main(["fmt", *arguments])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_a_file_is_rewritten_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "a.sched"
    path.write_bytes(b"\xef\xbb\xbf" + MESSY.encode())
    path.chmod(0o640)
    assert fmt("a.sched") == 0
    assert path.read_bytes() == TIDY.encode()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(folder) == ["a.sched"]
    assert capsys.readouterr().out == "changed a.sched\n"
    before = path.stat()
    assert fmt("a.sched") == 0
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert capsys.readouterr().out == ""


def test_check_and_diff_write_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "a.sched").write_text(MESSY, newline="")
    (folder / "b.sched").write_text(TIDY)
    assert fmt("--check", ".") == 1
    assert capsys.readouterr().out == "would change a.sched\n"
    assert fmt("--check", "b.sched") == 0
    assert fmt("--diff", ".") == 0
    printed = capsys.readouterr().out
    assert printed.startswith("--- a.sched\n+++ a.sched (formatted)\n@@")
    assert "\n+    place stage s on rank s\n" in printed
    assert fmt("--diff", "--check", ".") == 1
    assert (folder / "a.sched").read_bytes() == MESSY.encode()


def test_links_are_followed_and_files_done_once(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "sub").mkdir()
    (folder / ".hidden").mkdir()
    for name in ("sub/a.sched", ".hidden/c.sched", "sub/d.txt"):
        (folder / name).write_text(MESSY, newline="")
    (folder / "link.sched").symlink_to("sub/a.sched")
    assert fmt(".") == 0
    assert capsys.readouterr().out == "changed link.sched\n"
    assert (folder / "link.sched").is_symlink()
    assert (folder / "sub" / "a.sched").read_text() == TIDY
    assert (folder / ".hidden" / "c.sched").read_bytes() == MESSY.encode()


def test_broken_files_stay_and_are_told_together(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "a.sched").write_text("schedule s {  ")
    (folder / "b.sched").write_text(MESSY)
    (folder / "c.sched").write_bytes(b"\xff")
    assert fmt("a.sched", "b.sched", "c.sched", "d.sched") == 1
    told = capsys.readouterr().err
    assert [code for code in ("E105", "E107", "E212") if code in told] == ["E105", "E107", "E212"]
    assert "a.sched:1:13" in told
    assert (folder / "a.sched").read_text() == "schedule s {  "
    assert (folder / "b.sched").read_text() == TIDY


def standard_input(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_standard_input(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    for arguments, status, printed in (
        (["-"], 0, TIDY.encode()),
        (["-", "--check"], 1, b"would change <stdin>\n"),
    ):
        standard_input(monkeypatch, MESSY.encode())
        assert fmt(*arguments) == status
        assert capfdbinary.readouterr().out == printed
    standard_input(monkeypatch, b"plan")
    assert fmt("-") == 1
    assert b"<stdin>:1:5" in capfdbinary.readouterr().err
    assert fmt("-", "a.sched") == 2
    assert fmt() == 2


def test_an_error_of_ours_leaves_the_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Were the formatter to change the meaning, nothing would be written."""
    from schedc.syntax import format as formatter

    monkeypatch.setattr(formatter, "write_lines", lambda *_: TIDY.replace("F(r, 0)", "F(r, 1)"))
    (folder / "a.sched").write_text(MESSY, newline="")
    assert fmt("a.sched") == 3
    assert "another meaning" in capsys.readouterr().err
    assert (folder / "a.sched").read_bytes() == MESSY.encode()


def test_a_file_that_cannot_be_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    (folder / "a.sched").write_text(MESSY, newline="")
    monkeypatch.setattr("os.replace", full)
    assert fmt("a.sched") == 1
    assert "cannot write a.sched: No space left on device" in capsys.readouterr().err
    assert os.listdir(folder) == ["a.sched"]
    assert (folder / "a.sched").read_bytes() == MESSY.encode()
