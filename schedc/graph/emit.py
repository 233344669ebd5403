"""Graphs as Python that can be read, run and compared: the text that goes into the artifact."""

from __future__ import annotations

import hashlib
import keyword
from collections.abc import Iterable

import torch
from torch import fx

from schedc.graph.joint import DTYPE_NAMES, Port
from schedc.graph.liveness import Statement, statements
from schedc.graph.measure import values
from schedc.graph.split import Part
from schedc.ops.generated import function_name
from schedc.program.signature import Signature, Value

aten = torch.ops.aten
WIDTH = 100

# Views are cheapest, and read best, as methods.
METHODS: dict[object, str] = {
    aten.view.default: "view",
    aten.t.default: "t",
    aten.unsqueeze.default: "unsqueeze",
    aten.expand.default: "expand",
    aten.transpose.int: "transpose",
    aten.permute.default: "permute",
}


def emit(
    name: str,
    title: str,
    part: Part,
    inputs: tuple[Value, ...],
    outputs: tuple[Value, ...],
    names: dict[fx.Node, str],
) -> str:
    """The generated Python of graph ``name``: a module with one boxed function.

    The function takes a list and empties it, and deletes each value at its last use, so that what
    only it holds is freed as it goes. Equal parts give equal bytes.
    """
    body = statements(part)
    bindings = {_alias(s.node): str(s.node.target) for s in body if s.node.target not in METHODS}
    lines = header(name, title, inputs, outputs)
    if bindings:
        lines += ["import torch", ""]
    if any(target.startswith("schedc.") for target in bindings.values()):
        lines += ["import schedc.ops  # registers torch.ops.schedc", ""]
    if bindings:
        lines += [f"{alias} = torch.ops.{to}" for alias, to in sorted(bindings.items())]
        lines += ["", ""]
    lines.append(f"def {function_name(name)}(args):")
    lines += _sequence("    ", (names[port.node] for port in part.inputs), " = args")
    lines.append("    args.clear()")
    lines += [line for statement in body for line in _statement(statement, names)]
    lines += _sequence("    return ", (names[port.node] for port in part.outputs), "")
    return "\n".join(lines) + "\n"


def header(
    name: str, title: str, inputs: tuple[Value, ...], outputs: tuple[Value, ...]
) -> list[str]:
    """The docstring of a graph's module: what it is, its inputs and outputs."""
    rows = [("in", v) for v in inputs] + [("out", v) for v in outputs]
    if not rows:
        return [f'"""{name}: {title}. Nothing to do: all of it is frozen."""', ""]
    width, roles = (
        max(map(len, of)) for of in ([v.name for _, v in rows], [v.role for _, v in rows])
    )
    lines = [f'"""{name}: {title}.', ""]
    for direction, value in rows:
        shape = f"{value.dtype}{list(value.shape)}"
        alias = f"  is {value.alias}" if value.alias is not None else ""
        lines.append(f"{direction:<4}{value.role:<{roles}}  {value.name:<{width}}  {shape}{alias}")
    return [*lines, '"""', ""]


def digest(source: str, signature: Signature) -> str:
    """The hash that names a graph: of its text and of its signature, whatever machine made it."""
    ports = [repr(value) for value in (*signature.inputs, *signature.outputs)]
    costs = f"{signature.flops} {signature.moved} {signature.peak} {signature.peak_beside}"
    text = "\n".join((signature.name, source, *ports, costs))
    return hashlib.sha256(text.encode()).hexdigest()


def value_of(port: Port, alias: str | None = None) -> Value:
    """A port as the signature has it."""
    tensor = port.node.meta["val"]
    dtype = DTYPE_NAMES[tensor.dtype]
    return Value(port.role, port.name, tuple(tensor.shape), dtype, tuple(tensor.stride()), alias)


def _sequence(lead: str, names: Iterable[str], end: str) -> list[str]:
    """A tuple of names, filled into lines of the right width."""
    words = [f"{name}," for name in names]
    line = f"{lead}({' '.join(words)}){end}"
    if len(line) <= WIDTH:
        return [line]
    lines, current = [f"{lead}("], ""
    for word in words:
        if len(current) + len(word) + 9 > WIDTH:
            lines.append(f"        {current}")
            current = ""
        current = f"{current} {word}".lstrip()
    return [*lines, f"        {current}", f"    ){end}"]


def _statement(statement: Statement, names: dict[fx.Node, str]) -> list[str]:
    node = statement.node
    arguments = [_text(argument, names) for argument in node.args]
    arguments += [f"{key}={_text(value, names)}" for key, value in node.kwargs.items()]
    method = METHODS.get(node.target)
    callee = f"{arguments.pop(0)}.{method}" if method is not None else _alias(node)
    results = [names[n] if n is not None else "unread" for n in statement.results]
    left = f"    {', '.join(results)} = {callee}("
    line = f"{left}{', '.join(arguments)})"
    shapes = ", ".join(_shape(value) for value in values(node))
    if len(line) > WIDTH:
        lines = [left, f"        {', '.join(arguments)}", "    )"]
    else:
        lines = [f"{line}  # {shapes}" if len(line) + len(shapes) + 4 <= WIDTH else line]
    dropped = [names[n] for n in statement.drops]
    dropped += ["unread"] if "unread" in results else []
    if dropped:
        lines.append(f"    del {', '.join(dropped)}")
    return lines


def _shape(tensor: torch.Tensor) -> str:
    return f"{DTYPE_NAMES[tensor.dtype]}{list(tensor.shape)}"


def _alias(node: fx.Node) -> str:
    """``aten.mul.Tensor`` is bound as ``aten_mul``, ``aten.mul.Scalar`` as ``aten_mul_Scalar``."""
    assert isinstance(node.target, torch._ops.OpOverload), f"{node.target} is no aten op"
    space, name, overload = str(node.target).split(".")
    suffix = "" if overload in ("default", "Tensor") else f"_{overload}"
    return f"{space}_{name.lstrip('_')}{suffix}"


def _text(argument: object, names: dict[fx.Node, str]) -> str:
    """An argument as source text."""
    match argument:
        case fx.Node():
            name = names[argument]
            assert name.isidentifier(), name
            assert not keyword.iskeyword(name), name
            return name
        case list() | tuple():
            return f"[{', '.join(_text(item, names) for item in argument)}]"
        case None | bool() | int() | str() | torch.dtype():
            return repr(argument)
        case float():
            return repr(argument) if abs(argument) != float("inf") else f'float("{argument}")'
        case _:
            raise AssertionError(f"{argument!r} in a graph")
