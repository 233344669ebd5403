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
    last it ends on the first. Of two operations in one slot the chain names the one that waited.
    """
    dependencies = dependencies_of(timeline.order)
    start, end = np.concatenate(timeline.start), np.concatenate(timeline.end)
    first = set(dependencies.first.tolist())
    (comm,) = in_ticks((costs.comm,), timeline.tick)
    pairs: list[int] = dependencies.pairs.tolist()
    partner = {node: node + 1 for node in pairs} | {node + 1: node for node in pairs}
    node = int(np.argmax(end))
    path = [node]
    while start[node] > 0:
        head = min(node, partner.get(node, node))
        if head not in first and end[head - 1] == start[node]:
            node = head - 1
        else:
            neighbour = int(dependencies.neighbour[node])
            if neighbour < 0 or end[neighbour] + comm != start[node]:
                path[-1] = node = partner[node]
                neighbour = int(dependencies.neighbour[node])
            assert end[neighbour] + comm == start[node]
            node = neighbour
        path.append(node)
    return tuple(dependencies.place(node) for node in reversed(path))
