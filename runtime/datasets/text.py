"""Text files and folders, as bytes or through a tokenizer.

A file is text if its first 8 KiB are UTF-8 without a NUL. A folder is searched recursively; its
texts come in the order of their paths within it, whatever their names end in. Left out, and named
in the summary: hidden files and folders, installed packages, caches, links to folders, empty
files, files that are not text. A file named by the user is never left out but refused.
"""

from __future__ import annotations

import codecs
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from schedc.diagnostics import Diagnostic, DiagnosticError

from .source import refusal, unreadable
from .stream import Stream

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SEPARATOR = 0
"""The byte between two files: no text holds it. A tokenizer marks documents in its own way."""

LEFT_OUT = frozenset({"__pycache__", "site-packages", "dist-packages", "node_modules"})

SNIFFED = 8192


@dataclass(frozen=True, slots=True)
class Text:
    """The bytes of a file, read where they are asked for, and a separator if ``separated``."""

    path: Path
    name: str
    size: int
    separated: bool

    @property
    def identity(self) -> str:
        return f"text {self.name} {self.size}"

    @property
    def length(self) -> int:
        return self.size + self.separated

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        wanted = min(stop, self.size) - start
        try:
            with open(self.path, "rb", buffering=0) as file:
                file.seek(start)
                found = file.read(wanted) if wanted > 0 else b""
        except OSError as error:
            raise unreadable(self.path, error) from None
        if len(found) != max(wanted, 0):
            raise refusal(f"{self.path} had {self.size} bytes when the run began, now it has fewer")
        data = found + bytes([SEPARATOR]) if stop > self.size else found
        return np.frombuffer(data, dtype=np.uint8).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Encoded:
    """The tokens of a text, held in memory (4 bytes each)."""

    name: str
    ids: NDArray[np.uint32]

    @property
    def identity(self) -> str:
        return f"encoded {self.name} {len(self.ids)}"

    @property
    def length(self) -> int:
        return len(self.ids)

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        return self.ids[start:stop].astype(np.int64)


def open_text(
    paths: Sequence[Path], sequence: int, vocabulary: int, tokenizer: Path | None
) -> Stream:
    """The texts of files and folders as one stream of tokens, one text after another."""
    found: list[tuple[Path, str]] = []
    skipped: Counter[str] = Counter()
    problems: list[Diagnostic] = []
    for path in paths:
        try:
            found += _in_folder(path, skipped) if path.is_dir() else [_single(path)]
        except DiagnosticError as error:
            problems += error.diagnostics
        except OSError as error:
            problems += unreadable(path, error).diagnostics
    if problems:
        raise DiagnosticError(problems)
    name = f"{len(found)} text file{'s' * (len(found) != 1)} ({', '.join(map(str, paths))})"
    if skipped:
        name += f", left out: {', '.join(f'{what} {n}' for what, n in sorted(skipped.items()))}"
    if tokenizer is not None:
        encoder = _tokenizer(tokenizer)
        return Stream(name, tuple(_encoded(*text, encoder, vocabulary) for text in found), sequence)
    if vocabulary < 256:
        raise refusal(
            f"text as bytes needs a vocabulary of 256, the model's is {vocabulary}",
            help="give a tokenizer of that vocabulary, or token files",
        )
    last = len(found) - 1
    return Stream(
        f"{name} as bytes",
        tuple(
            Text(file, name, file.stat().st_size, separated=number < last)
            for number, (file, name) in enumerate(found)
        ),
        sequence,
    )


def _single(path: Path) -> tuple[Path, str]:
    kind = _kind(path)
    if kind == "empty":
        raise refusal(f"{path} is empty")
    if kind is not None:
        raise refusal(
            f"{path} is not text (UTF-8)",
            help="token files end in .bin, files of sequences in .safetensors",
        )
    return path, path.name


def _in_folder(folder: Path, skipped: Counter[str]) -> list[tuple[Path, str]]:
    """The texts below ``folder``, in the order of their paths; counts in ``skipped`` the others."""

    def refuse(error: OSError) -> None:
        raise unreadable(Path(error.filename or folder), error)

    found: list[tuple[Path, str]] = []
    others: Counter[str] = Counter()
    for at, folders, files in os.walk(folder, onerror=refuse):
        hidden = {
            name
            for name in folders
            if name.startswith(".") or name in LEFT_OUT or Path(at, name).is_symlink()
        }
        skipped["folders (hidden, installed packages, caches, links)"] += len(hidden)
        folders[:] = [name for name in folders if name not in hidden]
        for file in files:
            path = Path(at, file)
            kind = "hidden" if file.startswith(".") else _kind(path)
            if kind is None:
                found.append((path, path.relative_to(folder).as_posix()))
            else:
                others[kind] += 1
    if not found:
        raise refusal(
            f"no text in folder {folder}",
            notes=tuple(f"{kind} files: {n}" for kind, n in sorted(others.items())),
            help="name token files (.bin) and files of sequences (.safetensors) themselves",
        )
    skipped.update({f"{kind} files": n for kind, n in others.items()})
    for what in [what for what, n in skipped.items() if not n]:
        del skipped[what]
    return sorted(found, key=lambda text: os.fsencode(text[1]))


def _kind(path: Path) -> str | None:
    """Why a file is not used, or None if it is text."""
    try:
        if not path.is_file():
            return "special"
        with open(path, "rb", buffering=0) as file:
            head = file.read(SNIFFED)
    except OSError as error:
        raise unreadable(path, error) from None
    if not head:
        return "empty"
    try:
        # Not final: a character cut off by the end of the head is no fault.
        codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return "binary"
    return "binary" if b"\0" in head else None


def _tokenizer(path: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    file = path / "tokenizer.json" if path.is_dir() else path
    if not file.is_file():
        raise refusal(f"there is no tokenizer {file}")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises plain Exception
        raise refusal(f"cannot read tokenizer {file}: {error}") from None
    # Both may be set in the file, for inference: they would cut documents off, or fill them up.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _encoded(path: Path, name: str, tokenizer: Tokenizer, vocabulary: int) -> Encoded:
    """A document's tokens with the special ones that the tokenizer's post-processor puts round it
    (Llama's puts its begin-of-text before each)."""
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise unreadable(path, error) from None
    except UnicodeDecodeError as error:
        raise refusal(f"{path} is not UTF-8 at byte {error.start}") from None
    ids = np.array(tokenizer.encode(text).ids, dtype=np.uint32)
    if len(ids) and ids.max() >= vocabulary:
        largest = int(ids.max())
        raise refusal(
            f"the tokenizer makes token {largest} ({tokenizer.id_to_token(largest)!r}) of {path}, "
            f"but the model's vocabulary is {vocabulary} ids"
        )
    return Encoded(name, ids)
