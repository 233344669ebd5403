"""Training data: which sequences make up a step, and which of them a rank reads.

A step's batch is B rows. Row r of step t is sample t · B + r of an endless run through
the data: sample k is sequence k mod N of pass k div N, N being the number of sequences. So a batch
may reach over the end of the data into the next pass, nothing is dropped, data smaller than a batch
repeats within it, and the data never ends before the steps do. Each pass has its own order, derived
from seed and pass; in file order (``--shuffle off``, and always for a file of sequences) every pass
is the same.

Nothing is carried from step to step: any rank gets any rows of any step by asking, so a resumed run
is exact, and first and last stage read the same sequences.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from schedc.diagnostics import Diagnostic, DiagnosticError
from schedc.program.manifest import Manifest

from .datasets.sequences import Sequences
from .datasets.shuffle import shuffled
from .datasets.source import IGNORED, Source, refusal
from .datasets.text import open_text
from .datasets.tokens import TokenType, open_tokens

PADDING = 0
"""The id that fills up short sequences; its labels are ignored."""


@dataclass(frozen=True, slots=True)
class Batches:
    """The batches of a run, by step (from 0).

    Data that is read ``once`` ends: what a batch has beyond its end is padding, all ignored.
    """

    source: Source
    sequence: int
    batch_size: int
    seed: int
    shuffle: bool
    once: bool = False

    @property
    def sequences(self) -> int:
        """How many sequences one pass over the data has."""
        return self.source.sequences

    @property
    def summary(self) -> str:
        """A line for people: what is read, and how often."""
        line = f"{self.source.name}: {self.sequences:,} sequences of {self.sequence}, "
        line += f"shuffled by seed {self.seed}" if self.shuffle else "in order"
        if self.sequences < self.batch_size and not self.once:
            line += f"; fewer than a batch of {self.batch_size}: they repeat within each step"
        return line

    @property
    def fingerprint(self) -> str:
        """Equal on two ranks if they read the same files (by name and size) in the same way."""
        how = f"{self.sequence} {self.batch_size} {self.seed} {self.shuffle}\n"
        return hashlib.sha256((how + self.source.identity).encode(errors="replace")).hexdigest()

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """All rows of a step."""
        return self.rows(step, 0, self.batch_size)

    def rows(self, step: int, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Ids and labels of rows ``start`` to ``stop`` of a step's batch.

        Both are int64 [stop − start, sequence]. Labels are already shifted: the one of position t
        is what follows id t, −100 where it is ignored.
        """
        ids = np.full((stop - start, self.sequence), PADDING, dtype=np.int64)
        labels = np.full((stop - start, self.sequence), IGNORED, dtype=np.int64)
        for row, index in enumerate(self._indices(step, start, stop)):
            if self.once and step * self.batch_size + start + row >= self.sequences:
                break
            found, shifted = self.source.read(int(index))
            ids[row, : len(found)] = found
            labels[row, : len(shifted)] = shifted
        return torch.from_numpy(ids), torch.from_numpy(labels)

    def valid(self, step: int, rows: range) -> int:
        """How many labels of some rows of a step are not ignored."""
        return sum(
            self.source.valid(int(index)) for index in self._indices(step, rows.start, rows.stop)
        )

    def _indices(self, step: int, start: int, stop: int) -> NDArray[np.int64]:
        """The sequence that each of the rows reads."""
        assert step >= 0, f"step {step}"
        assert 0 <= start <= stop <= self.batch_size, f"rows {start} to {stop} of {self.batch_size}"
        samples = step * self.batch_size + np.arange(start, stop, dtype=np.int64)
        epochs, positions = np.divmod(samples, self.sequences)
        if not self.shuffle:
            return positions
        indices = np.empty_like(positions)
        for epoch in np.unique(epochs):
            at = epochs == epoch
            indices[at] = shuffled(positions[at], self.sequences, self.seed, int(epoch))
        return indices


def microbatch_rows(manifest: Manifest, dp: int, microbatch: int, evaluates: bool = False) -> range:
    """The rows of a batch, or of an evaluation's pass, that are one microbatch of a dp coordinate.

    The same for every stage, cp and tp coordinate. Each dp coordinate has one stretch of
    the batch, its microbatches in order; the last may be smaller.
    """
    each = (manifest.evaluation if evaluates else manifest.batch) // manifest.mesh.dp
    first, end = microbatch * manifest.microbatch, (microbatch + 1) * manifest.microbatch
    return range(dp * each + first, dp * each + min(end, each))


def open_data(
    paths: Sequence[Path],
    *,
    sequence: int,
    vocabulary: int,
    batch: int,
    seed: int,
    shuffle: bool | None = None,
    tokenizer: Path | None = None,
    dtype: TokenType | None = None,
    once: bool = False,
) -> Batches:
    """Open what ``--data`` names: texts (files, folders), token files, or files of sequences.

    ``.bin`` are tokens, ``.safetensors`` sequences, all else is text. ``shuffle`` None means: texts
    and tokens yes, sequences no. ``dtype`` says how wide the tokens of a raw ``.bin`` are. Raises
    E902 for data that is missing, empty, of mixed kinds, too long, or outside of the vocabulary.
    """
    kind = _kind(paths)
    if kind != "text" and tokenizer is not None:
        raise refusal(f"a tokenizer is for text, but the data is already {kind}")
    if kind == "sequences":
        if shuffle:
            raise refusal("a file of sequences is read in order, it cannot be shuffled")
        source: Source = Sequences(paths, sequence, vocabulary)
        return Batches(source, sequence, batch, seed, False, once)
    if kind == "tokens":
        source = open_tokens(paths, sequence, vocabulary, dtype)
    else:
        source = open_text(paths, sequence, vocabulary, tokenizer)
    return Batches(source, sequence, batch, seed, shuffle is not False, once)


def _kind(paths: Sequence[Path]) -> str:
    """The one kind that the paths are of; refuses none, several, and missing files."""
    if not paths:
        raise refusal("no data given", help="--data FILE_OR_FOLDER …")
    missing = [path for path in paths if not path.exists()]
    if missing:
        raise DiagnosticError(Diagnostic("E902", f"there is no data {path}") for path in missing)
    suffixes = {".bin": "tokens", ".safetensors": "sequences"}
    kinds = {path: "text" if path.is_dir() else suffixes.get(path.suffix, "text") for path in paths}
    if len(set(kinds.values())) > 1:
        raise refusal(
            "data of different kinds cannot be mixed",
            notes=tuple(f"{path} is {what}" for path, what in kinds.items()),
        )
    return kinds[paths[0]]
