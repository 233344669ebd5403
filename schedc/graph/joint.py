"""A unit's joint graph: forward and backward in one graph of aten ops, as eager autograd runs them.

The unit's modules are interpreted on fake tensors while ``make_fx`` records what autograd calls, so
each op and each order of summation is eager's own. All values between modules, and their gradients,
are returned too: that names the nodes, by public means and on any version of torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx

from schedc.graph.clean import clean
from schedc.graph.trace import TracedUnit
from schedc.model.config import LlamaConfig
from schedc.program.signature import Role

DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp64": torch.float64,
    "int64": torch.int64,
    "int32": torch.int32,
    "bool": torch.bool,
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Port:
    """A value at a graph's boundary."""

    role: Role
    name: str
    node: fx.Node


@dataclass(frozen=True, slots=True)
class Joint:
    """A unit's forward and backward. ``node.meta["forward"]`` tells which of them made a node.

    ``names`` holds a name for the nodes whose meaning is known: inputs, values between modules,
    gradients. ``output`` is y or the loss; ``gradients`` are dx, where it is wanted, and those of
    the parameters that are trained, in their order.
    """

    graph: fx.Graph
    inputs: tuple[Port, ...]
    output: Port
    gradients: tuple[Port, ...]
    names: dict[fx.Node, str]


def shape_of(role: str, config: LlamaConfig, microbatch: int, sequence: int) -> tuple[int, ...]:
    """The shape of a unit's data input."""
    if role == "x":
        return (microbatch, sequence, config.hidden_size)
    if role in ("cos", "sin"):
        return (sequence, config.head_dim)
    return (microbatch, sequence)


def trace_joint(
    unit: TracedUnit, config: LlamaConfig, microbatch: int, sequence: int, dtype: torch.dtype
) -> Joint:
    """The clean joint graph of ``unit`` at one shape. Nothing is allocated."""
    data = [str(node.target) for node in unit.graph.nodes if node.op == "placeholder"]
    labels = [_label(node) for node in _inner(unit)]
    with FakeTensorMode(), torch.enable_grad():
        fakes: list[Tensor] = []
        for role in data:
            of = torch.int64 if role in ("tokens", "labels") else dtype
            fake = torch.empty(shape_of(role, config, microbatch, sequence), dtype=of)
            fakes.append(fake.requires_grad_(role == "x" and unit.has_dx))
        for name, _, parameter in unit.parameters:
            trained = name in unit.trained
            fakes.append(torch.empty(parameter.shape, dtype=dtype, requires_grad=trained))
        if unit.kind == "head":
            fakes.append(torch.empty((), dtype=torch.float32))
        else:
            fakes.append(torch.empty(shape_of("x", config, microbatch, sequence), dtype=dtype))
        graph = make_fx(_run_of(unit, data))(*fakes).graph
    _mark_forward(graph)
    clean(graph)
    return _read(unit, data, labels, graph)


def _inner(unit: TracedUnit) -> list[fx.Node]:
    """The module-level nodes whose values lie between the unit's input and its output."""
    nodes = [n for n in unit.graph.nodes if n.op not in ("placeholder", "output")]
    return nodes[:-1]


def _label(node: fx.Node) -> str:
    """What to call a module-level node's value."""
    if node.op == "call_module":
        return str(node.target).rpartition(".")[2]
    if node.op == "call_method":
        (source, *_) = node.all_input_nodes
        return f"{_label(source)}_{node.target}"
    assert callable(node.target)
    called = node.target.__name__
    return {"add": "residual", "mul": "product"}.get(called, called)


def _run_of(unit: TracedUnit, data: Sequence[str]):
    """The function to trace: inputs, parameters and tangent to everything :func:`_read` names."""

    def run(*flat: Tensor) -> list[Tensor | None]:
        inputs = dict(zip(data, flat, strict=False))
        names = [name for name, _, _ in unit.parameters]
        parameters = dict(zip(names, flat[len(data) : -1], strict=True))
        values = _interpret(unit, inputs, parameters)
        output, inner = values[-1], values[:-1]
        boundary = output.detach()  # the last node of the forward
        wanted = [inputs["x"]] if unit.has_dx else []
        wanted += [parameters[name] for name in names if name in unit.trained]
        moving = [value for value in inner if value.requires_grad]
        found = iter(torch.autograd.grad(output, wanted + moving, flat[-1]) if wanted else ())
        gradients = [next(found) for _ in wanted]
        gradients += [next(found) if value.requires_grad else None for value in inner]
        return [boundary, output, *inner, *gradients]

    return run


def _interpret(
    unit: TracedUnit, inputs: dict[str, Tensor], parameters: dict[str, Tensor]
) -> list[Tensor]:
    """Run the module-level graph with given parameters: each node's value, the output's last."""
    values: dict[fx.Node, Tensor] = {}
    for node in unit.graph.nodes:
        if node.op == "placeholder":
            values[node] = inputs[node.target]
            continue
        args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
        match node.op:
            case "call_module":
                leaf, prefix = unit.leaves[node.target], f"{node.target}."
                own = {
                    n.removeprefix(prefix): p for n, p in parameters.items() if n.startswith(prefix)
                }
                values[node] = functional_call(leaf, own, args, kwargs)
            case "call_method":
                values[node] = getattr(args[0], node.target)(*args[1:], **kwargs)
            case "call_function":
                values[node] = node.target(*args, **kwargs)
            case "output":
                break
            case op:
                raise AssertionError(f"a module-level graph has no {op} nodes")
    return [v for n, v in values.items() if n.op != "placeholder"]


def _mark_forward(graph: fx.Graph) -> None:
    """Tell each node whether the forward made it: those up to the boundary that run left."""
    (results,) = next(node for node in graph.nodes if node.op == "output").args
    forward = True
    for node in graph.nodes:
        node.meta["forward"] = forward
        forward = forward and node is not results[0]


def _read(unit: TracedUnit, data: list[str], labels: list[str], graph: fx.Graph) -> Joint:
    """Name the traced graph's nodes by what :func:`_run_of` returned."""
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    (results,) = next(node for node in graph.nodes if node.op == "output").args
    parameters = [name for name, _, _ in unit.parameters]
    inputs = [Port(role, role, n) for role, n in zip(data, placeholders, strict=False)]  # type: ignore[arg-type]
    inputs += [
        Port("param", name, node)
        for name, node in zip(parameters, placeholders[len(data) : -1], strict=True)
    ]
    inputs.append(Port("dy", "dy", placeholders[-1]))

    _, output, *rest = results
    inner, gradients = rest[: len(labels)], rest[len(labels) :]
    named = [Port("dx", "dx", gradients.pop(0))] if unit.has_dx else []
    named += [Port("grad", n, gradients.pop(0)) for n in parameters if n in unit.trained]
    names: dict[fx.Node, str] = {}
    for label, value, gradient in zip(labels, inner, gradients, strict=True):
        names.setdefault(value, label)
        if gradient is not None:
            names.setdefault(gradient, f"d_{label}")
    role: Role = "loss" if unit.kind == "head" else "y"
    return Joint(graph, tuple(inputs), Port(role, role, output), tuple(named), names)
