"""What somebody may have meant: the nearest known word, the word another language uses."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

UNITS = (
    *("KB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB"),
    *("KB/s", "MB/s", "GB/s", "TB/s", "KiB/s", "MiB/s", "GiB/s", "TiB/s"),
    *("ns", "us", "ms", "s"),
    *("GFLOP/s", "TFLOP/s", "PFLOP/s"),
)

FOREIGN = {
    "elif": "write `else if`",
    "while": "every loop is finite here: `for x in a..b { … }` or `repeat n { … }`",
    "loop": "write `repeat n { … }`",
    "def": "write `schedule NAME { … }`; there are no functions",
    "var": "write `let NAME = …`",
    "const": "write `let NAME = …`",
    "assert": 'write `require CONDITION else "text"` or `check CLAIM`',
    "print": 'write `note "text {expression}"`',
    "range": "write `a..b`",
}
"""Words of other languages and what they are called here."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that ``word`` is most likely a misspelling of, if any is near."""
    candidates = sorted(set(known))
    by_case = [candidate for candidate in candidates if candidate.lower() == word.lower()]
    if by_case:
        return by_case[0]
    cutoff = 0.6 if len(word) > 2 else 0.5
    found = difflib.get_close_matches(word, candidates, n=1, cutoff=cutoff)
    return found[0] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """``did you mean `stages`?``, or None where nothing is near."""
    found = nearest(word, known)
    return f"did you mean `{found}`?" if found is not None else None
