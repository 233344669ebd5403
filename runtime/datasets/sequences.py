"""Files of sequences (``.safetensors``): ``input_ids`` [N, S] and, optionally, ``labels`` [N, S].

Labels are as in Hugging Face: one for each id, not yet shifted (position t is trained to say
labels[t + 1]), −100 where there is none. Without labels the ids are the labels.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from schedc.diagnostics import Diagnostic, DiagnosticError

from .source import CHECKED, IGNORED, check_ids, refusal, unreadable


class SequenceFile:
    """One file, open for reading single rows."""

    def __init__(self, path: Path, sequence: int, vocabulary: int) -> None:
        self.path = path
        self.vocabulary = vocabulary
        try:
            self._file: Any = safe_open(path, framework="np")
        except SafetensorError as error:
            raise refusal(f"{path} is no safetensors file: {error}") from None
        names = set(self._file.keys())
        self.labelled = "labels" in names
        if "input_ids" not in names or names - {"input_ids", "labels"}:
            raise refusal(
                f"{path} has to hold input_ids and may hold labels; "
                f"it holds {', '.join(sorted(names)) or 'nothing'}",
                help="padding is said by labels of −100, positions and masks are not read",
            )
        shape = self._shape("input_ids")
        self.rows, self.length = shape
        if self.labelled and self._shape("labels") != shape:
            raise refusal(
                f"{path}: input_ids are {list(shape)}, labels {list(self._shape('labels'))}"
            )
        if 0 in shape:
            raise refusal(f"{path} is empty: input_ids are {list(shape)}")
        if self.length > sequence:
            raise refusal(
                f"{path} has sequences of {self.length}, the plan is compiled for {sequence}",
                help="shorter ones are padded, longer ones need a plan of their length",
            )
        step = max(1, 2**22 // self.length)
        for start in range(0, min(self.rows, CHECKED // self.length), step):
            self._read(start, min(start + step, self.rows))

    @property
    def identity(self) -> str:
        labels = "with labels" if self.labelled else "without labels"
        return f"sequences {self.path.name} {self.rows} {self.length} {labels}"

    def read(self, row: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        ids, labels = self._read(row, row + 1)
        return ids[0], np.append(labels[0, 1:], IGNORED)

    def _shape(self, name: str) -> tuple[int, int]:
        part = self._file.get_slice(name)
        shape = tuple(part.get_shape())
        if len(shape) != 2 or part.get_dtype()[0] not in "IU":
            raise refusal(
                f"{self.path}: {name} has to be integers of shape [N, S], "
                f"it is {part.get_dtype()} {list(shape)}"
            )
        return shape

    def _read(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        ids = self._file.get_slice("input_ids")[start:stop].astype(np.int64)
        check_ids(ids, self.vocabulary, f"{self.path}: input_ids", start)
        if not self.labelled:
            return ids, ids
        labels = self._file.get_slice("labels")[start:stop].astype(np.int64)
        check_ids(labels, self.vocabulary, f"{self.path}: labels", start, ignored=True)
        return ids, labels


class Sequences:
    """The sequences of several files, one file after another."""

    def __init__(self, paths: Sequence[Path], sequence: int, vocabulary: int) -> None:
        files: list[SequenceFile] = []
        problems: list[Diagnostic] = []
        for path in paths:
            try:
                files.append(SequenceFile(path, sequence, vocabulary))
            except DiagnosticError as error:
                problems += error.diagnostics
            except OSError as error:
                problems += unreadable(path, error).diagnostics
        if problems:
            raise DiagnosticError(problems)
        self.files = tuple(files)
        self.ends = tuple(accumulate(file.rows for file in files))
        plural = "s" * (len(files) != 1)
        self.name = f"{len(files)} file{plural} of sequences ({', '.join(map(str, paths))})"

    @property
    def identity(self) -> str:
        return "\n".join(file.identity for file in self.files)

    @property
    def sequences(self) -> int:
        return self.ends[-1]

    def read(self, index: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        number = bisect_right(self.ends, index)
        file = self.files[number]
        return file.read(index - (self.ends[number] - file.rows))

    def valid(self, index: int) -> int:
        return int(np.count_nonzero(self.read(index)[1] != IGNORED))
