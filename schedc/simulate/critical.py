"""The critical path: why a timeline is as long as it is."""

from __future__ import annotations

import numpy as np

from schedc.ir.cost import StageCosts
from schedc.ir.dependencies import dependencies_of
from schedc.ir.timeline import Timeline
from schedc.simulate.ticks import in_ticks


def critical_path(timeline: Timeline, costs: StageCosts) -> tuple[tuple[int, int], ...]:
    """A chain of operations without slack from time 0 to the last end, as (rank, index) places.

    Each operation starts exactly when the one before it ends (on the same rank), or when that
    one's message arrives. Where both hold, the chain stays on the rank; of several ranks that end
    last it ends on the first.
    """
    dependencies = dependencies_of(timeline.order)
    start, end = np.concatenate(timeline.start), np.concatenate(timeline.end)
    first = set(dependencies.first.tolist())
    (comm,) = in_ticks((costs.comm,), timeline.tick)
    node = int(np.argmax(end))
    path = [node]
    while start[node] > 0:
        if node in first or end[node - 1] < start[node]:
            node = int(dependencies.neighbour[node])
            assert end[node] + comm == start[path[-1]]
        else:
            node -= 1
        path.append(node)
    return tuple(dependencies.place(node) for node in reversed(path))
