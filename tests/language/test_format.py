"""Formatting changes white space only, is idempotent, and leaves tidy files alone."""

import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings

import schedc.schedules
from schedc.diagnostics import DiagnosticError
from schedc.syntax.format import format_source
from schedc.syntax.parse import make_source, parse_file
from schedc.syntax.printer import print_file
from tests.language.test_printer import FILES

BUNDLED = sorted(Path(schedc.schedules.__file__).parent.rglob("*.sched"))
EXAMPLES = sorted((Path(__file__).parents[2] / "docs" / "examples").glob("*.sched"))


def formatted(text: str) -> str:
    """The text formatted, which must be a fixed point."""
    once = format_source(make_source("a.sched", text))
    assert format_source(make_source("a.sched", once)) == once
    return once


@pytest.mark.parametrize("path", [*BUNDLED, *EXAMPLES], ids=lambda path: path.stem)
def test_the_files_we_ship_are_formatted(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert formatted(text) == text


MESSY = """\
\ufeffimport   "a.sched"   # names


schedule a(K=1,V = 2){ place stage s on rank s%P # where
\torder on rank r
\t{

\t\t# forwards
\t\tfor m in 0..M - 1 { F(r,m) } # one
\t\tfor mmmm in 0 .. max( M,2 ) {B(r,m)} # two


\t\tif  not x==-1{F*  B*(r)} else if (y) {W*} else { R(r,0)
\t}
    let q = [ slots[1:2], slots [k:min(k,2)], 80GiB , T . F (s)*2 ]
    let wide = [
      (1,2),
         (3,-4),
    ]
    # last
    } note "x  {y}" check peak_activations( r )<=P when uniform } plan p { model "x"
  sequence_parallel on # keep
mesh dp=2,pp=2   # ranks
 # end of plan
 }
# end of file"""
TIDY = """\
import "a.sched"     # names

schedule a(K = 1, V = 2) {
    place stage s on rank s % P                  # where
    order on rank r {
        # forwards
        for m in 0..M-1             { F(r, m) }  # one
        for mmmm in 0 .. max(M, 2)  { B(r, m) }  # two

        if not x == -1 {
            F*  B*(r)
        } else if (y) {
            W*
        } else {
            R(r, 0)
        }
        let q = [slots[1:2], slots[k : min(k, 2)], 80 GiB, T.F(s) * 2]
        let wide = [
            (1, 2),
            (3, -4),
        ]
        # last
    }
    note "x  {y}"
    check peak_activations(r) <= P  when uniform
}

plan p {
    model              "x"
    sequence_parallel  on              # keep
    mesh               dp = 2, pp = 2  # ranks
    # end of plan
}
# end of file
"""


def test_a_messy_file() -> None:
    assert formatted(MESSY.replace("else { R", "else {\n R")) == TIDY


@pytest.mark.parametrize("end", ["\r\n", "\r"])
def test_line_ends_become_line_feeds(end: str) -> None:
    assert formatted(TIDY.replace("\n", end)) == TIDY
    assert formatted(TIDY.rstrip("\n")) == TIDY


def body(text: str) -> str:
    """The formatted lines of an order, without its indentation."""
    whole = formatted(f"schedule s {{\norder on rank r {{\n{text}\n}}\n}}\n")
    lines = whole.split("\n")
    assert lines[:2] == ["schedule s {", "    order on rank r {"]
    assert lines[-3:] == ["    }", "}", ""]
    return "\n".join(line.removeprefix("        ") for line in lines[2:-3])


def test_braces_of_loops_are_aligned_again_after_an_edit() -> None:
    assert body(
        "for i in 0..warm      { F(r, i) }\n"
        "for i in 0..M-warmup    { F(r, i)  B(r, i) }\n"
        "repeat n { W*(r) }\n"
        "F(r, 0)\n"
        "if x   { W* }\n"
    ) == (
        "for i in 0..warm      { F(r, i) }\n"
        "for i in 0..M-warmup  { F(r, i)  B(r, i) }\n"
        "repeat n              { W*(r) }\n"
        "F(r, 0)\n"
        "if x { W* }"
    )


def test_statements_below_a_brace_hang_and_columns_move_together() -> None:
    assert body(
        "for k in 0..n    { let (v, m) = slots[k+1]    F(v, m)\n"
        "                   let (v, m) = slots[k]      B(v, m)\n"
        "  }"
    ) == (
        "for k in 0..n { let (v, m) = slots[k + 1]    F(v, m)\n"
        "                let (v, m) = slots[k]        B(v, m) }"
    )
    assert body("for k in 0..n { F(r, k)\nB(r, k) # why\n}") == (
        "for k in 0..n {\n    F(r, k)\n    B(r, k)  # why\n}"
    )


def test_lines_of_several_statements_that_are_too_long_are_broken() -> None:
    one = "B(r, i + warmup_of_rank)"
    assert body(f"for i in 0..M {{ {one}  {one} }}") == f"for i in 0..M {{ {one}  {one} }}"
    assert body(f"for i in 0..M {{ {one}  {one}  {one} }}") == (
        f"for i in 0..M {{\n    {one}  {one}  {one}\n}}"
    )
    assert body(" ".join([one] * 4)) == "\n".join([one] * 4)
    alone = f"let x = {' + '.join(['warmup_of_this_rank'] * 6)}"
    assert body(alone) == alone


def test_what_is_only_recognised_keeps_its_words() -> None:
    solve = (
        "schedule s {\n    solve {\n        minimize makespan   # this\n"
        "        limit    x<= 80GiB\n    }\n}\n"
    )
    assert formatted(solve.replace("        ", "  ")) == solve.replace("n   #", "n  #")


def test_policies_and_patterns() -> None:
    """Columns stay where the author aligned them; words of a line get single blanks."""
    policy = (
        "schedule s {\n    policy {\n        prefer I,F , W   # these\n"
        "        tie    deepest  stage\n        limit  activations<=K*P\n    }\n}\n"
    )
    assert formatted(policy) == (
        "schedule s {\n    policy {\n        prefer I, F, W   # these\n"
        "        tie    deepest stage\n        limit  activations <= K * P\n    }\n}\n"
    )
    pattern = (
        "schedule s {\n    pattern  every 6 on rank r {\n        F(r)   at 2*r\n"
        "        I(P-1) at r\n        W( * ) in  holes\n    }\n}\n"
    )
    assert formatted(pattern) == (
        "schedule s {\n    pattern every 6 on rank r {\n        F(r)     at 2 * r\n"
        "        I(P - 1) at r\n        W(*)     in holes\n    }\n}\n"
    )


@settings(deadline=None, max_examples=60)
@given(FILES)
def test_printed_files(file) -> None:
    text = formatted(print_file(file))
    assert parse_file(make_source("a.sched", text)) == file


# ---- scrambled white space ----------------------------------------------------------------------

SOURCES = [*(path.read_text(encoding="utf-8") for path in [*BUNDLED, *EXAMPLES]), MESSY, TIDY]
TOKEN = re.compile(r'"[^"\n]*"|#[^\n]*\n?|[ \t\n]+|[A-Za-z0-9_]+|\.\.|[<>=!]=|\*\*|//|.', re.S)
GAPS = [
    " ",
    "  ",
    "     ",
    "\t",
    "\n",
    "\n\n\n",
    "\n    ",
    "\n\t\t",
    " # c\n",
    "\n  #d\n ",
    "\n#\n\n",
]


def scrambled(rng: random.Random) -> str:
    """A source with other white space and comments between its tokens."""
    share = rng.random() * rng.choice([0.1, 0.3, 1])
    found: list[str] = []
    for token in TOKEN.findall(rng.choice(SOURCES)):
        if token.isspace() and rng.random() < share:
            found.append(rng.choice(GAPS))
        elif token.startswith("#") and rng.random() < share:
            found.append("\n")
        else:
            found.append(token)
            if rng.random() < share / 3 and not token.startswith("#"):
                found.append(rng.choice(GAPS))
    return "".join(found)


def check_seeds(seeds: range) -> None:
    for seed in seeds:
        text = scrambled(random.Random(seed))
        try:
            parse_file(make_source("a.sched", text))
        except DiagnosticError:
            continue
        try:
            formatted(text)
        except AssertionError as error:
            pytest.fail(f"seed {seed}: {error}\n{text}")


@pytest.mark.parametrize("block", range(4))
def test_scrambled_sources(block: int) -> None:
    check_seeds(range(20 * block, 20 * block + 20))


@pytest.mark.sweep
@pytest.mark.parametrize("block", range(20))
def test_many_scrambled_sources(block: int) -> None:
    check_seeds(range(1000 + 100 * block, 1100 + 100 * block))


@pytest.mark.parametrize(
    ("written", "tidy"),
    [
        ("bf16{master   fp32,reduce bf16 }", "bf16 { master fp32, reduce bf16 }"),
        ("fp16 {scale 2**10 ,}", "fp16 { scale 2 ** 10, }"),
        ("fp32", "fp32"),
        ("bf16{}", "bf16 { }"),
    ],
)
def test_a_precision(written: str, tidy: str) -> None:
    assert (
        formatted(f"plan p {{\n precision {written}\n}}")
        == f"plan p {{\n    precision  {tidy}\n}}\n"
    )
