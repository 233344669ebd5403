"""Deadlocks of an order: what can never start, and the shortest cycle that says why."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from schedc.ir.dependencies import Dependencies

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Wait:
    """One step of a cycle: operation ``waiting`` needs the result of ``needed``.

    The next step's ``waiting`` stands at or before ``needed`` in the order of the same rank, or in
    one slot with it, so that ``needed`` in turn comes only after it. The last step leads back to
    the first.
    """

    waiting: int
    needed: int


def completed(dependencies: Dependencies) -> list[int]:
    """How far each rank gets before it waits for ever: all of its operations if nothing deadlocks.

    Linear in the number of operations. Inputs that are missing altogether are not waited for.
    """
    if len(dependencies.pairs):
        return _completed_slots(dependencies)
    first = dependencies.first.tolist()
    inputs = list(zip(dependencies.own.tolist(), dependencies.neighbour.tolist(), strict=True))
    ranks = len(first) - 1
    done = [False] * len(inputs)
    waiter = [-1] * len(inputs)  # the rank that waits for an operation: never more than one
    cursor = first[:-1]
    runnable = list(range(ranks))
    while runnable:
        rank = runnable.pop()
        for node in range(cursor[rank], first[rank + 1]):
            own, neighbour = inputs[node]
            missing = next((i for i in (own, neighbour) if i >= 0 and not done[i]), -1)
            if missing >= 0:
                waiter[missing] = rank
                break
            done[node] = True
            cursor[rank] = node + 1
            if waiter[node] >= 0:
                runnable.append(waiter[node])
    return [cursor[rank] - first[rank] for rank in range(ranks)]


def _completed_slots(dependencies: Dependencies) -> list[int]:
    """As :func:`completed`, where the two operations of a pair wait for the inputs of both."""
    first, rank_of = dependencies.first.tolist(), dependencies.rank.tolist()
    own, neighbour = dependencies.own.tolist(), dependencies.neighbour.tolist()
    pairs = set(dependencies.pairs.tolist())
    ranks = len(first) - 1
    done = [False] * len(own)
    cursor, runnable = first[:-1], list(range(ranks))
    waiting: dict[int, int] = {}
    while runnable:
        rank = runnable.pop()
        while cursor[rank] < first[rank + 1]:
            node = cursor[rank]
            members = (node, node + 1) if node in pairs else (node,)
            needed = (i for member in members for i in (own[member], neighbour[member]))
            missing = next((i for i in needed if i >= 0 and not done[i]), -1)
            if missing >= 0:
                waiting[missing] = rank_of[node]
                break
            for member in members:
                done[member] = True
                if member in waiting:
                    runnable.append(waiting.pop(member))
            cursor[rank] += len(members)
    return [cursor[rank] - first[rank] for rank in range(ranks)]


def shortest_cycle(dependencies: Dependencies, reached: list[int]) -> tuple[Wait, ...]:
    """A cycle with the fewest steps among data dependencies and rank orders.

    ``reached`` is what :func:`completed` found, and falls short of the order's end somewhere.
    """
    here = _backwards_on_a_rank(dependencies)
    if here is not None:
        return (here,)
    lengths = np.diff(dependencies.first) - np.asarray(reached, dtype=np.int64)
    starts = dependencies.first[:-1] + np.asarray(reached)
    return tuple(
        _wait(dependencies, int(starts[a]) + waiting, int(starts[b]) + needed)
        for a, waiting, b, needed in shortest_chain_cycle(
            _prefix_edges(dependencies, reached), lengths
        )
    )


def _wait(dependencies: Dependencies, head: int, tail: int) -> Wait:
    """The step from the slot that begins with ``head`` to the one that ends with ``tail``."""
    pairs = set(dependencies.pairs.tolist())
    waiting = (head, head + 1) if head in pairs else (head,)
    needed = (tail - 1, tail) if tail - 1 in pairs else (tail,)
    return next(
        Wait(node, source)
        for node in waiting
        for source in needed
        if dependencies.neighbour[node] == source
    )


Hop = tuple[int, int, int, int]
"""(chain, waiting, other chain, needed): a node of a chain waits for one of another chain."""


def shortest_chain_cycle(edges: dict[tuple[int, int], Counts], lengths: Counts) -> tuple[Hop, ...]:
    """A cycle with the fewest hops between chains, whose nodes each come after the one before.

    ``edges[a, b][n]`` says how long a prefix of chain b the first n nodes of chain a wait for, and
    ``lengths`` how many nodes the chains have. No chain's first node is free to go.

    A cycle visits no chain twice (it could be cut short there), so a hop per chain is the most.
    What a node waits for in exactly k hops is, on each chain, a prefix: one number a chain. For all
    nodes of a chain at once, one hop is one look-up per pair of chains. A chain that is on no cycle
    shorter than the best known one is left out from there on.
    """
    best = _cycle_of_heads(edges)
    for chain in range(len(lengths)):
        found = _shortest_through(chain, edges, lengths, below=len(best))
        best = found if found is not None else best
        if len(best) == 2:
            break
        edges = {(a, b): edge for (a, b), edge in edges.items() if chain not in (a, b)}
    return best


def _backwards_on_a_rank(dependencies: Dependencies) -> Wait | None:
    """The first operation that its own rank runs before one it needs, or in one slot with it."""
    slots = dependencies.slots
    for needed in (dependencies.own, dependencies.neighbour):
        same = (needed >= 0) & (dependencies.rank[needed] == dependencies.rank)
        later = same & (slots[needed] >= slots)
        if later.any():
            node = int(np.argmax(later))
            return Wait(node, int(needed[node]))
    return None


def _cycle_of_heads(edges: dict[tuple[int, int], Counts]) -> tuple[Hop, ...]:
    """A cycle that the first nodes of chains form: a bound on the shortest one."""
    hops: dict[int, Hop] = {}
    for (a, b), edge in edges.items():
        if edge[1]:
            hops.setdefault(a, (a, 0, b, int(edge[1]) - 1))
    walk: list[int] = []
    chain = next(iter(hops))
    while chain not in walk:
        walk.append(chain)
        chain = hops[chain][2]
    return tuple(hops[a] for a in walk[walk.index(chain) :])


def _prefix_edges(dependencies: Dependencies, reached: list[int]) -> dict[tuple[int, int], Counts]:
    """``edges[a, b][n]``: how long a prefix of rank b the first n operations of rank a wait for.

    Prefixes count from the first stuck operation of each rank. A slot of two waits with its first
    operation for what either needs, and gives both results with its second.
    """
    first = dependencies.first
    crossing = np.flatnonzero(dependencies.crosses)
    starts = first[:-1] + np.asarray(reached)
    needed = dependencies.neighbour[crossing]
    crossing = crossing - np.isin(crossing - 1, dependencies.pairs)
    needed = needed + np.isin(needed, dependencies.pairs)
    a, b = dependencies.rank[crossing], dependencies.rank[needed]
    waiting, needed = crossing - starts[a], needed - starts[b]
    stuck = (waiting >= 0) & (needed >= 0)
    edges: dict[tuple[int, int], Counts] = {}
    pairs = np.stack([a, b], axis=1)[stuck]
    waiting, needed = waiting[stuck], needed[stuck]
    unique, which = np.unique(pairs, axis=0, return_inverse=True)
    for index, (source, target) in enumerate(unique.tolist()):
        chosen = which.reshape(-1) == index
        prefix = np.zeros(int(first[source + 1] - starts[source]) + 1, dtype=np.int64)
        np.maximum.at(prefix, waiting[chosen] + 1, needed[chosen] + 1)
        edges[source, target] = np.maximum.accumulate(prefix)
    return edges


def _shortest_through(
    chain: int, edges: dict[tuple[int, int], Counts], lengths: Counts, below: int
) -> tuple[Hop, ...] | None:
    """The shortest cycle through chain ``chain`` of fewer than ``below`` hops, if there is one."""
    sources = np.arange(1, int(lengths[chain]) + 1)
    prefixes = {chain: sources}
    for steps in range(1, below):
        prefixes = _step(prefixes, edges)
        if chain not in prefixes:
            continue
        closed = np.flatnonzero(prefixes[chain] >= sources)
        if len(closed):
            return _retrace(chain, int(sources[closed[0]]), steps, edges)
    return None


def _step(prefixes: dict[int, Counts], edges: dict[tuple[int, int], Counts]) -> dict[int, Counts]:
    """What operations wait for after one step more: the longest prefix on each chain."""
    after: dict[int, Counts] = {}
    for (a, b), edge in edges.items():
        if a in prefixes:
            reach = edge[prefixes[a]]
            after[b] = np.maximum(after[b], reach) if b in after else reach
    return {b: prefix for b, prefix in after.items() if prefix.any()}


def _retrace(
    chain: int, source: int, steps: int, edges: dict[tuple[int, int], Counts]
) -> tuple[Hop, ...]:
    """The steps of a cycle that starts within the first ``source`` operations of ``chain``."""
    history = [{chain: np.array([source])}]
    for _ in range(steps):
        history.append(_step(history[-1], edges))
    found: list[Hop] = []
    b, needed = chain, int(history[-1][chain][0])
    for before in reversed(history[:-1]):
        a = next(
            a
            for a, prefix in before.items()
            if (a, b) in edges and int(edges[a, b][prefix[0]]) == needed
        )
        # The first operation of chain a that waits for so much of chain b.
        waiting = int(np.searchsorted(edges[a, b], needed))
        found.append((a, waiting - 1, b, needed - 1))
        b, needed = a, int(before[a][0])
    return tuple(reversed(found))
