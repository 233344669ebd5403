"""How long the parts of a program take, in whole ticks: what simulator and virtual run both use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Durations:
    """Durations in ticks of ``tick`` time units.

    The clock of a rank moves so:

    * a ``run`` takes the sum of its calls; a ``Reduce`` step is posted where it stands among them;
    * a message is there ``message`` ticks after it was sent; posting takes no time, and waiting for
      one's own send takes none either (though it blocks until the peer has posted its receive);
    * a rank's reductions follow one another: each starts when it was posted and the one before it
      has ended, and takes ``reduce[unit]``;
    * ``count`` takes ``count`` from its post; ``norm`` and ``report`` start when the last pipeline
      rank has posted them, ``tie`` when both of its ranks have, and take ``norm``, ``report`` and
      ``tie``;
    * ``step`` takes ``step[rank]``; ``load`` takes nothing.

    Replicas (dp) run the same program at the same speed, so one of them is timed.
    """

    tick: Fraction
    calls: Mapping[str, int]  # by graph
    message: int
    reduce: Mapping[str, int]  # by unit
    count: int
    norm: int
    step: tuple[int, ...]
    report: int
    tie: int = 0
