"""A replica's share of each batch."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from schedc.runtime.data import Batches
from schedc.runtime.datasets.source import IGNORED


class Share:
    """The rows of each batch that one replica trains on, microbatch by microbatch.

    A step's rows are read together, at the first question about the step: shuffling and opening
    files costs the same for one row as for many. ``batches`` is None for a run of no steps.
    """

    def __init__(
        self, batches: Batches | None, rows: tuple[range, ...], device: torch.device
    ) -> None:
        self.batches, self.rows, self.device = batches, rows, device
        self._step = -1
        self._tokens: NDArray[np.int64] = np.empty((0, 0), dtype=np.int64)
        self._labels = self._tokens

    def tokens(self, step: int, microbatch: int) -> Tensor:
        """The ids of a microbatch: int64 [microbatch, sequence], memory of its own."""
        self._read(step)
        return self._on_device(self._tokens[self._part(microbatch)])

    def labels(self, step: int, microbatch: int) -> Tensor:
        """The labels of a microbatch, already shifted, likewise."""
        self._read(step)
        return self._on_device(self._labels[self._part(microbatch)])

    def valid(self, step: int) -> int:
        """The number of valid labels of the whole share."""
        self._read(step)
        return int(np.count_nonzero(self._labels != IGNORED))

    def _on_device(self, rows: NDArray[np.int64]) -> Tensor:
        tensor = torch.from_numpy(rows.copy())
        if self.device.type == "cpu":
            return tensor
        # From pinned memory the host need not wait; torch keeps that until the copy is done.
        return tensor.pin_memory().to(self.device, non_blocking=True)

    def _part(self, microbatch: int) -> slice:
        rows, first = self.rows[microbatch], self.rows[0].start
        return slice(rows.start - first, rows.stop - first)

    def _read(self, step: int) -> None:
        if step == self._step:
            return
        assert self.batches is not None
        tokens, labels = self.batches.rows(step, self.rows[0].start, self.rows[-1].stop)
        # Copies, so that no tensor of the whole share stays: this is the host's memory.
        self._tokens, self._labels = tokens.numpy().copy(), labels.numpy().copy()
        self._step = step
