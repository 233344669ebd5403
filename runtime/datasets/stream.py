"""A stream of tokens, made of parts one after another, cut into sequences."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .source import refusal


class Part(Protocol):
    """A file's tokens. ``identity`` has no absolute path."""

    @property
    def identity(self) -> str: ...
    @property
    def length(self) -> int: ...

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """Tokens ``start`` to ``stop`` of the part; both lie within it."""
        ...


class Stream:
    """Contiguous windows of a stream of tokens.

    Sequence i reads ``sequence`` tokens from i · ``sequence`` on; the label of each is the token
    that follows it, also across the end of the window. Every token but the first is a label exactly
    once: the last window is shorter where the stream does not divide.
    """

    def __init__(self, name: str, parts: tuple[Part, ...], sequence: int) -> None:
        self.name = name
        self.parts = parts
        self.sequence = sequence
        self.ends = tuple(accumulate(part.length for part in parts))
        self.tokens = self.ends[-1] if parts else 0
        if self.tokens < 2:
            raise refusal(
                f"no training data in {name}: a token and its successor are needed, "
                f"there {'is 1 token' if self.tokens == 1 else 'are none'}"
            )

    @property
    def identity(self) -> str:
        return "\n".join(part.identity for part in self.parts)

    @property
    def sequences(self) -> int:
        return -(-(self.tokens - 1) // self.sequence)

    def read(self, index: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        start = index * self.sequence
        tokens = self._between(start, min(start + self.sequence + 1, self.tokens))
        return tokens[:-1], tokens[1:]

    def valid(self, index: int) -> int:
        return min(self.sequence, self.tokens - 1 - index * self.sequence)

    def _between(self, start: int, stop: int) -> NDArray[np.int64]:
        pieces: list[NDArray[np.int64]] = []
        number = bisect_right(self.ends, start)
        while start < stop:
            part, end = self.parts[number], self.ends[number]
            begin = end - part.length
            until = min(stop, end)
            pieces.append(part.read(start - begin, until - begin))
            start, number = until, number + 1
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
