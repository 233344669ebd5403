"""Loading generated graphs: from their Python text to a callable."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import cast

from torch import Tensor

Graph = Callable[[list[Tensor]], tuple[Tensor, ...]]


def function_name(graph: str) -> str:
    """The name of a graph's function: ``layer.F`` is ``layer_F``."""
    return graph.replace(".", "_")


def load_graph(source: str, name: str) -> Graph:
    """The function that ``source``, the generated Python of graph ``name``, defines.

    It takes one list with the tensors of the signature's inputs, empties it, and drops each tensor
    at its last use; call it under ``torch.inference_mode()``. Tracebacks show the generated lines.
    """
    filename = f"<schedc graph {name}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace: dict[str, object] = {"__name__": f"schedc_graph_{function_name(name)}"}
    exec(compile(source, filename, "exec"), namespace)
    return cast(Graph, namespace[function_name(name)])
