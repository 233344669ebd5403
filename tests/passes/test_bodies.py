"""Bodies of a real model, step by step, and the bytes of what it keeps, from its signatures."""

from __future__ import annotations

import pytest

from schedc.ir.order import Op
from schedc.passes.bodies import make_bodies
from schedc.passes.pools import make_pools
from schedc.program.body import Body, Call
from schedc.program.signature import Model, Role, Signature, Unit, Value
from tests.passes.cases import llama

HALVES = (("embedding", "layers.0"), ("layers.1", "head"))

FIRST_F = (
    Call("embedding.F", "embedding", ("tokens",), ("h1", "saved.0")),
    Call("layer.F", "layers.0", ("h1",), ("y", "saved.1")),
)
FIRST_I = (
    Call("layer.I", "layers.0", ("saved.1", "dy"), ("dh1", "owed.1")),
    Call("embedding.I", "embedding", ("saved.0", "dh1"), ("owed.0",)),
)
FIRST_W = (
    Call("layer.W", "layers.0", ("owed.1",), ()),
    Call("embedding.W", "embedding", ("owed.0",), ()),
)
LAST_F = (
    Call("layer.F", "layers.1", ("x",), ("h1", "saved.0")),
    Call("head.F", "head", ("h1", "labels"), ("loss", "saved.1")),
)
LAST_I = (
    Call("head.I", "head", ("saved.1", "tangent", "labels"), ("dh1", "owed.1")),
    Call("layer.I", "layers.1", ("saved.0", "dh1"), ("dx", "owed.0")),
)
LAST_W = (
    Call("head.W", "head", ("owed.1",), ()),
    Call("layer.W", "layers.1", ("owed.0",), ()),
)

EXPECTED = {
    # The embedding keeps the tokens themselves, and its W reads them: they are held till W.
    (Op.F, 0): Body(Op.F, 0, False, ("tokens",), ("y", "saved"), FIRST_F),
    (Op.I, 0): Body(Op.I, 0, False, ("tokens", "dy", "saved"), ("owed",), FIRST_I),
    # The layer's W multiplies by dy itself.
    (Op.W, 0): Body(Op.W, 0, False, ("tokens", "dy", "owed"), (), FIRST_W),
    (Op.B, 0): Body(
        Op.B, 0, False, ("tokens", "dy", "saved"), (),
        (FIRST_I[0], FIRST_W[0], FIRST_I[1], FIRST_W[1]),
    ),
    # The layer saves x itself for its norm's gradient, which is I's; W has no use for it.
    (Op.F, 1): Body(Op.F, 1, False, ("x", "labels"), ("loss", "saved"), LAST_F),
    (Op.I, 1): Body(Op.I, 1, False, ("x", "labels", "saved"), ("dx", "owed"), LAST_I),
    (Op.W, 1): Body(Op.W, 1, False, ("owed",), (), LAST_W),
    (Op.B, 1): Body(
        Op.B, 1, False, ("x", "labels", "saved"), ("dx",),
        (LAST_I[0], LAST_W[0], LAST_I[1], LAST_W[1]),
    ),
}  # fmt: skip


def test_bodies_of_two_halves() -> None:
    assert make_bodies(llama(2), HALVES) == EXPECTED


def test_a_whole_model_on_one_stage() -> None:
    """B goes from last to first, each unit's W right after its I; no gradient leaves the stage."""
    body = make_bodies(llama(2), (("embedding", "layers.0", "layers.1", "head"),))[Op.B, 0]
    assert [f"{step.graph} {step.unit}" for step in body.steps if isinstance(step, Call)] == [
        "head.I head", "head.W head",
        "layer.I layers.1", "layer.W layers.1",
        "layer.I layers.0", "layer.W layers.0",
        "embedding.I embedding", "embedding.W embedding",
    ]  # fmt: skip
    assert (body.reads, body.writes) == (("tokens", "labels", "saved"), ())


# ---- bytes --------------------------------------------------------------------------------------


def kept(model: Model, stage: tuple[str, ...]) -> tuple[int, int]:
    """Bytes that saved and owed tensors of a stage own, by giving every tensor a storage.

    A storage is a name and a size. What a graph hands out by reference has its input's storage.
    Not counted: storages of the stage's own buffers (its input, its output's gradient), of labels,
    parameters and rotary tables.
    """
    outside = {"x", "tokens", "labels", "dy", "param", "cos", "sin"}
    saved: dict[str, int] = {}
    owed: dict[str, int] = {}
    for j, name in enumerate(stage):
        graphs = model.unit(name).graphs
        forward, backward = model.graphs[f"{graphs}.F"], model.graphs[f"{graphs}.I"]
        storage = {}
        for value in forward.inputs:
            hidden = value.role == "x" and j > 0
            storage[value.name] = f"hidden {j}" if hidden else f"outside {value.role}"
            assert value.role in outside
        after = {}
        for value in forward.outputs_of("saved"):
            at = storage[value.alias] if value.alias else f"{name} saved {value.name}"
            after[value.name] = at
            saved[at] = value.bytes
        for value in backward.inputs_of("dy"):
            last = j == len(stage) - 1
            after[value.name] = "outside dy" if last else f"gradient {j}"
        for value in backward.outputs_of("owed"):
            at = after[value.alias] if value.alias else f"{name} owed {value.name}"
            owed[at] = value.bytes
    return tuple(
        sum(size for at, size in found.items() if not at.startswith("outside"))
        for found in (saved, owed)
    )  # pyright: ignore[reportReturnType]


STAGES = [
    ("embedding",),
    ("embedding", "layers.0"),
    ("embedding", "layers.0", "layers.1", "head"),
    ("layers.0",),
    ("layers.0", "layers.1"),
    ("layers.1", "head"),
    ("head",),
]


@pytest.mark.parametrize("stage", STAGES, ids="-".join)
def test_pools_hold_the_bytes_of_what_the_graphs_keep(stage: tuple[str, ...]) -> None:
    pools = {pool.name: pool.bytes for pool in make_pools(llama(2), {5: stage}, split=True)}
    saved, owed = kept(llama(2), stage)
    assert pools["saved5"] == saved
    assert pools["owed5"] == owed


def test_one_layer_by_hand() -> None:
    """Bytes in fp32, from the shapes of a Llama of hidden 64, MLP 96, heads 4 and 2 of 16.

    With N = 2 x 16 tokens: two norms keep rsqrt N, normalised 64 N and the product with the weight
    64 N each; attention q 64 N, k and v 32 N each, its output 64 N and the log-sum-exp 4 N; the
    residual stream between the halves 64 N; the MLP gate, silu, up and their product, 96 N each.
    The layer's own input x is the stage's buffer. To W it owes the two norms' outputs, attention's
    output and the MLP's product (of those, shared with saved), and six gradients of projections:
    up, gate 96 N, o, q 64 N, k, v 32 N; dy is the stage's buffer.
    """
    N = 2 * 16
    saved = 2 * (1 + 64 + 64) + (64 + 32 + 32 + 64 + 4) + 64 + 4 * 96
    owed = (64 + 64 + 64 + 96) + (2 * 96 + 2 * 64 + 2 * 32)
    pools = {pool.name: pool.bytes for pool in make_pools(llama(2), {0: ("layers.0",)}, split=True)}
    assert pools["saved0"] == 4 * N * saved
    assert pools["owed0"] == 4 * N * owed


def test_pools_of_a_rank() -> None:
    """Which pools there are, and what one slot of each is."""
    model = llama(2)
    hidden = ((2, 16, 64), "fp32", 2 * 16 * 64 * 4)
    pools = make_pools(model, {0: HALVES[0], 3: HALVES[1]}, split=False)
    shown = {p.name: (p.shape, p.dtype, p.bytes) for p in pools if not p.name.startswith("saved")}
    assert shown == {
        "tokens": ((2, 16), "int64", 2 * 16 * 8),
        "labels": ((2, 16), "int64", 2 * 16 * 8),
        "x": hidden,
        "y": hidden,
        "dx": hidden,
        "dy": hidden,
        "loss": ((), "fp32", 4),
    }
    assert {p.name for p in pools if p.name.startswith("saved")} == {"saved0", "saved3"}
    only_head = make_pools(model, {7: ("head",)}, split=True)
    assert {pool.name for pool in only_head} == {"x", "dx", "labels", "loss", "saved7", "owed7"}


def value(role: Role, name: str, size: int, alias: str | None = None) -> Value:
    return Value(role, name, (size,), "bool", (1,), alias)


def toy() -> Model:
    """Two layers whose W reads x, dy, one saved tensor twice, and one gradient of its own."""
    saved = (value("saved", "x", 100), value("saved", "a", 40))
    owed = (
        value("owed", "x", 100, "x"),
        value("owed", "a", 40, "a"),
        value("owed", "a again", 40, "a"),
        value("owed", "dy", 100, "dy"),
        value("owed", "g", 7),
    )
    x, dy = value("x", "x", 100), value("dy", "dy", 100)
    ports = {
        "F": ((x,), (value("y", "y", 100), value("saved", "x", 100, "x"), saved[1])),
        "I": ((*saved, dy), (value("dx", "dx", 100), *owed)),
        "W": (owed, ()),
    }
    graphs = {
        f"layer.{op}": Signature(f"layer.{op}", "", inputs, outputs, 0, 0, 0, 0)
        for op, (inputs, outputs) in ports.items()
    }
    units = tuple(Unit(f"layers.{i}", "layer", "layer", ()) for i in range(2))
    return Model(units, graphs, {}, {})


def test_what_is_shared_is_counted_once() -> None:
    """Saved: a of both layers, and the hidden states between them.

    Owed: of the first layer a, g and dy (which is the second's dx); of the second a, g and its x
    (those hidden states). The stage's x and dy are buffers of their own, which W holds.
    """
    pools = {p.name: p.bytes for p in make_pools(toy(), {1: ("layers.0", "layers.1")}, split=True)}
    assert pools["saved1"] == 40 + 100 + 40
    assert pools["owed1"] == (40 + 7 + 100) + (40 + 7 + 100)
    bodies = make_bodies(toy(), (("layers.0", "layers.1"),))
    assert bodies[Op.I, 0].reads == ("x", "dy", "saved")
    assert bodies[Op.W, 0].reads == ("x", "dy", "owed")
