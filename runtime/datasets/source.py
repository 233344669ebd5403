"""What every source of sequences offers, and how one refuses data."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from schedc.diagnostics import Diagnostic, DiagnosticError

IGNORED = -100
"""The label of a position that has no part in the loss, as in Hugging Face."""

CHECKED = 2**27
"""So many values of a file are checked against the vocabulary when it is opened; all when read."""


class Source(Protocol):
    """A fixed number of sequences of at most the plan's length, each readable by its index.

    ``name`` describes the source to a person; ``identity`` names what it reads, without absolute
    paths, so that ranks on different machines can compare theirs.
    """

    @property
    def name(self) -> str: ...
    @property
    def identity(self) -> str: ...
    @property
    def sequences(self) -> int: ...

    def read(self, index: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Ids and labels of one sequence: equally long, labels already shifted, unpadded."""
        ...

    def valid(self, index: int) -> int:
        """How many labels of the sequence are not ignored."""
        ...


def refusal(message: str, help: str | None = None, notes: tuple[str, ...] = ()) -> DiagnosticError:
    """The error for data that cannot be used (E902)."""
    return DiagnosticError(Diagnostic("E902", message, help=help, notes=notes))


def unreadable(path: Path, error: OSError) -> DiagnosticError:
    return refusal(f"cannot read data {path}: {error.strerror or error}")


def check_ids(
    values: NDArray[np.integer], vocabulary: int, place: str, offset: int, ignored: bool = False
) -> None:
    """Refuse ids outside of the vocabulary (E902), with the place of the first one.

    ``values`` is a stretch of a token file (its first at ``offset``) or rows of a file of
    sequences (the first of them row ``offset``). ``ignored`` lets −100 pass.
    """
    wrong = (values < 0) | (values >= vocabulary)
    if ignored:
        wrong &= values != IGNORED
    if not wrong.any():
        return
    first = np.unravel_index(int(wrong.argmax()), values.shape)
    position = ", ".join(str(int(i) + (offset if axis == 0 else 0)) for axis, i in enumerate(first))
    raise refusal(
        f"{place}[{position}] is {int(values[first])}, "
        f"but the model's vocabulary is {vocabulary} ids, 0 to {vocabulary - 1}"
    )
