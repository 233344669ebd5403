"""From a configuration to a model: units, graphs with signatures, generated sources."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import fx

from schedc.diagnostics import Span
from schedc.graph.emit import digest, emit, value_of
from schedc.graph.joint import DTYPES, trace_joint
from schedc.graph.liveness import ALONE, peak
from schedc.graph.llama import Llama
from schedc.graph.measure import flops, moved
from schedc.graph.naming import name_nodes
from schedc.graph.split import Part, alias_of, split
from schedc.graph.tables import rotary_graph
from schedc.graph.trace import TracedUnit, trace, units
from schedc.model.config import LlamaConfig
from schedc.model.limits import check_sequence
from schedc.program.signature import Model, Parameter, Signature, Unit

WHAT = {
    "F": "forward of",
    "I": "gradient of the input, and small gradients, of",
    "W": "gradients of the weights of",
}
EMBEDDING = "model.embed_tokens.weight"
KINDS = {"embedding": "the embedding", "layer": "a decoder layer", "head": "the head"}


def build_model(
    config: LlamaConfig,
    microbatch: int,
    sequence: int,
    dtype: str = "fp32",
    *,
    frozen: frozenset[str] = frozenset(),
    span: Span | None = None,
) -> Model:
    """Trace, split and emit a Llama for microbatches of ``[microbatch, sequence]`` tokens.

    Works on shapes alone: nothing is allocated, and alike layers are traced once, so time and
    memory hardly grow with depth. Equal arguments give equal bytes.

    ``dtype`` is that of parameters, activations and their gradients. Rotary tables, norms,
    attention's softmax and log-sum-exp, the log-softmax and the loss are computed in fp32 whatever
    it is. ``frozen`` are parameters (some of :func:`parameter_names`) that get no gradient; with
    all of them the model is one that only computes the loss. Raises E805, pointing at ``span``, for
    a sequence that the model is not made for.
    """
    check_sequence(config, sequence, span)
    module, graph = trace(config, DTYPES[dtype])
    unknown = frozen - {name for name, _ in module.named_parameters()}
    assert not unknown, f"frozen names no parameters: {sorted(unknown)}"
    traced = units(module, graph, frozen)
    prefixes = _prefixes(traced)
    graphs, sources = {}, {}
    graphs["rotary"], sources["rotary"] = rotary_graph(config, sequence, dtype)
    for unit in traced:
        prefix = prefixes[unit.key]
        if f"{prefix}.F" in graphs:
            continue
        joint = trace_joint(unit, config, microbatch, sequence, DTYPES[dtype])
        names = name_nodes(joint)
        for role, part in zip("FIW", split(joint, names), strict=True):
            name = f"{prefix}.{role}"
            title = f"{WHAT[role]} {KINDS[unit.kind]}, {microbatch} x {sequence} tokens, {dtype}"
            graphs[name], sources[name] = _graph(name, title, part, names)
    model_units = tuple(
        Unit(unit.name, unit.kind, prefixes[unit.key], _parameters(unit, config, dtype, frozen))
        for unit in traced
    )
    return Model(model_units, graphs, sources, config.to_hf())


def parameter_names(config: LlamaConfig) -> tuple[str, ...]:
    """The parameters' Hugging Face names; of a tied head there is none."""
    with torch.device("meta"):
        return tuple(name for name, _ in Llama(config).named_parameters())


def _prefixes(traced: tuple[TracedUnit, ...]) -> dict[str, str]:
    """The prefix of the graphs of each distinct unit: its kind, numbered where there are more."""
    prefixes: dict[str, str] = {}
    for unit in traced:
        if unit.key not in prefixes:
            alike = sum(key.partition("\n")[0] == unit.kind for key in prefixes)
            prefixes[unit.key] = f"{unit.kind}{alike + 1}" if alike else unit.kind
    return prefixes


def _graph(name: str, title: str, part: Part, names: dict[fx.Node, str]) -> tuple[Signature, str]:
    inputs = tuple(value_of(port) for port in part.inputs)
    outputs = tuple(value_of(port, alias_of(port, part.inputs)) for port in part.outputs)
    source = emit(name, title, part, inputs, outputs, names)
    peaks = peak(part), peak(part, ALONE)
    signature = Signature(name, "", inputs, outputs, flops(part), moved(part), *peaks)
    return replace(signature, digest=digest(source, signature)), source


def _parameters(
    unit: TracedUnit, config: LlamaConfig, dtype: str, frozen: frozenset[str]
) -> tuple[tuple[str, Parameter], ...]:
    return tuple(
        (
            inner,
            Parameter(
                name=full,
                shape=tuple(tensor.shape),
                dtype=dtype,
                init=_initial(full, tensor, config),
                frozen=full in frozen,
                tied=full == EMBEDDING and unit.kind != "embedding",
            ),
        )
        for inner, full, tensor in unit.parameters
    )


def _initial(name: str, tensor: torch.Tensor, config: LlamaConfig) -> str:
    """How transformers initialises a parameter: ones for norms, zeros for biases, else normal."""
    if name.endswith(".bias"):
        return "zeros"
    if tensor.ndim == 1:
        return "ones"
    normal = f"normal {config.initializer_range}"
    padded = name == EMBEDDING and config.pad_token_id is not None
    return f"{normal} zero-row {config.pad_token_id}" if padded else normal
