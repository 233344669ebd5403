"""``schedc fmt``: sources with canonical spacing, indentation and alignment."""

from __future__ import annotations

import contextlib
import difflib
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from schedc.diagnostics import Diagnostic, DiagnosticError
from schedc.sema.library import decode, read_text
from schedc.syntax.format import format_source
from schedc.syntax.parse import make_source

STANDARD_INPUT = "<stdin>"


@click.command("fmt")
@click.argument("files", nargs=-1, required=True, metavar="FILE|FOLDER|- ...")
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if a file would change.")
@click.option("--diff", is_flag=True, help="Write nothing; print what would change.")
def command(files: tuple[str, ...], check: bool, diff: bool) -> None:
    """Format .sched files in place; `-` formats standard input to standard output.

    Comments, line ends and single blank lines stay; only white space changes, never the meaning.
    A folder stands for the .sched files in it. A file with errors is left as it is.
    """
    if "-" in files:
        if len(files) > 1:
            raise click.UsageError("`-` goes with no other file")
        _format_input(check, diff)
        return
    mistakes: list[Diagnostic] = []
    changed = total = 0
    for path in _paths(files):
        total += 1
        try:
            changed += _format_file(path, check, diff)
        except DiagnosticError as error:
            mistakes += error.diagnostics
    if not diff:
        counts = f"{changed} of {total} file{'s' if total > 1 else ''}"
        click.echo(f"{counts} would change" if check else f"{counts} changed", err=True)
    if mistakes:
        raise DiagnosticError(mistakes)
    if check and changed:
        sys.exit(1)


def _format_input(check: bool, diff: bool) -> None:
    text = decode(sys.stdin.buffer.read(), STANDARD_INPUT)
    formatted = format_source(make_source(STANDARD_INPUT, text))
    if diff:
        _print_difference(STANDARD_INPUT, text, formatted)
    elif check and formatted != text:
        click.echo(f"would change {STANDARD_INPUT}")
    elif not check:
        sys.stdout.buffer.write(formatted.encode())
    if check and formatted != text:
        sys.exit(1)


def _format_file(path: Path, check: bool, diff: bool) -> bool:
    """Whether the file is, or would be, changed."""
    text = read_text(path, str(path))
    formatted = format_source(make_source(str(path), text))
    if formatted == text:
        return False
    if diff:
        _print_difference(str(path), text, formatted)
    elif check:
        click.echo(f"would change {path}")
    else:
        try:
            _replace(path.resolve(), formatted.encode())
        except OSError as error:
            raise click.ClickException(f"cannot write {path}: {error.strerror}") from error
        click.echo(f"changed {path}")
    return True


def _print_difference(name: str, text: str, formatted: str) -> None:
    before, after = text.splitlines(keepends=True), formatted.splitlines(keepends=True)
    for line in difflib.unified_diff(before, after, name, f"{name} (formatted)"):
        click.echo(line, nl=False)
        if not line.endswith("\n"):
            click.echo("\n\\ No newline at end of file")


def _replace(path: Path, content: bytes) -> None:
    """Write a file as a whole or not at all; its permissions stay."""
    mode = stat.S_IMODE(path.stat().st_mode)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _paths(names: tuple[str, ...]) -> Iterator[Path]:
    """Each file once, in the order given; those of a folder sorted, hidden folders left out."""
    seen: set[Path] = set()
    for name in names:
        path = Path(name)
        for found in _inside(path) if path.is_dir() else (path,):
            resolved = found.resolve()
            if resolved not in seen:
                seen.add(resolved)
                yield found


def _inside(folder: Path) -> Iterator[Path]:
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(where, name) for name in sorted(files) if name.endswith(".sched"))
