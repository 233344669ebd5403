"""The whole Llama as one module-level graph, cut into units: embedding, layers, head.

Leaves of the trace are the modules that later rewrites act on (linears, norms, attention core,
embedding, rotary, loss), so the graph has about twenty nodes a layer. Each node knows the modules
that it was traced in (``nn_module_stack``): that alone decides its unit. Between units flow the
hidden states and nothing else, but for the rotary tables, which every stage makes for itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import fx, nn

from schedc.graph.llama import LEAVES, Llama
from schedc.model.config import LlamaConfig
from schedc.program.signature import UnitKind

INPUTS = ("tokens", "labels", "positions")


class LlamaTracer(fx.Tracer):
    """Symbolic tracing that stops at :data:`~schedc.graph.llama.LEAVES`."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, LEAVES)


@dataclass(frozen=True)
class TracedUnit:
    """A unit's piece of the module-level graph.

    ``graph``'s placeholders are those it needs of ``x tokens labels cos sin``; it returns hidden
    states or the loss. ``parameters`` gives each one's name within the unit, Hugging Face's name
    and the (meta) tensor, in the modules' order; a tied one has the name of its first place.
    Gradients are wanted of the parameters that are ``trained``, by their names within the unit, and
    of x where ``has_dx``.
    """

    name: str
    kind: UnitKind
    graph: fx.Graph
    leaves: dict[str, nn.Module]  # by the target of the graph's call_module nodes
    parameters: tuple[tuple[str, str, nn.Parameter], ...]
    trained: frozenset[str]
    has_dx: bool

    @property
    def has_dy(self) -> bool:
        """Whether the unit has anything to do in the backward."""
        return self.has_dx or bool(self.trained)

    @cached_property
    def key(self) -> str:
        """Everything that its aten graphs depend on, but the unit's place in the model."""
        index = {node: i for i, node in enumerate(self.graph.nodes)}

        def text(argument: object) -> str:
            return repr(fx.map_arg(argument, lambda node: _Ref(index[node])))  # type: ignore[arg-type]

        lines = [
            f"{n.op} {_callee(n)} {text(n.args)} {text(n.kwargs)} "
            f"{self.leaves.get(str(n.target), '')}"
            for n in self.graph.nodes
        ]
        lines += [
            f"{name} {tuple(p.shape)} {p.dtype} {name in self.trained}"
            for name, _, p in self.parameters
        ]
        return "\n".join((self.kind, *lines, f"{self.has_dx}"))


@dataclass(frozen=True, slots=True)
class _Ref:
    index: int


def _callee(node: fx.Node) -> str:
    """What a node calls, free of the numbers that fx puts into nodes' names."""
    if isinstance(node.target, str):
        return node.target
    return f"{node.target.__module__}.{node.target.__qualname__}"


def trace(config: LlamaConfig, dtype: torch.dtype) -> tuple[nn.Module, fx.Graph]:
    """The model on the meta device and its module-level graph; nothing is allocated."""
    with torch.device("meta"):
        model = Llama(config, dtype)
    return model, LlamaTracer().trace(model)


def unit_of(node: fx.Node) -> str | None:
    """The unit that a node of the module-level graph belongs to; None for the rotary tables'."""
    path = next(reversed(node.meta["nn_module_stack"]), "")
    parts = path.split(".")
    if parts[:2] == ["model", "layers"]:
        return f"layers.{parts[2]}"
    if parts[:2] == ["model", "embed_tokens"]:
        return "embedding"
    if parts[:2] == ["model", "norm"] or parts[0] in ("lm_head", "loss"):
        return "head"
    return None


def units(
    model: nn.Module, graph: fx.Graph, frozen: frozenset[str] = frozenset()
) -> tuple[TracedUnit, ...]:
    """The units of a traced model, from first to last; ``frozen`` names parameters to leave alone.

    The gradient of a unit's input is wanted where an earlier unit trains anything.
    """
    members: dict[str, list[fx.Node]] = {}
    tables: dict[fx.Node, str] = {}
    for node in graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        name = unit_of(node)
        if name is not None:
            members.setdefault(name, []).append(node)
        elif node.op == "call_function":  # getitem of the rotary module's pair
            tables[node] = ("cos", "sin")[node.args[1]]
    owned = _parameters(model)
    found: list[TracedUnit] = []
    for name, nodes in members.items():
        piece, leaves = _cut(model, name, nodes, tables)
        kind: UnitKind = "layer" if name.startswith("layers.") else name  # type: ignore[assignment]
        owners = {str(node.target) for node in nodes if node.op == "call_module"}
        parameters = tuple(
            (_within(place, name), full, parameter)
            for place, full, parameter in owned
            if place.rpartition(".")[0] in owners
        )
        trained = frozenset(inner for inner, full, _ in parameters if full not in frozen)
        has_dx = bool(found) and found[-1].has_dy
        found.append(TracedUnit(name, kind, piece, leaves, parameters, trained, has_dx))
    return tuple(found)


def _parameters(model: nn.Module) -> list[tuple[str, str, nn.Parameter]]:
    """Where each parameter stands, its name (that of its first place) and itself."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    places = model.named_parameters(remove_duplicate=False)
    return [(place, names[parameter], parameter) for place, parameter in places]


def _cut(
    model: nn.Module, name: str, nodes: list[fx.Node], tables: dict[fx.Node, str]
) -> tuple[fx.Graph, dict[str, nn.Module]]:
    """The unit of ``nodes`` as a graph of its own, and its leaves.

    Checks that only hidden states cross over.
    """
    inside = set(nodes)
    outer = dict.fromkeys(i for n in nodes for i in n.all_input_nodes if i not in inside)
    graph = fx.Graph()
    images: dict[fx.Node, fx.Node] = {}
    for node in outer:
        role = node.target if node.op == "placeholder" else tables.get(node, "x")
        assert role not in {image.target for image in images.values()}, f"{name} reads {node} too"
        images[node] = graph.placeholder(str(role))
    leaves: dict[str, nn.Module] = {}
    for node in nodes:
        image = images[node] = graph.node_copy(node, images.__getitem__)
        if node.op == "call_module":
            image.target = _within(str(node.target), name)
            leaves[image.target] = model.get_submodule(str(node.target))
    (last,) = [n for n in nodes if any(user not in inside for user in n.users)]
    graph.output(images[last])
    return graph, leaves


def _within(name: str, unit: str) -> str:
    """A module's or parameter's name within its unit."""
    return name.removeprefix(f"model.{unit}.").removeprefix("model.")
