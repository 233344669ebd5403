"""Printing a file and parsing it gives the same tree; printing is stable."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import schedc.schedules
from schedc.syntax import ast
from schedc.syntax.parse import make_source, parse_file
from schedc.syntax.printer import print_file
from tests.language.test_expressions import EXPRESSIONS, NAMES, PATTERNS, TEXTS

FOLDER = Path(schedc.schedules.__file__).parent
NONE = st.none()


def some(strategy, least: int = 0, most: int = 2):
    return st.lists(strategy, min_size=least, max_size=most).map(tuple)


BINDINGS = some(st.builds(ast.Binding, PATTERNS, EXPRESSIONS, NONE), 1)
LETS = st.builds(ast.Let, PATTERNS, EXPRESSIONS, NONE)
LETTERS = st.sampled_from("FBIWR")
OPERANDS = some(st.builds(ast.Operand, NONE | NAMES, EXPRESSIONS, NONE), 1, 3)
HALVES = st.one_of(
    st.builds(ast.Operation, LETTERS, OPERANDS, NONE),
    st.builds(ast.Counter, LETTERS, NONE | EXPRESSIONS, NONE),
)
STATEMENTS = st.recursive(
    st.one_of(
        LETS,
        st.builds(ast.Operation, LETTERS, OPERANDS, NONE),
        st.builds(ast.Counter, LETTERS, NONE | EXPRESSIONS, NONE),
        st.builds(ast.Overlap, HALVES, HALVES, NONE),
    ),
    lambda inner: st.one_of(
        st.builds(ast.For, BINDINGS, some(inner), NONE),
        st.builds(ast.If, EXPRESSIONS, some(inner), some(inner), NONE),
        st.builds(ast.Repeat, EXPRESSIONS, some(inner), NONE),
    ),
    max_leaves=6,
)
POLICY_ITEMS = st.one_of(
    st.just(ast.SplitBackward(None)),
    st.builds(ast.Prefer, some(LETTERS, 1, 3), NONE),
    st.builds(ast.TieBreak, some(st.builds(ast.TieRule, NAMES, NAMES, NONE), 1), NONE),
    st.builds(ast.Limit, EXPRESSIONS, NONE),
    st.builds(ast.Reserve, EXPRESSIONS, NONE),
    st.just(ast.Lookahead(None)),
)
SLOTS = st.recursive(
    st.one_of(
        LETS,
        st.builds(ast.Slot, LETTERS, EXPRESSIONS, EXPRESSIONS, NONE),
        st.builds(ast.Holes, LETTERS, NONE),
    ),
    lambda inner: st.one_of(
        st.builds(ast.For, BINDINGS, some(inner), NONE),
        st.builds(ast.If, EXPRESSIONS, some(inner), some(inner), NONE),
    ),
    max_leaves=6,
)
ITEMS = st.one_of(
    LETS,
    st.builds(ast.Stages, EXPRESSIONS, NONE),
    st.builds(ast.Place, NAMES, EXPRESSIONS, NONE),
    st.builds(ast.Require, EXPRESSIONS, TEXTS, NONE),
    st.builds(ast.Check, EXPRESSIONS, NONE | EXPRESSIONS, NONE),
    st.builds(ast.Note, TEXTS, NONE),
    st.builds(ast.OrderBody, NAMES, some(STATEMENTS, most=3), NONE),
    st.builds(ast.PolicyBody, some(POLICY_ITEMS, most=4), NONE),
    st.builds(ast.PatternBody, EXPRESSIONS, NAMES, some(SLOTS, most=3), NONE),
    st.sampled_from(
        [
            ast.Reserved("solve", "solve { limit activations <= 80 GiB }", None),
            ast.Reserved("copy", "place stage s of copy c on rank s", None),
            ast.Reserved("split", "split sequence 4", None),
        ]
    ),
)
PARAMETERS = some(st.builds(ast.Parameter, NAMES, EXPRESSIONS, NONE))
SCHEDULES = st.builds(ast.Schedule, NAMES, PARAMETERS, some(ITEMS, most=3), NONE, NONE)


def entry(key: str, *parts):
    return st.tuples(*parts).map(lambda found: ast.Entry(key, found, None, None))


USES = st.builds(
    ast.ScheduleUse, NAMES, some(st.builds(ast.Argument, NAMES, EXPRESSIONS, NONE)), NONE
)
PRECISIONS = st.builds(
    ast.PrecisionUse, NAMES, some(st.builds(ast.Argument, NAMES, EXPRESSIONS, NONE)), NONE, NONE
)
RAWS = st.just(ast.Raw("{ reduce each }", None))
WORDS = st.builds(ast.Word, NAMES, NONE)
ENTRIES = st.one_of(
    entry("model", TEXTS),
    entry("sequence", EXPRESSIONS),
    entry("batch", st.builds(ast.Batch, EXPRESSIONS, EXPRESSIONS, NONE)),
    entry(
        "mesh", st.builds(ast.Mesh, some(st.builds(ast.Axis, NAMES, EXPRESSIONS, NONE), 1), NONE)
    ),
    entry("schedule", USES),
    entry("layers", WORDS | TEXTS),
    entry("precision", PRECISIONS),
    entry("zero", EXPRESSIONS, RAWS),
    entry("recompute", WORDS | RAWS),
    entry("context", WORDS, WORDS),
    entry("freeze", TEXTS, TEXTS),
    entry("cluster", WORDS),
    entry("unknown", RAWS),
)
FILES = st.builds(
    ast.File,
    some(
        st.one_of(
            st.builds(ast.Import, TEXTS, NONE),
            SCHEDULES,
            st.builds(ast.Plan, NAMES, some(ENTRIES, most=4), NONE, NONE),
            st.just(ast.Reserved("cluster", "cluster h100 { memory 80 GiB }", None)),
        ),
        1,
    ),
    NONE,
)


@settings(deadline=None)
@given(FILES)
def test_a_printed_file_parses_back(file: ast.File) -> None:
    printed = print_file(file)
    parsed = parse_file(make_source("a.sched", printed))
    assert parsed == file
    assert print_file(parsed) == printed


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.sched")), ids=lambda path: path.stem)
def test_bundled_files_print_and_parse_back(path: Path) -> None:
    file = parse_file(make_source(path.name, path.read_text(encoding="utf-8")))
    assert parse_file(make_source(path.name, print_file(file))) == file
