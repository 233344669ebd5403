"""Which nodes of an aten graph are views, and whose storage they show."""

from __future__ import annotations

import operator

import torch
from torch import fx


def is_view(node: fx.Node) -> bool:
    """Whether a node's value shares its first argument's storage (by the op's schema)."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        return is_view(node.args[0])  # type: ignore[arg-type]
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    returns = node.target._schema.returns
    return any(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def base(node: fx.Node) -> fx.Node:
    """The node that made the storage which ``node`` shows: itself, unless it is a view."""
    while is_view(node):
        node = node.args[0]  # type: ignore[assignment]
    return node
