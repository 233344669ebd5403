"""Plans: their keys, what `--set` changes, what is refused (tests/errors has the messages)."""

import pytest

from schedc.diagnostics import DiagnosticError
from schedc.ir.mesh import Mesh
from schedc.ir.precision import Precision
from schedc.sema.library import bundled, load_text
from schedc.sema.plan import make_plan, plan_and_instance
from schedc.sema.plan_text import print_plan

PLAN = """
plan p {
    model "llama-tiny" sequence 2 * 64 batch 32 in microbatches of 2 mesh dp = 2, pp = 2
    schedule interleaved(V = 3) precision fp32
}
"""


def codes(settings: dict[str, str], text: str = PLAN) -> list[str]:
    with pytest.raises(DiagnosticError) as caught:
        make_plan(load_text("p.sched", text), "p", settings)
    assert all(diagnostic.span is not None for diagnostic in caught.value.diagnostics)
    return [diagnostic.code for diagnostic in caught.value.diagnostics]


def test_the_bundled_plan() -> None:
    plan = make_plan(bundled(), "llama_tiny_zb", {})
    assert (plan.name, plan.model, plan.sequence) == ("llama_tiny_zb", "llama-tiny", 128)
    assert (plan.batch, plan.microbatch, plan.microbatches) == (32, 2, 8)
    assert plan.mesh == Mesh(dp=2, pp=2)
    assert (plan.layers, plan.optimizer) == ("balanced", "adamw")
    assert plan.precision == Precision("fp32")
    assert (plan.order.name, plan.order.ranks, plan.order.microbatches) == ("zb_h1", 2, 8)
    assert str(plan.spans["batch"]) == "llama_tiny_zb.sched:6:16"
    assert all(type(key) is str for key in plan.spans)


def test_settings_come_before_the_plan() -> None:
    library = load_text("p.sched", PLAN)
    plan, instance = plan_and_instance(library, "p", {})
    assert instance.title == "interleaved(V=3)"
    assert plan.sequence == 128
    changed, instance = plan_and_instance(
        library,
        "p",
        {
            "pp": "4",
            "dp": "1",
            "microbatch": "1",
            "batch": "8",
            "sequence": "64",
            "schedule.V": "1 + 1",
            "layers": "even",
            "optimizer": "sgd",
            "model": "my/model",
        },
    )
    assert instance.title == "interleaved(V=2)"
    assert changed.mesh == Mesh(pp=4)
    assert (changed.microbatches, changed.sequence) == (8, 64)
    assert (changed.layers, changed.optimizer, changed.model) == ("even", "sgd", "my/model")
    assert str(changed.spans["pp"]) == "--set:1:4"


def test_another_schedule_drops_the_arguments() -> None:
    library = load_text("p.sched", PLAN)
    assert plan_and_instance(library, "p", {"schedule": "gpipe"})[1].title == "gpipe"
    chosen = plan_and_instance(library, "p", {"schedule": "interleaved(V = 4)"})[1]
    assert chosen.title == "interleaved(V=4)"


def test_layouts_are_kept_as_text() -> None:
    library = load_text("p.sched", PLAN)
    assert make_plan(library, "p", {"layers": "E t*3 | t*3 H"}).layers == "E t*3 | t*3 H"
    text = PLAN.replace("precision", 'layers "E t | t H" precision')
    assert make_plan(load_text("p.sched", text), "p", {}).layers == "E t | t H"


def test_patterns_to_freeze() -> None:
    text = PLAN.replace("precision", 'freeze "model.embed_tokens.*", "model.layers.0.*" precision')
    library = load_text("p.sched", text)
    plan, instance = plan_and_instance(library, "p", {})
    assert plan.freeze == ("model.embed_tokens.*", "model.layers.0.*")
    assert str(plan.spans["freeze model.layers.0.*"]) == "p.sched:4:64"
    again = make_plan(load_text("again.sched", print_plan(plan, instance)), "p", {})
    assert again.freeze == plan.freeze
    assert make_plan(library, "p", {"freeze": ""}).freeze == ()
    assert make_plan(library, "p", {"freeze": '"a.*", b'}).freeze == ("a.*", "b")
    assert make_plan(load_text("p.sched", PLAN), "p", {}).freeze == ()


@pytest.mark.parametrize("patterns", ['"a", "a"', '"", "a"', '" "'])
def test_patterns_that_are_none(patterns: str) -> None:
    assert codes({}, PLAN.replace("precision", f"freeze {patterns} precision")) == ["E811"]


@pytest.mark.parametrize(
    ("settings", "sequences"),
    [({}, 32), ({"batch": "30"}, 32), ({"evaluation": "64"}, 64), ({"evaluation": "4"}, 4)],
)
def test_an_evaluation_has_microbatches_of_its_own(
    settings: dict[str, str], sequences: int
) -> None:
    plan = make_plan(load_text("p.sched", PLAN), "p", settings)
    assert plan.evaluation == sequences
    assert plan.evaluation_order.microbatches == sequences // 4
    assert len(plan.evaluation_order) == plan.order.stages * sequences // 4  # only F


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"P": "4"}, ["E812"]),
        ({"M": "4"}, ["E812"]),
        ({"S": "4"}, ["E812"]),
        ({"pp": "0"}, ["E811"]),
        ({"pp": "-1"}, ["E811"]),
        ({"pp": "1e9"}, ["E104"]),
        ({"pp": "1000000000"}, ["E811"]),
        ({"pp": "two"}, ["E201"]),
        ({"pp": ""}, ["E105"]),
        ({"pp": "1 / 0"}, ["E205"]),
        ({"batch": "33"}, ["E803"]),
        ({"batch": "2", "microbatch": "3"}, ["E803"]),
        ({"evaluation": "6"}, ["E803"]),
        ({"evaluation": "0"}, ["E811"]),
        ({"tp": "2"}, ["E810"]),
        ({"cp": "2"}, ["E810"]),
        ({"zero": "2"}, ["E810"]),
        ({"zero": "1 / 2"}, ["E811"]),
        ({"recompute": "full"}, ["E810"]),
        ({"precision": "fp8"}, ["E811"]),
        ({"context": "ring zigzag"}, ["E810"]),
        ({"cluster": "h100"}, ["E810"]),
        ({"optimizer": "lion"}, ["E811"]),
        ({"schedule": "zb_h9"}, ["E215"]),
        ({"schedule": "llama_tiny_zb"}, ["E215"]),
        ({"schedule": "gpipe(V = 1)"}, ["E216"]),
        ({"schedule": "gpipe gpipe"}, ["E102"]),
        ({"schedule.K": "1"}, ["E216"]),
        ({"schedule.V": "0"}, ["E207"]),
        ({"K": "1"}, ["E809"]),
        ({"V": "1"}, ["E809"]),
        ({"layers": ""}, ["E811"]),
        ({"model": " "}, ["E811"]),
        ({"pp": "0", "optimizer": "x", "K": "1"}, ["E809", "E811", "E811"]),
    ],
)
def test_refused_settings(settings: dict[str, str], expected: list[str]) -> None:
    assert codes(settings) == expected


def test_accepted_defaults_by_name() -> None:
    text = PLAN.replace("precision", "zero 0 recompute none optimizer sgd layers even precision")
    assert make_plan(load_text("p.sched", text), "p", {}).optimizer == "sgd"


def test_a_missing_key_may_be_set() -> None:
    text = PLAN.replace("sequence 2 * 64", "")
    assert codes({}, text) == ["E807"]
    assert make_plan(load_text("p.sched", text), "p", {"sequence": "64"}).sequence == 64


def test_unknown_and_repeated_keys_are_told_on_loading() -> None:
    with pytest.raises(DiagnosticError) as caught:
        load_text("p.sched", PLAN.replace("precision", "sequnce 3 sequence 1 precision"))
    assert [diagnostic.code for diagnostic in caught.value.diagnostics] == ["E809", "E808"]
    assert caught.value.diagnostics[0].help == "did you mean `sequence`?"
