"""Every level of ``--emit`` parses back: printing what was parsed gives the same text."""

from __future__ import annotations

import ast as python
import re
from collections.abc import Mapping

import pytest

from schedc.diagnostics import DiagnosticError
from schedc.driver.emit import emit_level
from schedc.driver.target import Target
from schedc.ir.text import parse_order, print_order
from schedc.ir.trace import Trace
from schedc.program.text import parse_program, print_program
from schedc.sema.library import Library, bundled, load_text
from tests.driver.plans import BLOCKED, PLAN, plan_with

SCHEDULES = ("gpipe", "one_f_one_b", "interleaved", "zb_h1")
SETTINGS: dict[str, Mapping[str, str]] = {
    "bundled": {},
    "set": {"pp": "4", "dp": "1", "microbatch": "1", "layers": "E | t*3 | t | H", "batch": "6"},
    "schedule": {"schedule": "interleaved", "schedule.V": "3", "optimizer": "sgd"},
}


def emit(library: Library, name: str, level: str, settings: Mapping[str, str] | None = None) -> str:
    return emit_level(Target(library, name), level, settings or {})


def programs_in(text: str) -> list[str]:
    """The texts of single programs in what is printed for all ranks."""
    return re.split(r"\n(?=schedc program )", text)


@pytest.mark.parametrize("name", [*SCHEDULES, "llama_tiny_zb"])
def test_source_is_the_file(name: str) -> None:
    item = bundled().find(name)
    assert item is not None
    assert emit(bundled(), name, "source") == item.span.source.text


@pytest.mark.parametrize("name", [*SCHEDULES, "llama_tiny_zb"])
def test_ast(name: str) -> None:
    text = emit(bundled(), name, "ast")
    again = load_text("again.sched", text)
    assert again.local == (name,)
    assert emit(again, name, "ast") == text


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_plan(settings: Mapping[str, str]) -> None:
    """Settings are part of what is printed: it means the same without them."""
    text = emit(bundled(), "llama_tiny_zb", "plan", settings)
    again = load_text("again.sched", text)
    assert emit(again, "llama_tiny_zb", "plan") == text
    order = emit(bundled(), "llama_tiny_zb", "order", settings)
    assert emit(again, "llama_tiny_zb", "order") == order


@pytest.mark.parametrize("name", SCHEDULES)
def test_order(name: str) -> None:
    for settings in ({}, {"P": "1", "M": "1"}, {"P": "3", "M": "7"}):
        text = emit(bundled(), name, "order", settings)
        assert print_order(parse_order(text, "again")) == text


def test_order_of_a_plan_is_its_schedule_for_its_sizes() -> None:
    """llama_tiny_zb: P = pp = 2, M = 32 / (dp 2 x 2) = 8."""
    text = emit(bundled(), "llama_tiny_zb", "order")
    assert text == emit(bundled(), "zb_h1", "order", {"P": "2", "M": "8"})


@pytest.mark.parametrize("name", SCHEDULES)
def test_programs_of_a_schedule(name: str) -> None:
    settings = {"P": "3", "M": "4"}
    texts = programs_in(emit(bundled(), name, "program", settings))
    assert len(texts) == 3
    for rank, text in enumerate(texts):
        program = parse_program(text, f"rank{rank}.prog")
        assert (program.rank, program.ranks) == (rank, 3)
        assert print_program(program) == text


def test_levels_of_a_plan_that_need_a_model() -> None:
    library = load_text("p.sched", PLAN)
    for rank, text in enumerate(programs_in(emit(library, "p", "program"))):
        assert print_program(parse_program(text, f"rank{rank}.prog")) == text
    timeline = emit(library, "p", "timeline")
    assert Trace.from_json(timeline).to_json() == timeline
    graphs = emit(library, "p", "graph")
    functions = [n for n in python.parse(graphs).body if isinstance(n, python.FunctionDef)]
    assert len(functions) == 3 * 3 + 1, "F, I and W of embedding, layer and head; rotary"


@pytest.mark.parametrize("level", ["plan", "graph", "timeline"])
def test_a_bare_schedule_has_no_such_level(level: str) -> None:
    with pytest.raises(DiagnosticError) as caught:
        emit(bundled(), "gpipe", level)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E813"
    assert "gpipe" in diagnostic.message


def test_an_order_that_deadlocks_is_refused_before_it_is_printed() -> None:
    for text, name in ((BLOCKED, "blocked"), (plan_with(schedule="blocked", before=BLOCKED), "p")):
        library = load_text("p.sched", text)
        assert "schedule blocked" in emit(library, "blocked", "ast")
        for level in ("order", "program"):
            with pytest.raises(DiagnosticError) as caught:
                emit(library, name, level)
            assert caught.value.diagnostics[0].code == "E401"
