"""Names for a joint graph's nodes that a reader of the generated code can follow."""

from __future__ import annotations

import operator

import torch
from torch import fx

from schedc.graph.joint import Joint
from schedc.graph.views import base, is_view


def name_nodes(joint: Joint) -> dict[fx.Node, str]:
    """A distinct name for every node.

    Inputs go by role or parameter; values between modules by the module that made them
    (``q_proj``), their gradients by ``d_`` and that name, gradients of parameters likewise. A view
    is named after what it shows, anything else after the named value that it leads to.
    """
    names: dict[fx.Node, str] = {}
    taken: set[str] = set()

    def give(node: fx.Node, name: str) -> None:
        if node in names:
            return
        count = 0
        unique = name = name.lstrip("_")
        while unique in taken:
            count += 1
            unique = f"{name}_{count}"
        taken.add(unique)
        names[node] = unique

    for port in joint.inputs:
        give(port.node, _short(port.name))
    for port in (joint.output, *joint.gradients):
        give(port.node, f"d_{_short(port.name)}" if port.role == "grad" else port.name)
    for node, label in joint.names.items():
        give(base(node), label)

    leads = _leads(joint.graph, set(names))
    for node in joint.graph.nodes:
        if node.op != "call_function":
            continue
        if is_view(node):
            give(node, f"{names[base(node)]}_{_op(node)}")
            continue
        is_result = node.target is operator.getitem
        maker = node.args[0] if is_result else node
        lead = names[leads[maker]] if maker in leads else "unread"
        give(node, f"{lead}_{_result(node) if is_result else _op(node)}")
    return names


def _short(name: str) -> str:
    """``self_attn.q_proj.weight`` is ``q_proj_weight``."""
    return "_".join(name.split(".")[-2:])


def _result(node: fx.Node) -> str:
    """What the schema calls one of an op's several results."""
    call, position = node.args
    assert isinstance(call, fx.Node)
    assert isinstance(position, int)
    assert isinstance(call.target, torch._ops.OpOverload)
    return call.target._schema.returns[position].name or str(position)


def _op(node: fx.Node) -> str:
    if node.target is operator.getitem:
        return f"{_op(node.args[0])}_{node.args[1]}"  # type: ignore[arg-type]
    assert isinstance(node.target, torch._ops.OpOverload)
    return node.target._schema.name.rpartition("::")[2].lstrip("_")


def _leads(graph: fx.Graph, named: set[fx.Node]) -> dict[fx.Node, fx.Node]:
    """For each node, the earliest named node among itself and its descendants."""
    order = {node: i for i, node in enumerate(graph.nodes)}
    leads: dict[fx.Node, fx.Node] = {}
    for node in reversed(graph.nodes):
        after = [leads[user] for user in node.users if user in leads]
        if node in named:
            leads[node] = node
        elif after:
            leads[node] = min(after, key=order.__getitem__)
    return leads
