"""Tidying a joint graph without changing a bit of what it computes.

*Contract*: the graph's outputs keep their values bitwise; what remains is free of mutation,
randomness and devices. *Pseudocode*: for each node in order: drop ``detach`` and ``alias``, fold
views of views, ``t(t(x))`` and ``x ** 1``, strip devices, then reuse an equal earlier node of the
same direction (forward or backward: a backward's value is never one that forward must keep).
Dead nodes fall away later, with the cones.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx

aten = torch.ops.aten

DROPPED = (aten.detach.default, aten.alias.default)
PLACEMENT = ("device", "layout", "pin_memory")  # where a tensor lies: not the graph's business


def clean(graph: fx.Graph) -> None:
    """Tidy ``graph`` in place."""
    seen: dict[str, fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        _check(node)
        if node.target is aten._unsafe_view.default:
            node.target = aten.view.default
        node.kwargs = {k: v for k, v in node.kwargs.items() if k not in PLACEMENT}
        same = _simpler(node)
        if same is None:
            key = f"{node.meta['forward']} {node.target} {node.args!r} {node.kwargs!r}"
            same = seen.setdefault(key, node)
        if same is not node:
            node.replace_all_uses_with(same)
            graph.erase_node(node)


def _check(node: fx.Node) -> None:
    """Graphs hold pure, deterministic ops only."""
    if isinstance(node.target, torch._ops.OpOverload):
        assert not node.target._schema.is_mutable, f"{node.target} writes to its inputs"
        assert torch.Tag.nondeterministic_seeded not in node.target.tags, f"{node.target}: random"


def _simpler(node: fx.Node) -> fx.Node | None:
    """An earlier node with ``node``'s value, if there is one; may rewrite ``node`` itself."""
    if node.target in DROPPED:
        return _source(node)
    rule = RULES.get(node.target)
    return rule(node) if rule is not None else None


def _source(node: fx.Node) -> fx.Node:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    return source


def _transposed_twice(node: fx.Node) -> fx.Node | None:
    source = _source(node)
    return _source(source) if source.target is aten.t.default else None


def _view(node: fx.Node) -> fx.Node | None:
    source = _source(node)
    while source.target is aten.view.default and _source(source).meta["val"].is_contiguous():
        source = _source(source)
    node.args = (source, node.args[1])
    same = source.meta["val"].shape == node.meta["val"].shape
    return source if same and source.meta["val"].stride() == node.meta["val"].stride() else None


def _first_power(node: fx.Node) -> fx.Node | None:
    return _source(node) if node.args[1] == 1 else None


RULES: dict[object, Callable[[fx.Node], fx.Node | None]] = {
    aten.t.default: _transposed_twice,
    aten.view.default: _view,
    aten.pow.Tensor_Scalar: _first_power,
}
