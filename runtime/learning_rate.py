"""The learning rate of each step."""

from __future__ import annotations

import math
from typing import Literal

Schedule = Literal["constant", "cosine"]


def learning_rate(
    step: int,
    *,
    peak: float,
    warmup: int = 0,
    steps: int,
    schedule: Schedule = "constant",
    minimum: float = 0.0,
) -> float:
    """The learning rate of ``step`` (from 0) of a run of ``steps``.

    The ``warmup`` steps rise by equal parts, the last of them has the peak: with 3, the first three
    have peak/3, 2·peak/3, peak. ``constant`` stays there. ``cosine`` falls along half a cosine
    (Loshchilov and Hutter 2017, equation 5, one cycle) from the peak, at the last step of the
    warm-up or else at step 0, to ``minimum`` at the last step, and stays there after it.
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    if schedule == "constant":
        return peak
    top, last = max(warmup - 1, 0), steps - 1
    if step <= top:
        return peak
    if step >= last:
        return minimum
    return minimum + (peak - minimum) * (1 + math.cos(math.pi * (step - top) / (last - top))) / 2
