"""Files of tokens (``.bin``), memory-mapped.

A file is either raw little-endian integers, as nanoGPT's ``prepare.py`` writes (uint16; uint32 for
a vocabulary above 65536, or as the user says), or has the header of llm.c: 256 int32, first a
magic number that tells the width, a version, and the number of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from schedc.diagnostics import Diagnostic, DiagnosticError

from .source import CHECKED, check_ids, refusal, unreadable
from .stream import Stream

TokenType = Literal["uint16", "uint32"]

HEADER_BYTES = 1024
HEADERS: dict[tuple[int, int], TokenType] = {(20240520, 1): "uint16", (20240801, 7): "uint32"}
"""Magic number and version of llm.c's files for the vocabularies of GPT-2 and Llama 3."""


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A part of a stream that lies in a file. ``ids`` is mapped: only what is read is loaded."""

    path: Path
    ids: NDArray[np.integer]
    vocabulary: int

    @property
    def identity(self) -> str:
        return f"tokens {self.path.name} {self.ids.dtype.name} {len(self.ids)}"

    @property
    def length(self) -> int:
        return len(self.ids)

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        tokens = self.ids[start:stop].astype(np.int64)
        check_ids(tokens, self.vocabulary, str(self.path), start)
        return tokens


def open_tokens(
    paths: Sequence[Path], sequence: int, vocabulary: int, dtype: TokenType | None
) -> Stream:
    """Token files as one stream, in the order given; nothing is put between them."""
    files: list[TokenFile] = []
    problems: list[Diagnostic] = []
    for path in paths:
        try:
            files.append(_token_file(path, vocabulary, dtype))
        except DiagnosticError as error:
            problems += error.diagnostics
        except OSError as error:
            problems += unreadable(path, error).diagnostics
    if problems:
        raise DiagnosticError(problems)
    name = f"{len(files)} token file{'s' * (len(files) != 1)} ({', '.join(map(str, paths))})"
    return Stream(name, tuple(files), sequence)


def _token_file(path: Path, vocabulary: int, dtype: TokenType | None) -> TokenFile:
    size = path.stat().st_size
    header = _header(path, size)
    if header is not None:
        kind, offset = header, HEADER_BYTES
    else:
        kind, offset = dtype or ("uint16" if vocabulary <= 2**16 else "uint32"), 0
    width = np.dtype(kind).itemsize
    if size == offset:
        raise refusal(f"{path} is empty")
    if (size - offset) % width:
        raise refusal(
            f"{path} has {size} bytes, which are no whole number of {kind} tokens ({width} bytes)"
        )
    ids = np.memmap(path, dtype=np.dtype(kind).newbyteorder("<"), mode="r", offset=offset)
    if vocabulary <= np.iinfo(kind).max:
        step = 2**22
        for start in range(0, min(len(ids), CHECKED), step):
            check_ids(ids[start : start + step], vocabulary, str(path), start)
    return TokenFile(path, ids, vocabulary)


def _header(path: Path, size: int) -> TokenType | None:
    """The type that a header of llm.c tells; None if the file has no such header."""
    if size < HEADER_BYTES:
        return None
    magic, version, tokens = (int(n) for n in np.fromfile(path, dtype="<i4", count=3))
    kind = HEADERS.get((magic, version))
    if kind is None:
        return None
    held = (size - HEADER_BYTES) / np.dtype(kind).itemsize
    if tokens != held:
        raise refusal(f"the header of {path} says {tokens} {kind} tokens, the file holds {held:g}")
    return kind
