"""The lexical rules of docs/language.md; cases A36 and A37 of the public reports."""

import pytest

from schedc.diagnostics import DiagnosticError, Span
from schedc.sema.library import load_text
from schedc.syntax import ast
from schedc.syntax.parse import make_source, parse_file
from tests.language.programs import codes_of, run, schedule_of, tasks, value_of

LINES = (
    "# a comment",
    "schedule s(K = 2) {",
    "    place stage s on rank s",
    "    ",
    "    order on rank r {",
    "        for m in 0..M { F(r, m) }   # forwards",
    "        for m in 0..M { B(r, m) }",
    "    }",
    '    note "a # in a text is no comment"',
    "}  # the end",
)
PLAIN = "\n".join(LINES) + "\n"


def parse(text: str) -> ast.File:
    return parse_file(make_source("a.sched", text))


@pytest.mark.parametrize(
    "text",
    [
        PLAIN.replace("\n", "\r\n"),
        PLAIN.replace("\n", "\r"),
        "\r\n".join(LINES[:4]) + "\r" + "\n".join(LINES[4:]),
        "\ufeff" + PLAIN,
        PLAIN.rstrip("\n"),
        PLAIN + "# a comment at the very end",
        PLAIN + "#",
        PLAIN.replace("    ", "\t"),
        PLAIN.replace(" ", "\u00a0").replace("#\u00a0a\u00a0comment", "#"),
        PLAIN.replace("\n", "   \n\n \t \n"),
        " ".join(line.split("#")[0] if '"' not in line else line for line in LINES),
    ],
    ids=[
        "crlf",
        "cr",
        "mixed",
        "bom",
        "no-newline",
        "comment",
        "hash",
        "tabs",
        "nbsp",
        "blank-lines",
        "one-line",
    ],
)
def test_white_space_never_matters(text: str) -> None:
    text = text.replace("a\u00a0#\u00a0in\u00a0a\u00a0text\u00a0is\u00a0no\u00a0comment",
                        "a # in a text is no comment")  # fmt: skip
    assert parse(text) == parse(PLAIN)
    assert tasks(run(text)) == tasks(run(PLAIN))


@pytest.mark.parametrize(
    "text",
    ["", "\n", "\ufeff", "  \t\r\n", "# only a comment", "#"],
)
def test_an_empty_file_is_an_error(text: str) -> None:
    assert codes_of(text) == ["E106"]


def error_span(text: str) -> Span:
    with pytest.raises(DiagnosticError) as caught:
        load_text("a.sched", text)
    span = caught.value.diagnostics[0].span
    assert span is not None
    return span


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_line_and_column_after_tabs_and_line_ends(end: str) -> None:
    span = error_span(f"# one{end}schedule s {{{end}\t\tlett x = 1{end}}}")
    assert (span.line, span.column, span.end_column) == (3, 3, 7)
    assert span.source.line(3) == "\t\tlett x = 1"


def test_a_byte_order_mark_moves_no_column() -> None:
    span = error_span("\ufeffschedul s { }")
    assert (span.line, span.column) == (1, 1)


def test_a_keyword_never_swallows_a_digit() -> None:
    file = parse("plan p { mesh pp2 = 2 }")
    assert isinstance(plan := file.items[0], ast.Plan)
    assert isinstance(mesh := plan.entries[0].values[0], ast.Mesh)
    assert mesh.axes[0].name == "pp2"
    names = "letter format iffy order2 forward not_ inner step1 FF F1 Fi T2 stages_"
    for name in names.split():
        assert value_of(f"3 let {name} = x + 1 let x = {name}") == "4"


@pytest.mark.parametrize(
    "word",
    [
        "import",
        "schedule",
        "plan",
        "cluster",
        "stages",
        "place",
        "stage",
        "on",
        "rank",
        "require",
        "else",
        "check",
        "when",
        "note",
        "order",
        "policy",
        "pattern",
        "solve",
        "copies",
        "split",
        "sequence",
        "of",
        "copy",
        "let",
        "for",
        "if",
        "repeat",
        "overlap",
        "in",
        "step",
        "and",
        "or",
        "model",
        "batch",
        "microbatches",
        "mesh",
        "layers",
        "precision",
        "zero",
        "recompute",
        "context",
        "sequence_parallel",
        "optimizer",
        "freeze",
        "min",
        "max",
        "T",
        "r",
        "s",
        "ms",
        "GiB",
    ],
)
def test_keywords_are_names_where_nothing_else_can_stand(word: str) -> None:
    text = schedule_of(
        f"let {word} = 1 for {word} in {word}..{word} + 1 step {word} {{ F(0, {word}) }} "
        f"let ({word}, y) = ({word}, [{word} for {word} in 0..{word} + 2]) "
        f"if {word} == 1 and {word} < len(y) {{ F(0, {word} - 1) }}"
    )
    assert tasks(run(text)) == "F0.1 F0.0"


@pytest.mark.parametrize("letter", "FBIWR")
def test_operations_are_reserved(letter: str) -> None:
    assert codes_of(schedule_of(f"let {letter} = 1")) == ["E108"]
    assert codes_of(f"schedule {letter} {{ }}") == ["E108"]


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("7", "7"),
        ("007", "7"),
        ("1.50", "3/2"),
        ("2.0", "2"),
        ("0.1 + 0.2 - 0.3", "0"),
        ("[1..3]", "[1..3]"),
        ("1.5 * 2", "3"),
        ("(1..3)", "1..3"),
        ("1 ..3", "1..3"),
        ("0..8 step 3", "0..8 step 3"),
        ('"a \\"b\\" \\\\"', 'a "b" \\'),
    ],
)
def test_literals(written: str, value: str) -> None:
    assert value_of(written) == value


@pytest.mark.parametrize(
    ("written", "code"),
    [
        ("1.", "E104"),
        ("1e9", "E104"),
        ("1.5e3", "E104"),
        ("1_000", "E104"),
        ("0x10", "E104"),
        ("3GiX", "E104"),
        (".5", "E102"),
        ("1" * 1000, "E104"),
        ("３", "E101"),
        ("1３", "E104"),
        ("é", "E101"),
        ("'a'", "E101"),
        ("“a”", "E101"),
        ('"a', "E103"),
        ('"a\\n"', "E103"),
        ("1 & 2", "E101"),
        ("!1", "E101"),
        ("1\u200b", "E101"),
        ("1 | 2", "E102"),
        ("80 GiB", "E219"),
        ("80GiB", "E219"),
        ("450 GB/s", "E219"),
        ("450GB / s", "E219"),
        ("2.5 TFLOP/s", "E219"),
    ],
)
def test_malformed_tokens(written: str, code: str) -> None:
    text = schedule_of("", before=f"let x = {written}")
    if written == "1３":
        assert set(codes_of(text)) <= {"E101", "E104"}
    else:
        assert codes_of(text) == [code]


def test_there_is_no_unit_b() -> None:
    """`80 B(r, 0)` is a number and an operation."""
    assert tasks(run(schedule_of("F(r, 0) let x = 80 B(r, 0)"))) == "F0.0 B0.0"
    with pytest.raises(DiagnosticError) as caught:
        run(schedule_of("let x = 80B"))
    assert "unit `B`" in str(caught.value.diagnostics[0].help)


def test_not_utf8(tmp_path) -> None:
    path = tmp_path / "a.sched"
    path.write_bytes(b'schedule s { note "\xff" }')
    from schedc.sema.library import load_file

    with pytest.raises(DiagnosticError) as caught:
        load_file(path)
    assert [diagnostic.code for diagnostic in caught.value.diagnostics] == ["E107"]


@pytest.mark.parametrize(
    "expression",
    ["[" * 3000 + "]" * 3000, "-" * 3000 + "1", "1" + " + 1" * 3000, "(" * 3000 + "1" + ")" * 3000],
    ids=["lists", "signs", "sum", "parentheses"],
)
def test_deep_nesting_is_an_error_at_most(expression: str) -> None:
    assert set(codes_of(schedule_of("", before=f"let x = {expression}"))) <= {"E109"}


def test_deep_blocks() -> None:
    text = schedule_of("repeat 1 { " * 2000 + "F(r, 0)" + " }" * 2000)
    assert codes_of(text) == ["E109"]


def test_a_point_below_a_number_is_no_part_of_it() -> None:
    span = error_span("# see 2104.044\n.")
    assert (span.line, span.column) == (2, 1)
