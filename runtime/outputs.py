"""What a run writes: whether it can, before the work, and what is told where it cannot."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from schedc.diagnostics import Diagnostic, DiagnosticError
from schedc.runtime.config import RunConfig
from schedc.runtime.weights import STAGING, refuse_foreign


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises E904 where the system refuses to write ``path``."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise DiagnosticError(Diagnostic("E904", f"cannot write {path}: {why}")) from None


def prepare_outputs(config: RunConfig) -> TextIO | None:
    """Make the folders of what will be written, so that a mistake shows before the work."""
    written = (
        config.metrics,
        config.dump_gradients,
        config.times_out,
        config.trace_out,
        config.memory_out,
    )
    for path in (*written, config.export):
        if path is None:
            continue
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path in written and path.is_dir():
                raise IsADirectoryError(21, "it is a folder")
    for path in written:
        if path is not None:
            _probe(path)
    if config.export is not None:
        _probe_folder(config.export)
    if config.metrics is None:
        return None
    with writing(config.metrics):
        return config.metrics.open("w", encoding="utf-8")


def _probe(path: Path) -> None:
    """Raises E904 where ``path`` cannot be written; what is in it stays."""
    existed = path.exists()
    with writing(path):
        path.open("a").close()
    if not existed:
        path.resolve().unlink()  # not a link to what did not exist


def _probe_folder(path: Path) -> None:
    """Raises E903 or E904 where no checkpoint can be written to ``path``; nothing changes."""
    with writing(path):
        refuse_foreign(path)
        where = path if path.exists() else path.parent
        tempfile.TemporaryDirectory(prefix=STAGING, dir=where).cleanup()
