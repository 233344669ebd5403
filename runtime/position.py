"""Where a rank is, for everyone on its host to read: in memory that outlives the process.

The executor writes the row of each instruction before it starts it; a watchdog that judges a dead
or stopped rank reads exactly where that was.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from pathlib import Path

STEP, ROW, STEPPING = 0, 1, 2
"""What the numbers are: the step in progress, counted from 1 (0 before), its row, and whether the
rank steps through its program at all (1) or does something else (0)."""

FORMAT = struct.Struct("=qqq")
SHARED_MEMORY = Path("/dev/shm")


def private_position() -> memoryview:
    """A position that only this process sees."""
    return memoryview(bytearray(FORMAT.size)).cast("q")


class SharedPosition:
    """A position in a small file of its own, which ``remove`` deletes."""

    def __init__(self) -> None:
        folder = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
        prefix = f"schedc-{os.getpid()}-"
        with tempfile.NamedTemporaryFile(prefix=prefix, dir=folder, delete=False) as file:
            file.write(bytes(FORMAT.size))
            file.flush()
            self.path = Path(file.name)
            self.view = memoryview(mmap.mmap(file.fileno(), FORMAT.size)).cast("q")

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)


def read_position(path: Path) -> tuple[int, int, int] | None:
    """The position of another process on this host; None if its file is gone."""
    try:
        step, row, stepping = FORMAT.unpack(path.read_bytes())
    except (OSError, struct.error):
        return None
    return step, row, stepping
