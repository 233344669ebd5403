"""What frozen parameters leave of the graphs: fewer gradients, matmuls and saved tensors."""

from __future__ import annotations

import ast
import fnmatch
from dataclasses import replace

import pytest
import torch

from schedc.graph.build import build_model, parameter_names
from schedc.graph.llama import Llama
from schedc.model.config import PRESETS
from schedc.ops import load_graph
from schedc.program.signature import Model
from tests.graph.support import initialise

TEST = replace(PRESETS["llama-test"], num_hidden_layers=3)
WHOLE = build_model(TEST, 2, 16)


def frozen_model(*patterns: str) -> Model:
    names = parameter_names(TEST)
    frozen = frozenset(n for pattern in patterns for n in fnmatch.filter(names, pattern))
    return build_model(TEST, 2, 16, frozen=frozen)


def matmuls(model: Model, unit: str, role: str) -> int:
    tree = ast.parse(model.sources[f"{model.unit(unit).graphs}.{role}"])
    called = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return sum(isinstance(function, ast.Name) and function.id == "aten_mm" for function in called)


def gradients(model: Model, unit: str) -> set[str]:
    prefix = model.unit(unit).graphs
    return {v.name for role in "IW" for v in model.graphs[f"{prefix}.{role}"].outputs_of("grad")}


def saved_bytes(model: Model, unit: str) -> int:
    return sum(v.bytes for v in model.graphs[f"{model.unit(unit).graphs}.F"].outputs_of("saved"))


def test_units_with_equal_parts_frozen_share_graphs() -> None:
    model = frozen_model("model.embed_tokens.*", "model.layers.0.*")
    assert [unit.graphs for unit in model.units] == [
        "embedding",
        "layer",  # nothing to do
        "layer2",  # trains, but needs no dx
        "layer3",
        "head",
    ]
    digests = [model.graphs[f"{prefix}.I"].digest for prefix in ("layer", "layer2", "layer3")]
    assert len(set(digests)) == 3
    assert model.sources["layer3.I"].replace("layer3", "layer") == WHOLE.sources["layer.I"]
    # Nothing of the order in which layers are frozen matters to a graph.
    later = frozen_model("model.layers.2.*")
    assert [unit.graphs for unit in later.units[1:4]] == ["layer", "layer", "layer2"]


def test_gradients_flow_as_far_as_there_is_something_to_train() -> None:
    model = frozen_model("model.embed_tokens.*", "model.layers.0.*")
    roles = {}
    for unit in model.units:
        inner, late = (model.graphs[f"{unit.graphs}.{role}"] for role in "IW")
        assert inner.idle == (not inner.inputs_of("dy"))
        roles[unit.name] = (
            len(inner.inputs_of("dy")), len(inner.outputs_of("dx")), inner.idle, late.idle
        )  # fmt: skip
    assert roles == {
        "embedding": (0, 0, True, True),
        "layers.0": (0, 0, True, True),
        "layers.1": (1, 0, False, False),
        "layers.2": (1, 1, False, False),
        "head": (1, 1, False, False),
    }
    assert saved_bytes(model, "embedding") == saved_bytes(model, "layers.0") == 0
    assert 0 < saved_bytes(model, "layers.1") <= saved_bytes(WHOLE, "layers.1")
    # The norm before q, k and v needs their matmuls, dx or not. Without that norm they fall away,
    # and the one of o serves W only.
    assert (matmuls(model, "layers.1", "I"), matmuls(model, "layers.1", "W")) == (7, 7)
    model = frozen_model("model.embed_tokens.*", "model.layers.0.*", "*input_layernorm*")
    assert (matmuls(model, "layers.1", "I"), matmuls(model, "layers.1", "W")) == (3, 8)


@pytest.mark.parametrize(
    ("patterns", "graded", "inner", "late"),
    [
        (["*layers.1.*_proj.weight"], {"input_layernorm", "post_attention_layernorm"}, 7, 0),
        (["*layers.1.*norm*"], {"q", "k", "v", "o", "gate", "up", "down"}, 7, 7),
        (["*layers.1.mlp.*"], {"input_layernorm", "post_attention_layernorm", *"qkvo"}, 7, 4),
        (["*layers.1.*"], set(), 7, 0),
    ],
)
def test_a_frozen_matrix_has_no_matmul_in_W(
    patterns: list[str], graded: set[str], inner: int, late: int
) -> None:
    model = frozen_model(*patterns)
    found = {n.split(".")[-2].removesuffix("_proj") for n in gradients(model, "layers.1")}
    assert found == graded
    assert matmuls(model, "layers.1", "I") == inner
    assert matmuls(model, "layers.1", "W") == late
    unit = model.unit("layers.1")
    assert model.graphs[f"{unit.graphs}.W"].idle == (late == 0)
    assert gradients(model, "layers.1") == {n for n, p in unit.parameters if not p.frozen}
    if late < 7:
        assert saved_bytes(model, "layers.1") < saved_bytes(WHOLE, "layers.1")


@pytest.mark.parametrize(
    "patterns", [["*_proj.weight"], ["*norm*"], ["*.mlp.*"], ["*"], ["*embed*", "*layers.0.*"]]
)
def test_saved_is_what_eager_autograd_holds(patterns: list[str]) -> None:
    """Of a layer in the middle, by storage, without parameters and tables."""
    model = frozen_model(*patterns)
    module = Llama(TEST)
    initialise(module)
    for pattern in patterns:
        for name in fnmatch.filter(parameter_names(TEST), pattern):
            module.get_parameter(name).requires_grad_(False)
    cos, sin = module.model.rotary_emb(torch.arange(16))
    unit = model.unit("layers.1")
    has_dx = bool(model.graphs[f"{unit.graphs}.I"].outputs_of("dx"))
    x = torch.randn(2, 16, TEST.hidden_size).requires_grad_(has_dx)
    given = {t.untyped_storage().data_ptr() for t in (*module.parameters(), cos, sin)}
    held: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        held[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = module.model.layers[1](x, cos, sin)
    expected = sum(t.untyped_storage().nbytes() for p, t in held.items() if p not in given)
    assert saved_bytes(model, "layers.1") == expected
    del out


def test_with_everything_frozen_only_the_loss_is_computed() -> None:
    model = frozen_model("*")
    for unit in model.units:
        assert saved_bytes(model, unit.name) == 0
        for role in "IW":
            signature = model.graphs[f"{unit.graphs}.{role}"]
            assert signature.idle
            assert (signature.flops, signature.moved, signature.peak) == (0, 0, 0)
            source = model.sources[signature.name]
            assert load_graph(source, signature.name)([]) == ()
            assert "all of it is frozen" in source


def test_what_is_no_parameter_cannot_be_frozen() -> None:
    with pytest.raises(AssertionError, match="no parameters"):
        build_model(TEST, 2, 16, frozen=frozenset({"model.layers.9.mlp.up_proj.weight"}))
