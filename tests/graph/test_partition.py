"""Every layer in exactly one stage, or a refusal with the numbers."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedc.diagnostics import DiagnosticError, Source, Span
from schedc.graph.build import build_model
from schedc.graph.partition import assign_layers, partition, unit_costs
from schedc.model.config import PRESETS


def names(layers: int) -> tuple[str, ...]:
    return ("embedding", *(f"layers.{i}" for i in range(layers)), "head")


def costs(layers: int, head: int = 40) -> tuple[int, ...]:
    return (0, *(100,) * layers, head)


def code_of(layers: int, stages: int, layout: str) -> tuple[str, str]:
    source = Source("plan.sched", 'layers "…"\n')
    span = Span(source, 1, 8, 1, 11)
    with pytest.raises(DiagnosticError) as caught:
        assign_layers(names(layers), costs(layers), stages, layout, span)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.span is span
    return diagnostic.code, diagnostic.message


@pytest.mark.parametrize("layout", ["balanced", "even"])
def test_every_unit_is_in_exactly_one_stage(layout: str) -> None:
    """A06: all that up to six ranks of up to three stages each can be asked for."""
    for layers in range(1, 21):
        for stages in range(1, 19):
            units = names(layers)
            if stages > layers + 2:
                code, message = code_of(layers, stages, layout)
                assert code == "E802"
                assert f"{stages} stages" in message
                assert f"{layers + 2} units" in message
                continue
            assigned = assign_layers(units, costs(layers), stages, layout)
            assert len(assigned) == stages
            assert all(assigned)
            assert tuple(unit for stage in assigned for unit in stage) == units


def test_even_spreads_the_layers() -> None:
    for layers in range(1, 21):
        for stages in range(1, layers + 1):
            assigned = assign_layers(names(layers), costs(layers), stages, "even")
            counts = [sum(u.startswith("layers.") for u in stage) for stage in assigned]
            assert max(counts) - min(counts) <= 1
            assert counts == sorted(counts, reverse=True)
    assert assign_layers(names(2), costs(2), 3, "even") == (
        ("embedding", "layers.0"),
        ("layers.1",),
        ("head",),
    )
    assert assign_layers(names(1), costs(1), 3, "even") == (
        ("embedding",),
        ("layers.0",),
        ("head",),
    )


@given(st.lists(st.integers(0, 9), min_size=3, max_size=9), st.data())
def test_balanced_is_the_best_of_all_cuts(weights: list[int], data: st.DataObject) -> None:
    stages = data.draw(st.integers(1, len(weights)))
    units = names(len(weights) - 2)
    assigned = assign_layers(units, weights, stages)
    weight = dict(zip(units, weights, strict=True))

    def rank(cuts: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
        ends = (0, *cuts, len(weights))
        loads = [sum(weights[a:b]) for a, b in pairwise(ends)]
        return max(loads), sum(load * load for load in loads), cuts

    best = min(rank(cuts) for cuts in combinations(range(1, len(weights)), stages - 1))
    loads = [sum(weight[u] for u in stage) for stage in assigned]
    assert (max(loads), sum(load * load for load in loads)) == best[:2]
    assert assigned == assign_layers(units, weights, stages)


@pytest.mark.parametrize(
    ("layout", "counts"),
    [
        ("E t*3 | t*5 | t*5 | t*3 H", (4, 5, 5, 4)),
        ("Ettt|t*5|ttttt|tttH", (4, 5, 5, 4)),
        ("E | t *8 | t * 7 t | H", (1, 8, 8, 1)),
    ],
)
def test_a_layout_is_followed(layout: str, counts: tuple[int, ...]) -> None:
    assigned = assign_layers(names(16), costs(16), 4, layout)
    assert tuple(map(len, assigned)) == counts
    assert tuple(unit for stage in assigned for unit in stage) == names(16)


@pytest.mark.parametrize(
    ("layout", "code", "says"),
    [
        ("E t*2 | t H", "E801", "3 layers, the model 4"),
        ("E t*2 | t*3 H", "E801", "5 layers, the model 4"),
        ("t*2 | t*2 H", "E801", "the embedding 0 times"),
        ("E t*2 | t*2", "E801", "the head 0 times"),
        ("E t*2 H | t*2 H", "E801", "the head 2 times"),
        ("E t*4 | ", "E802", "stage 1"),
        ("", "E814", "1 stage, the schedule 2"),
        ("E t*2 | t | t H", "E814", "3 stages, the schedule 2"),
        ("E t*2 | H t*2", "E804", "begins with"),
        ("E t*2 | t*0 t*2 H", "E804", '"t*0"'),
        ("E*1 t*2 | t*2 H", "E804", '"E*1"'),
        ("E t*2 ; t*2 H | t", "E804", '";"'),
        ("E t*-2 | t*2 H", "E804", '"*-2"'),
        ("E t*99999999 | H", "E804", '"t*99999999"'),
        ("blanced", "E804", '"blanced"'),
    ],
)
def test_a_wrong_layout_is_refused(layout: str, code: str, says: str) -> None:
    got, message = code_of(4, 2, layout)
    assert (got, says in message) == (code, True), message


def test_the_tiny_model_is_balanced_by_its_own_flops() -> None:
    model = build_model(PRESETS["llama-tiny"], 2, 128)
    cost = unit_costs(model)
    assert cost["embedding"] == 0
    assert cost["layers.0"] > cost["head"] > 0
    assert partition(model, 2, "balanced") == (
        ("embedding", "layers.0", "layers.1"),
        ("layers.2", "layers.3", "head"),
    )
