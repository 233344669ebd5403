"""A part as statements, each with what can be dropped after it; and the bytes alive meanwhile."""

from __future__ import annotations

import operator
from dataclasses import dataclass

from torch import Tensor, fx

from schedc.graph.split import Part
from schedc.graph.views import base, is_view

OWNED = ("x", "saved", "owed", "dy")
ALONE = ("saved", "owed")
"""What a graph owns even where others hold x and dy."""

CALLERS = ("param", "cos", "sin")


@dataclass(frozen=True, slots=True)
class Statement:
    """One op. ``results`` are the nodes of its results in order, None for one that nobody reads.

    ``drops`` are the values that nobody reads after it, and that are not returned.
    """

    node: fx.Node
    results: tuple[fx.Node | None, ...]
    drops: tuple[fx.Node, ...]


def statements(part: Part) -> tuple[Statement, ...]:
    """The part's body. An op with several results and what takes it apart are one statement."""
    calls = [node for node in part.body if node.target is not operator.getitem]
    results = {call: _results(call, part) for call in calls}
    kept = {port.node for port in part.outputs}
    kept |= {port.node for port in part.inputs if port.role in CALLERS}
    last: dict[fx.Node, fx.Node] = {}
    for call in calls:
        read = [argument for argument in call.all_input_nodes if argument not in kept]
        made = [node for node in results[call] if node is not None and node not in kept]
        last.update(dict.fromkeys((*read, *made), call))
    drops: dict[fx.Node, list[fx.Node]] = {}
    for node, reader in last.items():
        drops.setdefault(reader, []).append(node)
    return tuple(Statement(call, results[call], tuple(drops.get(call, ()))) for call in calls)


def _results(call: fx.Node, part: Part) -> tuple[fx.Node | None, ...]:
    if isinstance(call.meta["val"], Tensor):
        return (call,)
    taken = {n.args[1]: n for n in part.body if n.target is operator.getitem and n.args[0] is call}
    return tuple(taken.get(i) for i in range(len(call.meta["val"])))


def peak(part: Part, roles: tuple[str, ...] = OWNED) -> int:
    """The most bytes alive at once during the call: what it allocates and the inputs it owns.

    Those are the ones of ``roles``; the others are alive whatever the call does.
    """
    owned = {port.node for port in part.inputs if port.role in roles}
    borrowed = {port.node for port in part.inputs} - owned
    showing = {node: {node} for node in owned}  # by storage: the live values that show it
    live = highest = sum(map(_bytes, owned))
    for statement in statements(part):
        fleeting = 0
        for position, node in enumerate(statement.results):
            if node is None:
                value = statement.node.meta["val"][position]
                fleeting += 0 if is_view(statement.node) else value.untyped_storage().nbytes()
            elif (storage := base(node)) not in borrowed:
                if storage not in showing:
                    live += _bytes(storage)
                showing.setdefault(storage, set()).add(node)
        highest = max(highest, live + fleeting)
        for node in statement.drops:
            shown = showing.get(base(node), set())
            shown.discard(node)
            if not shown and showing.pop(base(node), None) is not None:
                live -= _bytes(base(node))
    return highest


def _bytes(node: fx.Node) -> int:
    return node.meta["val"].untyped_storage().nbytes()
