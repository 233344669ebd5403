"""What a graph does, read off its nodes: FLOPs and bytes moved. Bytes alive: liveness.py."""

from __future__ import annotations

import math
import operator

import torch
from torch import Tensor, fx

from schedc.graph.split import Part
from schedc.graph.views import is_view

aten = torch.ops.aten


def values(node: fx.Node) -> tuple[Tensor, ...]:
    """The node's tensors: one, or those of an op with several results."""
    value = node.meta["val"]
    return (value,) if isinstance(value, Tensor) else tuple(value)


def flops(part: Part) -> int:
    """Floating-point operations of matmuls and attention, a multiply-add counted as two."""
    return sum(_flops(node) for node in part.body)


def _flops(node: fx.Node) -> int:
    shapes = [tuple(a.meta["val"].shape) for a in node.all_input_nodes if _is_tensor(a)]
    match node.target:
        case aten.mm.default | aten.bmm.default:
            return 2 * math.prod(shapes[0]) * shapes[1][-1]
        case aten.addmm.default:
            return 2 * math.prod(shapes[1]) * shapes[2][-1]
        case torch.ops.schedc.attention.default:
            return 4 * _pairs(shapes[0], shapes[1], node, 4)
        case torch.ops.schedc.attention_backward.default:
            # Scores again, and the gradients of values, weights, queries and keys: five matmuls.
            return 10 * _pairs(shapes[1], shapes[2], node, 7)
        case _:
            return 0


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta["val"], Tensor)


def _pairs(q: tuple[int, ...], k: tuple[int, ...], node: fx.Node, position: int) -> int:
    """Multiply-adds of one matmul over the pairs of a query and a key that it sees."""
    batch, queries, heads, size = q
    causal = node.args[position] if len(node.args) > position else True
    keys = k[1]
    seen = sum(min(i + 1, keys) for i in range(queries)) if causal else queries * keys
    return batch * heads * seen * size


def moved(part: Part) -> int:
    """Bytes that all nodes but views read and write.

    What is broadcast counts once, and of an embedding's table only the rows looked up.
    """
    total = 0
    for node in part.body:
        if is_view(node) or node.target is operator.getitem:
            continue
        table = node.args[0] if node.target is aten.embedding.default else None
        read = [t for n in node.all_input_nodes if n is not table for t in values(n)]
        read += values(node) if table is not None else ()
        total += sum(_extent(tensor) for tensor in (*read, *values(node)))
    return total


def _extent(tensor: Tensor) -> int:
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return tensor.element_size() * math.prod(size for size, stride in pairs if stride)
