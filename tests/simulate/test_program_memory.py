"""Memory of programs: computed by hand on a model whose graphs have known bytes."""

from __future__ import annotations

import pytest

from schedc.ir.cost import Costs
from schedc.ir.order import Op, Order
from schedc.passes.lower import lower
from schedc.passes.reduce_gradients import reduce_gradients
from schedc.passes.reuse_buffers import reuse_buffers
from schedc.program.instructions import CODE, OP, STAGE, Code
from schedc.program.program import Programs
from schedc.program.signature import Model, Parameter, Role, Signature, Unit, UnitKind, Value
from schedc.simulate.order import simulate_order
from schedc.simulate.program_memory import MemoryProfile, memory_of
from tests.simulate.orders import (
    B,
    F,
    I,
    W,
    gpipe,
    interleaved,
    one_f_one_b,
    order_of,
    random_order,
    zb_h1,
)

FLAT = 4096
"""Bytes of a unit's one parameter of 64: a flat tensor is whole rows of 1024 numbers."""


def value(role: Role, name: str, size: int, alias: str | None = None) -> Value:
    return Value(role, name, (size,), "bool", (1,), alias)


def graph(name: str, peak: int, inputs: list[Value], outputs: list[Value]) -> Signature:
    """``peak`` includes x and dy, as if they were read to the end."""
    beside = peak - sum(v.bytes for v in inputs if v.role in ("x", "dy"))
    return Signature(name, "", tuple(inputs), tuple(outputs), 0, 0, peak, beside)


X, DY = value("x", "x", 100), value("dy", "dy", 100)
TOKENS, LABELS = value("tokens", "tokens", 8), value("labels", "labels", 8)
PARAM, GRAD = value("param", "p", 64), value("grad", "p", 64)
DX, Y, LOSS = value("dx", "dx", 100), value("y", "y", 100), value("loss", "loss", 4)
COS, SIN = value("cos", "cos", 1), value("sin", "sin", 1)

EMBEDDING = {
    "F": graph("embedding.F", 100, [TOKENS, PARAM],
               [Y, value("saved", "kept", 8, "tokens")]),
    "I": graph("embedding.I", 108, [value("saved", "kept", 8), DY],
               [value("owed", "kept", 8, "kept"), value("owed", "dy", 100, "dy")]),
    "W": graph("embedding.W", 172, [value("owed", "kept", 8), value("owed", "dy", 100)], [GRAD]),
}  # fmt: skip
LAYER = {
    "F": graph("layer.F", 250, [X, PARAM, COS, SIN],
               [Y, value("saved", "x", 100, "x"), value("saved", "a", 40)]),
    "I": graph("layer.I", 400, [value("saved", "x", 100), value("saved", "a", 40), DY, PARAM],
               [DX, GRAD, value("owed", "dy", 100, "dy"), value("owed", "a", 40, "a")]),
    "W": graph("layer.W", 230, [value("owed", "dy", 100), value("owed", "a", 40)], [GRAD]),
}  # fmt: skip
HEAD = {
    "F": graph("head.F", 160, [X, LABELS, PARAM],
               [LOSS, value("saved", "x", 100, "x"), value("saved", "p", 30)]),
    "I": graph("head.I", 270, [value("saved", "x", 100), value("saved", "p", 30),
                               value("dy", "dy", 4), LABELS, PARAM],
               [DX, value("owed", "p", 30, "p"), value("owed", "e", 20)]),
    "W": graph("head.W", 60, [value("owed", "p", 30), value("owed", "e", 20)], [GRAD]),
}  # fmt: skip
ROTARY = graph("rotary", 48, [], [value("cos", "cos", 16), value("sin", "sin", 16)])


def toy(layers: int) -> Model:
    def unit(name: str, kind: UnitKind) -> Unit:
        return Unit(name, kind, kind, (("p", Parameter(f"{name}.p", (64,), "fp32", "ones")),))

    units = [unit("embedding", "embedding")]
    units += [unit(f"layers.{i}", "layer") for i in range(layers)]
    units.append(unit("head", "head"))
    graphs = {g.name: g for unit in (EMBEDDING, LAYER, HEAD) for g in unit.values()}
    return Model(tuple(units), {**graphs, "rotary": ROTARY}, {}, {})


def profiles(
    order: Order, optimizer: str = "sgd", reduced: bool = False
) -> tuple[Programs, tuple[MemoryProfile, ...]]:
    """Layer s on stage s; the embedding on the first, the head on the last."""
    last = order.stages - 1
    partition = tuple(
        (*(("embedding",) * (s == 0)), f"layers.{s}", *(("head",) * (s == last)))
        for s in range(order.stages)
    )
    model = toy(order.stages)
    timeline = simulate_order(order, Costs().of_stages(order.ranks, order.stages))
    programs = lower(timeline, model, partition, order.name)
    programs = reuse_buffers(reduce_gradients(programs, model) if reduced else programs)
    return programs, memory_of(programs, model.graphs, model.units, optimizer)


def rise(programs: Programs, found: tuple[MemoryProfile, ...], op: Op, stage: int) -> int:
    """What the first ``op`` of ``stage`` adds at its highest."""
    for program, profile in zip(programs, found, strict=True):
        for row, fields in enumerate(program.stream.table.tolist()):
            if fields[CODE] == Code.RUN and (fields[OP], fields[STAGE]) == (op, stage):
                return int(profile.highest[row] - profile.after[row - 1])
    raise AssertionError("no such run")


def test_one_rank_by_hand() -> None:
    """Three units on one rank.

    F: embedding 100; layer 100 + 150, of which h1 100, a 40 and h2 100 stay; head 240 + 60. It
    leaves 270 saved and the loss. B: the head's I needs 270, of which h2 100 and p 30 were there:
    140, the most. Live then are, relative to the start, dh2 100 and e 20, less h2 100 and labels 8:
    12; W 12 − 50 + 60; −38 without p and e; the layer's I −38 − 240 + 400 = 122.
    """
    programs, (profile,) = profiles(gpipe(1, 1), "adamw")
    stays = 3 * FLAT * 4 + 32
    assert rise(programs, (profile,), F, 0) == 300
    assert rise(programs, (profile,), B, 0) == 140
    codes = programs[0].stream.table[:, CODE].tolist()
    forward, backward = (i for i, code in enumerate(codes) if code == Code.RUN)
    assert profile.after[forward] == stays + 16 + 270 + 4
    assert profile.after[backward] == stays + 4
    assert profile.after[-1] == stays
    assert (profile.peak, profile.row) == (stays + 16 + 274 + 140, backward)
    assert profile.at_peak == {
        "parameters": 3 * FLAT,
        "gradients": 3 * FLAT,
        "optimizer": 6 * FLAT,
        "rotary": 32,
        "received": 0,
        "saved": 270,
        "owed": 0,
        "produced": 0,
        "data": 20,
        "rounded": 0,
        "working": 140,
    }


def test_what_w_needs_is_held_between_i_and_w() -> None:
    """zb_h1 on two ranks; dy of rank 0 lies in a receive buffer and stays.

    I of rank 0: the layer needs 400, of which x 100, a 40 and dy 100 were there. Then dh1 100 has
    taken h1's place, and the embedding needs no more. W: the layer 230 with dy and a there.
    Rank 1: as on one rank up to 12 after the head's I, but e and p stay: 12 − 240 + 400.
    """
    programs, found = profiles(zb_h1(2, 1))
    assert rise(programs, found, I, 0) == 160
    assert rise(programs, found, W, 0) == 90
    assert rise(programs, found, I, 1) == 172
    assert rise(programs, found, F, 1) == 200
    assert [profile.at_peak["received"] for profile in found] == [100, 100]
    assert [profile.at_peak["optimizer"] for profile in found] == [0, 0]


def test_a_stage_hands_over_to_its_neighbour_on_the_same_rank() -> None:
    """y of stage 0 is x of stage 1, and lives until the backward of stage 1 drops it."""
    order = order_of([[(F, 0, 0), (F, 1, 0), (B, 1, 0), (B, 0, 0)]], (0, 0), 1)
    programs, (profile,) = profiles(order)
    codes = programs[0].stream.table[:, CODE].tolist()
    runs = [i for i, code in enumerate(codes) if code == Code.RUN]
    stays = 4 * FLAT * 2 + 32
    assert [int(profile.after[i]) - stays for i in runs] == [
        8 + 140 + 100,  # tokens, saved of stage 0, y
        8 + 140 + 100 + 8 + 170 + 4,  # labels, saved of stage 1, loss
        8 + 140 + 100 + 4,  # dx instead of y
        4,
    ]
    # Head: 140. Layer: h and p gone, dh 100 there, labels gone: −38, − 240 + 400.
    assert rise(programs, (profile,), B, 1) == 140


@pytest.mark.parametrize("reduced", [False, True])
@pytest.mark.parametrize(
    "order",
    [gpipe(4, 5), one_f_one_b(4, 8), zb_h1(4, 8), interleaved(2, 5, 3), zb_h1(3, 1)],
    ids=lambda order: order.name,
)
def test_all_that_a_step_took_is_free_at_its_end(order: Order, reduced: bool) -> None:
    programs, found = profiles(order, "adamw", reduced)
    for program, profile in zip(programs, found, strict=True):
        stays = sum(v for k, v in profile.at_peak.items() if k in STAYS)
        assert len(profile.after) == len(profile.highest) == len(program.stream)
        assert profile.after[-1] == stays
        assert (profile.highest >= profile.after).all()
        assert (profile.after >= stays).all()
        assert profile.peak == profile.highest.max() == profile.highest[profile.row]
        assert sum(profile.at_peak.values()) == profile.peak


STAYS = ("parameters", "gradients", "optimizer", "rotary", "received")


@pytest.mark.parametrize("seed", range(20))
def test_a_body_leaves_what_the_slots_say(seed: int) -> None:
    """Peaks are consistent on any placement: never below what stands in the slots."""
    order = random_order(seed, P=1 + seed % 3, M=1 + seed % 4, S=1 + seed % 5)
    rows = [[(t.op, t.stage, t.microbatch) for t in order.tasks(r)] for r in range(order.ranks)]
    rows = [[row for row in rank if row[0] is not Op.R] for rank in rows]
    order = order_of(rows, order.rank_of, order.microbatches)
    for profile in profiles(order)[1]:
        assert profile.after[-1] == sum(profile.at_peak[name] for name in STAYS)
        assert profile.at_peak["working"] >= 0


def test_more_in_flight_means_more_memory() -> None:
    """1F1B keeps P − r microbatches on rank r, GPipe all of them."""
    _, early = profiles(one_f_one_b(4, 8))
    _, all_first = profiles(gpipe(4, 8))
    assert [p.at_peak["saved"] for p in early] == [140 * 4, 40 * 3, 40 * 2, 170]
    assert [p.at_peak["saved"] for p in all_first] == [140 * 8, 40 * 8, 40 * 8, 170 * 8]
