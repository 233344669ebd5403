"""The text form of programs: goldens, round trips, what people may change, and errors."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedc.diagnostics import Diagnostic, DiagnosticError
from schedc.ir.mesh import AXES
from schedc.ir.order import Op
from schedc.program.body import REDUCE_DTYPES, Body, Call, Reduce
from schedc.program.instructions import Code, Operand, StreamBuilder
from schedc.program.program import Buffer, Queue, RankProgram
from schedc.program.text import instruction_place, instruction_text, parse_program, print_program
from tests.program.programs import SCHEDULES, compiled

GOLDEN = Path(__file__).parent / "golden"
FROZEN = ("embedding", "layers.0")


def check_golden(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("SCHEDC_UPDATE_GOLDENS"):
        path.write_text(text, encoding="utf-8")
    assert path.is_file(), f"no golden {name}: run with SCHEDC_UPDATE_GOLDENS=1"
    assert text == path.read_text(encoding="utf-8")


def small_program() -> RankProgram:
    """Every instruction, a place, the ``last`` variant of a body, both forms of ``wait``."""
    builder = StreamBuilder(("layers.2", "head"))
    x, labels, loss = Operand("x", 0), Operand("labels", 0), Operand("loss", 0)
    saved, owed, dx = Operand("saved1", 0), Operand("owed1", 0), Operand("dx", 0)
    at = "zb_h1.sched:5"
    builder.add(Code.COUNT)
    receive = builder.add(Code.RECV, task=(0, 0, 0), link=(0, 0, 0), writes=(x,), place=at)
    builder.add(Code.LOAD, task=(-1, -1, 0), writes=(labels,))
    builder.add(Code.WAIT_MESSAGE, reads=(x,), ref=receive)
    reads = (x._replace(last=True), labels)
    builder.add(Code.RUN, task=(0, 1, 0), body=0, reads=reads, writes=(loss, saved), place=at)
    builder.add(Code.WAIT_COUNT)
    reads = (labels._replace(last=True), saved._replace(last=True))
    builder.add(Code.RUN, task=(2, 1, 0), body=1, reads=reads, writes=(dx, owed), place="a b:7")
    send = builder.add(Code.SEND, task=(2, 1, 0), link=(0, 1, 0), reads=(dx,), place=at)
    builder.add(Code.RUN, task=(3, 1, 0), body=2, reads=(owed._replace(last=True),), place=at)
    builder.add(Code.WAIT_MESSAGE, reads=(dx._replace(last=True),), ref=send)
    builder.add(Code.WAIT_REDUCE, ref=1)
    builder.add(Code.WAIT_REDUCE, ref=0)
    builder.add(Code.NORM)
    builder.add(Code.REPORT, reads=(loss._replace(last=True),))
    builder.add(Code.WAIT_NORM)
    builder.add(Code.WAIT_REPORT)
    builder.add(Code.STEP)
    forward = (
        Call("layer.F", "layers.2", ("x",), ("h1", "saved.0")),
        Call("head.F", "head", ("h1", "labels"), ("loss", "saved.1")),
    )
    backward = (
        Call("head.I", "head", ("saved.1", "tangent", "labels"), ("dh1", "owed.1")),
        Call("layer.I", "layers.2", ("saved.0", "dh1"), ("dx", "owed.0")),
    )
    weights = (
        Call("head.W", "head", ("owed.1",), ()),
        Reduce("head", ("dp",)),
        Call("layer.W", "layers.2", ("owed.0",), ()),
        Reduce("layers.2", ("dp", "cp"), "bf16"),
    )
    return RankProgram(
        rank=1,
        ranks=2,
        microbatches=1,
        order="zb_h1 #9c1e07",
        stages=((1, ("layers.2", "head")),),
        buffers=(
            Buffer("x", "x", (2, 128, 256), "fp32", 262144, 1),
            Buffer("labels", "labels", (2, 128), "int64", 2048, 1),
            Buffer("loss", "loss", (), "fp32", 4, 1),
            Buffer("saved1", "saved", (), "", 43201536, 1),
            Buffer("owed1", "owed", (), "", 21600768, 1),
            Buffer("dx", "dx", (2, 128, 256), "fp32", 262144, 1),
        ),
        queues=(Queue("act", 0, 1), Queue("grad", 1, 0)),
        stream=builder.build(),
        bodies=(
            Body(Op.F, 1, False, ("x", "labels"), ("loss", "saved"), forward),
            Body(Op.I, 1, False, ("labels", "saved"), ("dx", "owed"), backward),
            Body(Op.W, 1, True, ("owed",), (), weights),
        ),
    )


def assert_same(left: RankProgram, right: RankProgram) -> None:
    assert list(left.stream) == list(right.stream)
    assert np.array_equal(left.stream.table, right.stream.table)
    assert left.stream.units == right.stream.units
    for field in (
        "rank",
        "ranks",
        "microbatches",
        "order",
        "stages",
        "buffers",
        "queues",
        "bodies",
    ):
        assert getattr(left, field) == getattr(right, field), field


def test_small_program_reads_as_documented() -> None:
    program = small_program()
    text = print_program(program)
    check_golden("small.prog", text)
    assert_same(parse_program(text, "small.prog"), program)


COMPILED = {f"{schedule}_p2_m3": compiled(schedule, 2, 3)[0] for schedule in SCHEDULES}
COMPILED["zb_h1_p2_m2_tied"] = compiled("zb_h1", 2, 2, tied=True)[0]
COMPILED["one_f_one_b_p2_m2_frozen"] = compiled("one_f_one_b", 2, 2, frozen=FROZEN)[0]


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_programs(name: str) -> None:
    for program in COMPILED[name]:
        text = print_program(program)
        check_golden(f"{name}_rank{program.rank}.prog", text)
        parsed = parse_program(text, "rank.prog")
        assert list(parsed.stream) == list(program.stream)
        assert print_program(parsed) == text


def test_instruction_text_and_place() -> None:
    program = small_program()
    assert instruction_text(program, 1) == "recv x.0 <- rank 0 F s0 m0 queue act.0-1 seq 0"
    assert instruction_text(program, 4) == "F s1 m0 x.0! labels.0 -> loss.0 saved1.0"
    assert instruction_text(program, 8) == "W s1 m0 last owed1.0!"
    assert instruction_place(program, 1) == "zb_h1.sched:5"
    assert instruction_place(program, 2) == ""


def test_people_may_lay_it_out_as_they_like() -> None:
    text = print_program(small_program())
    lines = ["\ufeff# a comment first", *text.split("\n")]
    lines = [line.replace("     ", " ").replace("\u00d7", "x") for line in lines]
    lines = [line.lstrip(" 0123456789") for line in lines]
    lines.insert(20, "   # only a comment")
    lines = [line + "  # mine" if line == "norm" else line for line in lines]
    changed = "\r\n".join(lines).rstrip()
    assert_same(parse_program(changed, "small.prog"), small_program())


def test_numbers_before_instructions_are_only_informational() -> None:
    text = print_program(small_program()).replace("\n  4  F", "\n 99  F")
    assert_same(parse_program(text, "small.prog"), small_program())


def test_wait_means_the_latest_open_post() -> None:
    builder = StreamBuilder(("u",))
    x = Operand("x", 0)
    first = builder.add(Code.RECV, task=(0, 0, 0), link=(0, 0, 0), writes=(x,))
    second = builder.add(Code.RECV, task=(0, 0, 1), link=(0, 0, 1), writes=(x,))
    for row in (first, second, first, -1):
        builder.add(Code.WAIT_MESSAGE, reads=(x,), ref=row)
    program = RankProgram(
        1, 2, 2, "o", ((1, ("u",)),), (Buffer("x", "x", (1,), "fp32", 4, 1),),
        (Queue("act", 0, 1),), builder.build(), (),
    )  # fmt: skip
    text = print_program(program)
    waits = [line.split("wait")[1].split() for line in text.split("\n") if "wait" in line]
    assert waits == [["x.0", "@0"], ["x.0"], ["x.0", "@0"], ["x.0"]]
    assert_same(parse_program(text, "x"), program)


# --- round trips -------------------------------------------------------------------------------

WORDS = st.from_regex(r"[a-z_][a-z0-9_.é]{0,6}", fullmatch=True)
AXIS_NAMES = st.lists(st.sampled_from(AXES), max_size=2).map(tuple)
PLACES = st.one_of(
    st.just(""),
    st.builds(lambda name, line: f"{name}:{line}", st.text(min_size=1, max_size=8), st.integers(1)),
    st.text(max_size=8),
)
SMALL = st.integers(0, 5)
TUPLES = st.lists(WORDS, max_size=3).map(tuple)


@st.composite
def rank_programs(draw: st.DrawFn) -> RankProgram:
    """Programs that need not make sense, but hold whatever the form can hold."""
    units = tuple(draw(st.lists(WORDS, min_size=1, max_size=3, unique=True)))
    names = draw(st.lists(WORDS, min_size=1, max_size=3, unique=True))
    kinds = ("tokens", "labels", "x", "y", "dy", "dx", "saved", "owed", "loss")
    buffers = tuple(
        Buffer(
            name,
            draw(st.sampled_from(kinds)),
            *draw(st.sampled_from([((), ""), ((), "fp32"), ((2, 3), "bf16"), ((7,), "int64")])),
            draw(st.integers(0, 2**50)),
            draw(SMALL),
        )
        for name in names
    )
    ends = st.tuples(st.sampled_from(["act", "grad"]), SMALL, SMALL)
    chosen = draw(st.lists(ends, min_size=1, max_size=3, unique=True))
    queues = tuple(Queue(*end) for end in chosen)  # type: ignore[arg-type]
    keys = draw(
        st.lists(
            st.tuples(st.sampled_from(Op), SMALL, st.booleans()),
            min_size=1,
            max_size=3,
            unique=True,
        )
    )
    steps = st.one_of(
        st.builds(Call, WORDS, WORDS, TUPLES, TUPLES),
        st.builds(Reduce, WORDS, AXIS_NAMES, st.sampled_from(REDUCE_DTYPES)),
    )
    bodies = tuple(
        Body(
            *key,
            draw(TUPLES),
            draw(TUPLES),
            tuple(draw(st.lists(steps, max_size=3))),
            draw(st.booleans()),
        )
        for key in keys
    )
    builder = StreamBuilder(units)
    operand = st.builds(Operand, st.sampled_from(names), SMALL, st.booleans())
    some = st.lists(operand, max_size=3).map(tuple)
    task = st.tuples(st.sampled_from(Op).map(int), SMALL, SMALL)
    for row in range(draw(st.integers(0, 12))):
        code = draw(st.sampled_from(Code))
        fields: dict[str, object] = {}
        match code:
            case Code.RUN:
                body = draw(st.integers(0, len(bodies) - 1))
                fits = (int(bodies[body].op), bodies[body].stage, draw(SMALL))
                fields = {"task": draw(st.one_of(st.just(fits), task)), "body": body}
                fields |= {"reads": draw(some), "writes": draw(some)}
            case Code.SEND | Code.RECV:
                link = (draw(SMALL), draw(st.integers(0, len(queues) - 1)), draw(SMALL))
                side = "reads" if code == Code.SEND else "writes"
                fields = {"task": draw(task), "link": link, side: (draw(operand),)}
            case Code.LOAD:
                fields = {"task": (-1, -1, draw(SMALL)), "writes": (draw(operand),)}
            case Code.WAIT_MESSAGE:
                fields = {"reads": (draw(operand),), "ref": draw(st.integers(-1, row))}
            case Code.WAIT_REDUCE:
                fields = {"ref": draw(st.integers(0, len(units) - 1))}
            case Code.TIE:
                fields = {
                    "ref": draw(st.integers(0, len(units) - 1)),
                    "link": (draw(SMALL), -1, -1),
                }
            case Code.REPORT:
                fields = {"reads": draw(some)}
            case _:
                pass
        builder.add(code, place=draw(PLACES), **fields)  # type: ignore[arg-type]
    order = draw(st.one_of(st.just("zb_h1 #9c1e07"), st.text(min_size=1, max_size=10)))
    return RankProgram(
        draw(SMALL), draw(SMALL), draw(SMALL), order, ((draw(SMALL), units),), buffers, queues,
        builder.build(), bodies,
    )  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(rank_programs())
def test_printing_then_parsing_is_the_identity(program: RankProgram) -> None:
    text = print_program(program)
    text.encode()  # what the form cannot hold as text is escaped
    parsed = parse_program(text, "x.prog")
    assert_same(parsed, program)
    assert print_program(parsed) == text


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_text_parses_or_is_refused_with_a_place(data: st.DataObject) -> None:
    lines = print_program(small_program()).split("\n")
    for _ in range(data.draw(st.integers(1, 3))):
        i = data.draw(st.integers(0, len(lines) - 1))
        at = data.draw(st.integers(0, len(lines[i])))
        junk = data.draw(st.one_of(st.text(max_size=4), st.sampled_from([" -1 ", "@", "s9", "->"])))
        keep = data.draw(st.integers(0, 6))
        lines[i] = lines[i][:at] + junk + lines[i][at + keep :]
    try:
        parsed = parse_program("\n".join(lines), "x.prog")
    except DiagnosticError as error:
        for diagnostic in error.diagnostics:
            assert diagnostic.code == "E507"
            assert diagnostic.span is not None
            text = diagnostic.span.source.line(diagnostic.span.line)
            assert diagnostic.span.column <= len(text) + 1
        return
    print_program(parsed)


# --- errors ------------------------------------------------------------------------------------


def refusals(text: str) -> tuple[Diagnostic, ...]:
    with pytest.raises(DiagnosticError) as caught:
        parse_program(text, "rank1.prog")
    return caught.value.diagnostics


@pytest.mark.parametrize(
    ("old", "new", "line", "word", "message"),
    [
        ("schedc program 1", "schedc program 2", 1, "2", "expected version 1 of the format"),
        ("rank 1 of 2", "rank one of 2", 2, "one", "expected the rank's number, found `one`"),
        ("stage 1:", "stage 1", 3, "1", "expected a stage's number and a colon"),
        ("2,128,256]", "2,128,256", 4, "fp32[2,128,256", "expected the bytes of a slot"),
        ("queue   act.0-1", "queue   act.0", 10, "act.0", "expected a queue, such as act.0-1"),
        ("  0  count", "  0  cuont", 14, "cuont", "expected an instruction"),
        ("recv  x.0", "recv  z.0", 15, "z.0", "there is no buffer `z` in this program"),
        ("<- rank 0", "-> rank 0", 15, "->", "expected `<-`, found `->`"),
        ("0      F", "0      Q", 15, "Q", "expected an operation (F, B, I, W or R)"),
        ("queue act.0-1 seq", "queue act.1-0 seq", 15, "act.1-0", "there is no queue `act.1-0`"),
        ("labels.0 <- m0", "labels.0 <- 0", 16, "0", "expected a microbatch, such as m0"),
        ("wait  x.0", "wait  x0", 17, "x0", "expected a slot such as x.0"),
        ("-> loss.0 saved1.0", "->", 18, " ", "expected what is written, found the end"),
        ("s1 m0 last   owed1.0!", "s1 m0   owed1.0!", 22, "W", "there is no body `W s1`"),
        ("wait  reduce head", "wait  reduce haed", 24, "haed", "there is no unit `haed`"),
        ("seq 0   ", "seq 99999999999", 15, "99999999999", "of at most 2147483647"),
        ("  step", "  step now", 30, "now", "expected the end of the line, found `now`"),
        ("  call    layer.F", "  cal     layer.F", 33, "cal", "expected `call` or `reduce`"),
        ("over dp cp in bf16", "over dp cp in", 44, "", "expected `fp32` or `bf16` or `fp16`"),
        ("in bf16", "in bf17", 44, "bf17", "expected `fp32` or `bf16` or `fp16`"),
        ("in bf16", "in bf16 dp", 44, "dp", "expected the end of the line"),
        ("reduce  head over dp", "reduce  head over", 42, "", "expected the axes to sum over"),
    ],
)
def test_errors_point_at_the_word(old: str, new: str, line: int, word: str, message: str) -> None:
    text = print_program(small_program())
    assert old in text
    (first, *_) = refusals(text.replace(old, new, 1))
    assert first.code == "E507"
    assert message in first.message
    span = first.span
    assert span is not None
    assert span.source.name == "rank1.prog"
    assert span.line == line
    assert span.source.line(line)[span.column - 1 : span.end_column - 1] == word


def test_several_errors_come_together_and_suggest() -> None:
    text = print_program(small_program())
    text = text.replace("load  labels.0", "load  label.0").replace("  reduce head", "  redduce")
    first, second = refusals(text)
    assert first.help == "did you mean `labels`?"
    assert first.span is not None
    assert second.span is not None
    assert first.span.line < second.span.line


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected `schedc program 1`, found the end of the text"),
        ("hello\n", "expected `schedc program 1`, found `hello`"),
        ("schedc program 1\n", "expected `stream`, found the end of the text"),
        ("schedc program 1\nstream\n", "the line `rank … of …` is missing before `stream`"),
    ],
)
def test_texts_that_are_no_programs(text: str, message: str) -> None:
    assert refusals(text)[0].message == message


def test_a_name_that_is_no_word_is_not_printed() -> None:
    program = small_program()
    builder = StreamBuilder(("two words",))
    with pytest.raises(ValueError, match="two words"):
        print_program(
            RankProgram(
                0, 1, 1, "o", ((0, ("two words",)),), (), (), builder.build(), program.bodies
            )
        )
