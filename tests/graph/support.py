"""Real tensors for graphs, and eager autograd to hold them against."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import torch
from torch import Tensor

from schedc.graph.build import build_model
from schedc.graph.joint import DTYPES
from schedc.graph.llama import Llama
from schedc.model.config import LlamaConfig
from schedc.ops import load_graph
from schedc.program.signature import Model, Signature, Value


def tensor_for(value: Value, vocabulary: int) -> Tensor:
    """A tensor of a value's shape, dtype and strides; random by its name."""
    generator = torch.Generator().manual_seed(zlib.crc32(value.name.encode()))
    if value.dtype == "int64":
        return torch.randint(0, vocabulary, value.shape, generator=generator)
    tensor = torch.randn(value.shape, generator=generator).to(DTYPES[value.dtype])
    return tensor.as_strided(value.shape, value.stride)


def initialise(model: Llama, seed: int = 0) -> None:
    """Random parameters: normal weights that keep activations in range, norms near one."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            size = parameter.shape[-1]
            parameter.copy_(noise * size**-0.5 if parameter.ndim > 1 else 1 + 0.1 * noise)


def batch(config: LlamaConfig, microbatch: int, sequence: int) -> tuple[Tensor, Tensor]:
    """Tokens, and labels already shifted, some of them ignored."""
    generator = torch.Generator().manual_seed(1)
    shape = (microbatch, sequence + 1)
    tokens = torch.randint(0, config.vocab_size, shape, generator=generator)
    ids, labels = (
        part.clone(memory_format=torch.contiguous_format)
        for part in (tokens[:, :-1], tokens[:, 1:])
    )
    labels[:, 2:5] = -100
    return ids, labels


@dataclass
class Runner:
    """Runs a model's graphs by name, as an executor would: inputs by role, a boxed call."""

    model: Model

    def __post_init__(self) -> None:
        self.functions = {n: load_graph(source, n) for n, source in self.model.sources.items()}

    def call(self, name: str, inputs: dict[str, list[Tensor]]) -> dict[str, list[Tensor]]:
        """Inputs and outputs by role, in the signature's order."""
        signature = self.model.graphs[name]
        queues = {role: list(tensors) for role, tensors in inputs.items()}
        args = [queues[value.role].pop(0) for value in signature.inputs]
        check(args, signature.inputs)
        given = {value.name: tensor for value, tensor in zip(signature.inputs, args, strict=True)}
        with torch.inference_mode():
            results = self.functions[name](args)
        assert args == [], "the graph did not take its inputs"
        check(results, signature.outputs)
        outputs: dict[str, list[Tensor]] = {}
        storages = {t.untyped_storage().data_ptr(): n for n, t in given.items()}
        seen: set[int] = set()
        for value, tensor in zip(signature.outputs, results, strict=True):
            storage = tensor.untyped_storage().data_ptr()
            assert storages.get(storage) == value.alias, f"{name}: {value.name}"
            assert storage not in seen, f"{name}: {value.name} shares an output's storage"
            seen.add(storage)
            outputs.setdefault(value.role, []).append(tensor)
        return outputs

    def backward(
        self,
        prefix: str,
        saved: list[Tensor],
        dy: Tensor | None,
        others: dict[str, dict[str, Tensor]],
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """I then W of a unit, where they have anything to do: dx and the gradients of its
        parameters by name."""
        gradients: dict[str, Tensor] = {}
        inner = self.model.graphs[f"{prefix}.I"]
        if inner.idle:
            return None, {}
        inputs = {role: by_name(inner, role, tensors) for role, tensors in others.items()}
        inputs |= {"saved": saved, "dy": [dy] if dy is not None else []}
        out = self.call(f"{prefix}.I", inputs)
        gradients.update(named(inner, out))
        if not self.model.graphs[f"{prefix}.W"].idle:
            late = self.call(f"{prefix}.W", {"owed": out["owed"]})
            gradients.update(named(self.model.graphs[f"{prefix}.W"], late))
        return out.get("dx", [None])[0], gradients


def by_name(signature: Signature, role: str, tensors: dict[str, Tensor]) -> list[Tensor]:
    return [tensors[v.name] for v in signature.inputs if v.role == role]


def named(signature: Signature, outputs: dict[str, list[Tensor]]) -> dict[str, Tensor]:
    names = [v.name for v in signature.outputs if v.role == "grad"]
    return dict(zip(names, outputs.get("grad", []), strict=True))


def check(tensors: list[Tensor] | tuple[Tensor, ...], values: tuple[Value, ...]) -> None:
    """Shapes, dtypes and strides are those of the signature."""
    for tensor, value in zip(tensors, values, strict=True):
        assert tuple(tensor.shape) == value.shape, value
        assert tensor.dtype == DTYPES[value.dtype], value
        assert tensor.stride() == value.stride, value


def run_step(
    model: Model, module: Llama, tokens: Tensor, labels: Tensor, tangent: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Forward and backward of the whole model through its graphs: loss, gradients by HF name.

    Those of a tied parameter are summed. A gradient goes from unit to unit where both of them name
    it, or neither does.
    """
    runner = Runner(model)
    parameters = {name: p.detach() for name, p in module.named_parameters()}
    tables = runner.call("rotary", {"positions": [torch.arange(tokens.shape[1])]})
    others = {"labels": {"labels": labels}, **{n: {n: tables[n][0]} for n in ("cos", "sin")}}
    data, kept, flow = {"tokens": [tokens]}, [], tokens
    for unit in model.units:
        own = {inner: parameters[p.name] for inner, p in unit.parameters}
        role = "tokens" if unit.kind == "embedding" else "x"
        data = {role: [flow], "param": list(own.values()), "labels": [labels], **tables}
        out = runner.call(f"{unit.graphs}.F", data)
        flow = out["loss" if unit.kind == "head" else "y"][0]
        kept.append((unit, own, out.get("saved", [])))
    loss, gradients = flow, {}
    dy: Tensor | None = tangent
    for unit, own, saved in reversed(kept):
        wanted = bool(model.graphs[f"{unit.graphs}.I"].inputs_of("dy"))
        assert wanted == (dy is not None) or unit.kind == "head"
        dx, grads = runner.backward(unit.graphs, saved, dy, {**others, "param": own})
        names = {inner: p.name for inner, p in unit.parameters}
        for inner, gradient in grads.items():
            name = names[inner]
            gradients[name] = gradients[name] + gradient if name in gradients else gradient
        dy = dx
    return loss, gradients


__all__ = ["Runner", "batch", "build_model", "check", "initialise", "run_step", "tensor_for"]
