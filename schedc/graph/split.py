"""A joint graph into three: F, I (gradient of the input) and W (gradients of the weights).

*Contract*: together the three compute what the joint graph computes, op for op. I and W share no
op but views. What F hands on (``saved``) is what eager autograd would hold: the storages of
forward values that the backward reads; inputs among them are aliased, not copied. Everything that
W reads comes through ``owed``.

*Pseudocode*: I is the cone of ancestors of dx and of the 1-D gradients, which cost nothing, down to
forward values; W is the cone of the other gradients, down to forward values and to I's. Where no
gradient is wanted, both are empty. Views are
never handed on: their base is, and the view is made again. So is what a backward formula computes
from forward values alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import fx

from schedc.graph.joint import Joint, Port
from schedc.graph.views import base, is_view


@dataclass(frozen=True, slots=True)
class Part:
    """One graph: its ports, and its nodes (the joint graph's own) in the order of execution."""

    inputs: tuple[Port, ...]
    body: tuple[fx.Node, ...]
    outputs: tuple[Port, ...]


def split(joint: Joint, names: dict[fx.Node, str]) -> tuple[Part, Part, Part]:
    """The parts F, I and W of a clean joint graph; ``names`` names the nodes handed on."""
    order = {node: i for i, node in enumerate(joint.graph.nodes)}

    def is_kept(node: fx.Node) -> bool:
        return node.op == "placeholder" or (node.meta["forward"] and not is_view(node))

    early = [g for g in joint.gradients if g.role == "dx" or g.node.meta["val"].ndim == 1]
    late = [g for g in joint.gradients if g not in early]
    inner, inner_reads = _cone((g.node for g in early), is_kept)

    def is_handed_on(node: fx.Node) -> bool:
        return is_kept(node) or (node in inner and not is_view(node))

    weights, owed_nodes = _cone((g.node for g in late), is_handed_on)

    reads = inner_reads | {node for node in owed_nodes if is_kept(node)}
    given = {port.node for port in joint.inputs if port.role not in ("x", "tokens")}
    saved = [node for node in sorted(reads, key=order.__getitem__) if node not in given]
    kept = tuple(Port("saved", names[node], node) for node in saved)
    owed = sorted(owed_nodes, key=order.__getitem__)
    handed = tuple(Port("owed", names[node], node) for node in owed)
    forward = _ports(joint, ("x", "tokens", "labels", "param", "cos", "sin"))
    backward = _ports(joint, ("dy", "labels", "param", "cos", "sin"))
    read = tuple(
        port for port in backward if port.node in reads or (port.role == "dy" and joint.gradients)
    )

    outer, _ = _cone((joint.output.node, *saved), lambda node: node.op == "placeholder")
    return (
        Part(forward, _schedule(outer, order), (joint.output, *kept)),
        Part((*kept, *read), _schedule(inner, order), (*early, *handed)),
        Part(handed, _schedule(weights, order), tuple(late)),
    )


def _ports(joint: Joint, roles: tuple[str, ...]) -> tuple[Port, ...]:
    """The joint graph's inputs of these roles, in the order of ``roles``."""
    return tuple(port for role in roles for port in joint.inputs if port.role == role)


def _cone(
    targets: Iterable[fx.Node], stop: Callable[[fx.Node], bool]
) -> tuple[set[fx.Node], set[fx.Node]]:
    """The targets' ancestors, targets included, down to where ``stop`` says; and those stops."""
    body: set[fx.Node] = set()
    stops: set[fx.Node] = set()
    todo = list(targets)
    while todo:
        node = todo.pop()
        if node in body or node in stops:
            continue
        if stop(node):
            stops.add(node)
        else:
            body.add(node)
            todo += node.all_input_nodes
    return body, stops


def _schedule(body: set[fx.Node], order: dict[fx.Node, int]) -> tuple[fx.Node, ...]:
    """The joint graph's order, but views only right before their use."""
    scheduled: dict[fx.Node, None] = {}

    def visit(node: fx.Node) -> None:
        if node in body and node not in scheduled:
            for argument in node.all_input_nodes:
                visit(argument)
            scheduled[node] = None

    for node in sorted(body, key=order.__getitem__):
        if not is_view(node):
            visit(node)
    for node in sorted(body, key=order.__getitem__):
        visit(node)  # views that are outputs themselves
    return tuple(scheduled)


def alias_of(output: Port, inputs: tuple[Port, ...]) -> str | None:
    """The name of the input whose storage ``output`` shares, if it shares one's."""
    storage = base(output.node)
    return next((port.name for port in inputs if port.node is storage), None)
