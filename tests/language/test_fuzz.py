"""Whatever the text and the settings, all that comes out are diagnostics, each with its place."""

import pytest

from schedc.diagnostics import Diagnostic, DiagnosticError
from schedc.ir.verify import verify_order
from schedc.sema.library import load_text
from schedc.sema.schedule import instantiate
from tests.language import mutation
from tests.language.mutation import Case, failure, minimised, mutated


def check_seeds(seeds: range) -> None:
    for seed in seeds:
        case = mutated(seed)
        wrong = failure(case)
        if wrong is not None:
            pytest.fail(f"seed {seed}: {wrong}\n{minimised(case, failure)}", pytrace=False)


@pytest.mark.parametrize("block", range(20))
def test_mutated_sources_give_diagnostics_at_most(block: int) -> None:
    check_seeds(range(50 * block, 50 * block + 50))


@pytest.mark.sweep
@pytest.mark.parametrize("block", range(100))
def test_ten_thousand_mutated_sources(block: int) -> None:
    check_seeds(range(10_000 + 100 * block, 10_000 + 100 * block + 100))


def test_sources_unmutated_are_fine() -> None:
    assert [failure(Case(text)) for text in mutation.SOURCES] == [None] * len(mutation.SOURCES)


def test_the_wide_source_is_evaluated_to_its_end() -> None:
    library = load_text("a.sched", mutation.WIDER)
    instance = instantiate(library, "wide", 3, 4, {})
    verify_order(instance.order)
    assert instance.notes == ('P = 3, "quoted", [0, 1]',)


def test_a_seed_is_always_the_same_case() -> None:
    assert mutated(7) == mutated(7)
    assert len({mutated(seed) for seed in range(100)}) > 90


def test_failures_are_found_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lexer that chokes on `é` and a plan without a place are both told, in few characters."""

    def choke(name: str, text: str) -> None:
        if "é" in text:
            raise TypeError("no")
        if "W" in text:
            raise DiagnosticError(Diagnostic("E101", "somewhere"))
        load_text(name, text)

    monkeypatch.setattr(mutation, "load_text", choke)
    case = Case(mutation.LATER.replace("llama", "lláma é"), (("P", "2"),))
    found = failure(case)
    assert found is not None
    assert found.startswith("TypeError at test_fuzz.py:")
    assert minimised(case, failure) == Case("é")
    assert failure(Case("xxWx")) == "no line and column: E101 somewhere"
