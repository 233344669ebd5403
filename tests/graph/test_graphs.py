"""The graphs by themselves: signatures, memory, FLOPs, text."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import weakref
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from schedc.graph.build import build_model
from schedc.graph.joint import DTYPES
from schedc.graph.llama import Llama
from schedc.model.config import PRESETS
from schedc.ops import load_graph
from schedc.program.signature import Model, Value
from tests.graph.support import batch, initialise, tensor_for

TEST = PRESETS["llama-test"]
SHAPE = (2, 16)
NAMES = ["rotary"] + [f"{k}.{r}" for k in ("embedding", "layer", "head") for r in "FIW"]
DTYPE = ["fp32", "bf16", "fp16"]


@pytest.fixture(scope="module")
def models() -> dict[str, Model]:
    return {dtype: build_model(TEST, *SHAPE, dtype) for dtype in DTYPE}


def roles(values: tuple[Value, ...]) -> list[str]:
    """Roles in order, repetitions once."""
    return [v.role for i, v in enumerate(values) if i == 0 or values[i - 1].role != v.role]


def test_the_signatures_follow_the_contract(models: dict[str, Model]) -> None:
    model = models["fp32"]
    assert sorted(model.graphs) == sorted(model.sources) == sorted(NAMES)
    expected = {
        "rotary": (["positions"], ["cos", "sin"]),
        "embedding.F": (["tokens", "param"], ["y", "saved"]),
        "embedding.I": (["saved", "dy"], ["owed"]),
        "embedding.W": (["owed"], ["grad"]),
        "layer.F": (["x", "param", "cos", "sin"], ["y", "saved"]),
        "layer.I": (["saved", "dy", "param", "cos", "sin"], ["dx", "grad", "owed"]),
        "layer.W": (["owed"], ["grad"]),
        "head.F": (["x", "labels", "param"], ["loss", "saved"]),
        "head.I": (["saved", "dy", "labels", "param"], ["dx", "grad", "owed"]),
        "head.W": (["owed"], ["grad"]),
    }
    for name, (inputs, outputs) in expected.items():
        signature = model.graphs[name]
        assert (roles(signature.inputs), roles(signature.outputs)) == (inputs, outputs), name
        assert signature.name == name
        assert len(signature.digest) == 64
    for unit in model.units:
        graphs = [model.graphs[f"{unit.graphs}.{role}"] for role in "FIW"]
        forward, inner, late = graphs
        own = [name for name, _ in unit.parameters]
        assert [v.name for v in forward.inputs_of("param")] == own
        assert [v.name for v in inner.inputs_of("param")] == [
            n for n in own if n in {v.name for v in inner.inputs_of("param")}
        ]
        for made, taken in ((forward, inner), (inner, late)):
            role = "saved" if made is forward else "owed"
            ours = [replace(v, alias=None) for v in made.outputs_of(role)]
            assert ours == list(taken.inputs_of(role))
        graded = {v.name: v for g in (inner, late) for v in g.outputs_of("grad")}
        assert sorted(graded) == sorted(own)
        for name, parameter in unit.parameters:
            assert graded[name].shape == parameter.shape
            assert (name in {v.name for v in inner.outputs}) == (len(parameter.shape) == 1)


def test_units_and_parameters_are_hugging_faces() -> None:
    model = build_model(replace(TEST, num_hidden_layers=3, attention_bias=True), *SHAPE)
    assert [u.name for u in model.units] == [
        "embedding",
        "layers.0",
        "layers.1",
        "layers.2",
        "head",
    ]
    assert {u.graphs for u in model.units} == {"embedding", "layer", "head"}
    with torch.device("meta"):
        module = Llama(replace(TEST, num_hidden_layers=3, attention_bias=True))
    parameters = {p.name: p for unit in model.units for _, p in unit.parameters}
    assert {n: tuple(p.shape) for n, p in module.named_parameters()} == {
        n: p.shape for n, p in parameters.items()
    }
    assert parameters["model.norm.weight"].init == "ones"
    assert parameters["model.layers.1.self_attn.q_proj.bias"].init == "zeros"
    assert parameters["lm_head.weight"].init == "normal 0.02"
    head = dict(model.unit("head").parameters)
    assert head["norm.weight"].name == "model.norm.weight"
    assert dict(model.unit("layers.2").parameters)["mlp.up_proj.weight"].name == (
        "model.layers.2.mlp.up_proj.weight"
    )
    assert [p.name for p in model.parameters] == [n for n, _ in module.named_parameters()]
    assert not any(p.tied or p.frozen for p in model.parameters)


def test_a_padding_row_and_tied_embeddings_show_in_the_parameters() -> None:
    """The padding row is zero at first, as transformers has it; the head has none of its own."""
    model = build_model(replace(TEST, pad_token_id=3), *SHAPE)
    ((_, embedding),) = model.unit("embedding").parameters
    head = dict(model.unit("head").parameters)["lm_head.weight"]
    assert (embedding.init, head.init) == ("normal 0.02 zero-row 3", "normal 0.02")

    tied = build_model(replace(TEST, pad_token_id=3, tie_word_embeddings=True), *SHAPE)
    ((_, embedding),) = tied.unit("embedding").parameters
    head = dict(tied.unit("head").parameters)["lm_head.weight"]
    assert not embedding.tied
    assert head == replace(embedding, tied=True)
    assert embedding in tied.parameters
    assert head not in tied.parameters
    assert len(tied.parameters) == len(model.parameters) - 1
    # Each unit has the gradient of its own place, so tying changes no graph.
    assert tied.graphs == model.graphs
    assert tied.sources == model.sources


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", DTYPE)
@pytest.mark.parametrize("beside", [False, True])
def test_peak_is_what_a_call_really_holds(
    models: dict[str, Model], beside: bool, dtype: str, name: str
) -> None:
    """Storages are counted as they come and go, those the graph owns from the start.

    Those are x and dy too, but where others hold them: then they are never counted.
    """
    signature = models[dtype].graphs[name]
    function = load_graph(models[dtype].sources[name], name)
    args = [tensor_for(value, TEST.vocab_size) for value in signature.inputs]
    live: dict[int, int] = {}
    highest = 0

    def watch(tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage.data_ptr() in live or storage.data_ptr() in borrowed:
            return
        live[storage.data_ptr()] = storage.nbytes()
        weakref.finalize(storage, live.pop, storage.data_ptr(), None)

    class Meter(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal highest
            result = func(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, (tuple, list)) else (result,):
                watch(tensor)
            highest = max(highest, sum(live.values()))
            return result

    owned = {"saved", "owed"} if beside else {"x", "saved", "owed", "dy"}
    held = args if beside else []
    held = [a for v, a in zip(signature.inputs, held, strict=False) if v.role in ("x", "dy")]
    kept = [a for v, a in zip(signature.inputs, args, strict=True) if v.role not in owned]
    borrowed = {a.untyped_storage().data_ptr() for a in kept}
    for value, tensor in zip(signature.inputs, args, strict=True):
        if value.role in owned:
            watch(tensor)
    highest = sum(live.values())
    del tensor, value  # type: ignore[possibly-undefined]
    with torch.inference_mode(), Meter():
        function(args)
    assert highest == (signature.peak_beside if beside else signature.peak)
    has_held = {v.role for v in signature.inputs} & {"x", "dy"}
    assert len(held) == (len(has_held) if beside else 0) <= 1


@pytest.mark.parametrize("dtype", DTYPE)
def test_saved_is_what_eager_autograd_holds(models: dict[str, Model], dtype: str) -> None:
    """By storage, without parameters, tables and labels, which are there anyway."""
    model = models[dtype]
    module = Llama(TEST, DTYPES[dtype])
    initialise(module)
    tokens, labels = batch(TEST, *SHAPE)
    cos, sin = module.model.rotary_emb(torch.arange(SHAPE[1]))
    x = torch.randn(*SHAPE, TEST.hidden_size).to(DTYPES[dtype]).requires_grad_()
    layer, head = module.model.layers[0], module
    runs = {
        "embedding": (lambda: module.model.embed_tokens(tokens)),
        "layer": lambda: layer(x, cos, sin),
        "head": lambda: head.loss(head.lm_head(head.model.norm(x)), labels),
    }
    there = [*module.parameters(), cos, sin, labels]
    given = {t.untyped_storage().data_ptr() for t in there}
    for kind, run in runs.items():
        held: dict[int, torch.Tensor] = {}

        def pack(tensor: torch.Tensor, held=held) -> torch.Tensor:
            held[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            out = run()
        expected = sum(t.untyped_storage().nbytes() for p, t in held.items() if p not in given)
        assert sum(v.bytes for v in model.graphs[f"{kind}.F"].outputs_of("saved")) == expected
        del out


def test_inputs_that_are_saved_are_not_copied(models: dict[str, Model]) -> None:
    for kind, name in (("layer", "x"), ("head", "x"), ("embedding", "tokens")):
        aliases = [v.alias for v in models["fp32"].graphs[f"{kind}.F"].outputs_of("saved")]
        assert aliases[0] == name
        assert not any(aliases[1:])
    # In bf16 the norm keeps a fp32 copy, and x itself is not needed again.
    assert "x" not in [v.name for v in models["bf16"].graphs["layer.F"].outputs_of("saved")]


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_what_needs_precision_is_fp32(models: dict[str, Model], dtype: str) -> None:
    """Norms, the attention's log-sum-exp, the log-softmax and the loss; gradients are not: they
    have their parameter's dtype."""
    model = models[dtype]
    shown = {n: dict(re.findall(r"(\w+)\(.*# (\w+)\[", s)) for n, s in model.sources.items()}
    for name in ("layer.F", "head.F"):
        for op in ("aten_pow_Tensor_Scalar", "aten_mean_dim", "aten_rsqrt"):
            assert shown[name][op] == "fp32", (name, op)
    assert shown["head.F"]["aten_log_softmax"] == "fp32"
    kept = {v.name: v.dtype for v in model.graphs["layer.F"].outputs_of("saved")}
    assert kept["core_lse"] == "fp32"
    assert model.graphs["head.F"].outputs_of("loss")[0].dtype == "fp32"
    assert model.graphs["head.I"].inputs_of("dy")[0].dtype == "fp32"
    for name, signature in model.graphs.items():
        if name != "rotary":
            flow = signature.outputs_of("y", "dx", "grad") + signature.inputs_of("x", "cos", "sin")
            assert {v.dtype for v in flow} <= {dtype}
    assert model.sources["rotary"].count(f".to({DTYPES[dtype]})") == 2
    assert "positions.to(torch.float32)" in model.sources["rotary"]


def calls(source: str) -> list[str]:
    """The ops that a generated function calls."""
    tree = ast.parse(source)
    return [
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    ]


def test_flops_and_matmuls(models: dict[str, Model]) -> None:
    """Seven matmuls a layer and pass; attention's two, forward, see half of the pairs."""
    model = models["fp32"]
    counts = {n: calls(s).count("aten_mm") for n, s in model.sources.items()}
    assert [counts[f"layer.{role}"] for role in "FIW"] == [7, 7, 7]
    assert [counts[f"head.{role}"] for role in "FIW"] == [1, 1, 1]
    assert calls(model.sources["layer.W"]) == ["aten_mm"] * 7

    tokens, hidden, inner, heads, kv, size = 32, 64, 96, 4, 2, 16
    weights = hidden * (2 * heads + 2 * kv) * size + 3 * hidden * inner
    pairs = 2 * heads * (16 * 17 // 2) * size
    assert model.graphs["layer.F"].flops == 2 * tokens * weights + 4 * pairs
    assert model.graphs["layer.I"].flops == 2 * tokens * weights + 10 * pairs
    assert model.graphs["layer.W"].flops == 2 * tokens * weights
    for role in "FIW":
        assert model.graphs[f"head.{role}"].flops == 2 * tokens * hidden * TEST.vocab_size
        assert model.graphs[f"embedding.{role}"].flops == 0
    assert model.graphs["embedding.I"].moved == 0
    assert model.graphs["embedding.F"].moved == 2 * 4 * tokens * hidden + 8 * tokens
    assert all(signature.moved > 0 for n, signature in model.graphs.items() if n != "embedding.I")


@pytest.mark.parametrize("name", NAMES)
def test_sources_are_neutral_and_readable(models: dict[str, Model], name: str) -> None:
    for dtype in DTYPE:
        source = models[dtype].sources[name]
        function = ast.parse(source).body[-1]
        assert isinstance(function, ast.FunctionDef)
        assert function.name == name.replace(".", "_")
        assert max(map(len, source.splitlines())) <= 100
        assert "arg0" not in source
        assert "unread" not in source
        assert "device(" not in source
        assert "cpu" not in source
        assert os.getcwd() not in source


def test_equal_arguments_give_equal_bytes() -> None:
    code = (
        "from schedc.graph.build import build_model; from schedc.model.config import PRESETS;"
        "m = build_model(PRESETS['llama-test'], 2, 16); print(repr(m))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("0", "4242")
    }
    assert outputs == {repr(build_model(TEST, 2, 16)) + "\n"}


def test_layers_share_graphs_whatever_the_depth() -> None:
    deep = build_model(replace(TEST, num_hidden_layers=40), *SHAPE)
    shallow = build_model(replace(TEST, num_hidden_layers=1), *SHAPE)
    assert deep.sources == shallow.sources
    assert deep.graphs == shallow.graphs
    assert len(deep.units) == 42
