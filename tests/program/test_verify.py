"""Each rule of the verifier: a program with one mistake, edited by hand, and the code it gets."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from schedc.diagnostics import Diagnostic, DiagnosticError
from schedc.program.body import Reduce
from schedc.program.instructions import OP, STAGE
from schedc.program.program import Programs
from schedc.program.signature import Model, Value
from schedc.program.text import parse_program, print_program
from schedc.program.verify import verify_programs
from schedc.program.verify_cycle import _comes_after  # pyright: ignore[reportPrivateUsage]
from tests.program.programs import SCHEDULES, compiled, compiled_with_tail


def verdict(
    programs: Programs, model: Model | None = None, replicas: int | None = None
) -> tuple[Diagnostic, ...]:
    try:
        verify_programs(programs, model, replicas)
    except DiagnosticError as error:
        return error.diagnostics
    return ()


def edited(programs: Programs, rank: int, *edits: tuple[str, str]) -> Programs:
    """The text of one rank's program with each ``old`` replaced once by ``new``."""
    text = print_program(programs[rank])
    for old, new in edits:
        assert old in text, f"{old!r} is not in\n{text}"
        text = text.replace(old, new, 1)
    parsed = parse_program(text, f"rank{rank}.prog")
    return (*programs[:rank], parsed, *programs[rank + 1 :])


def swapped(programs: Programs, rank: int, first: str, second: str) -> Programs:
    """The first lines that hold ``first`` and ``second`` change places."""
    lines = print_program(programs[rank]).split("\n")
    i = next(n for n, line in enumerate(lines) if first in line)
    j = next(n for n, line in enumerate(lines) if second in line)
    lines[i], lines[j] = lines[j], lines[i]
    parsed = parse_program("\n".join(lines), f"rank{rank}.prog")
    return (*programs[:rank], parsed, *programs[rank + 1 :])


def moved(programs: Programs, rank: int, part: str, behind: str) -> Programs:
    """The first line that holds ``part`` moves behind the first that holds ``behind``."""
    lines = print_program(programs[rank]).split("\n")
    line = next(line for line in lines if part in line)
    lines.remove(line)
    lines.insert(1 + next(n for n, line in enumerate(lines) if behind in line), line)
    parsed = parse_program("\n".join(lines), f"rank{rank}.prog")
    return (*programs[:rank], parsed, *programs[rank + 1 :])


def without(programs: Programs, rank: int, *parts: str) -> Programs:
    """Without the first line that holds each of ``parts``."""
    lines = print_program(programs[rank]).split("\n")
    for part in parts:
        lines.remove(next(line for line in lines if part in line))
    parsed = parse_program("\n".join(lines), f"rank{rank}.prog")
    return (*programs[:rank], parsed, *programs[rank + 1 :])


def assert_refused(programs: Programs, code: str, *words: str, model: Model | None = None) -> None:
    found = verdict(programs, model)
    assert found, "accepted"
    text = "\n".join([f"{d.code} {d.message}\n" + "\n".join(d.notes) for d in found])
    assert any(
        d.code == code and all(word in d.message + "\n".join(d.notes) for word in words)
        for d in found
    ), text


@pytest.fixture
def zb() -> Programs:
    return compiled("zb_h1", 2, 3)[0]


@pytest.fixture
def gpipe() -> Programs:
    return compiled("gpipe", 2, 2)[0]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("microbatches", [1, 2, 3, 8])
@pytest.mark.parametrize("replicas", [1, 2])
def test_compiled_programs_are_accepted(
    schedule: str, ranks: int, microbatches: int, replicas: int
) -> None:
    programs, model = compiled(schedule, ranks, microbatches, replicas)
    assert verdict(programs) == ()
    assert verdict(programs, model, replicas) == ()
    parsed = tuple(parse_program(print_program(p), "x") for p in programs)
    assert verdict(parsed, model, replicas) == ()


def test_findings_name_instruction_and_rank(zb: Programs) -> None:
    programs = edited(
        zb, 0, ("send  y.0 -> rank 1      F s0 m0", "send  y.0 -> rank 1      F s0 m1")
    )
    (first, *_) = (d for d in verdict(programs) if d.code == "E502")
    assert re.search(
        r"rank 0, instruction \d+: send y\.0 -> rank 1 F s0 m1", "\n".join(first.notes)
    )


def test_many_findings_are_counted() -> None:
    programs, _ = compiled("one_f_one_b", 2, 8)
    text = "\n".join(line for line in print_program(programs[0]).split("\n") if "load" not in line)
    found = verdict((parse_program(text, "x"), programs[1]))
    assert 1 < len(found) < 10
    assert re.fullmatch(r"and \d+ more of this kind", found[-1].notes[-1])


# --- stages and tasks: E506 --------------------------------------------------------------------


def test_programs_of_different_pipelines(zb: Programs) -> None:
    assert_refused((zb[0],), "E506", "rank 0 of 2")
    assert_refused((zb[0], replace(zb[1], microbatches=4)), "E506", "microbatches", "4")
    assert_refused((zb[0], replace(zb[1], order="other")), "E506", "the order")
    twice = replace(zb[1], stages=((0, zb[1].stages[0][1]),))
    assert_refused((zb[0], twice), "E506", "the stages 0, 1", "rank 1: 0")


def test_a_missing_task(zb: Programs) -> None:
    assert_refused(without(zb, 0, "W     s0 m1"), "E506", "W(stage 0, microbatch 1) is missing")


def test_a_task_twice(zb: Programs) -> None:
    programs = edited(zb, 0, ("F     s0 m1", "F     s0 m0"))
    assert_refused(programs, "E506", "F(stage 0, microbatch 0) runs 2 times")
    assert_refused(programs, "E506", "F(stage 0, microbatch 1) is missing on rank 0")


def test_a_task_of_another_rank(zb: Programs) -> None:
    table = zb[0].stream.table.copy()
    row = next(i for i, t in enumerate(table) if t[OP] == 0 and t[STAGE] == 0)
    table[row, STAGE] = 1
    moved = replace(zb[0], stream=replace(zb[0].stream, table=table))
    assert_refused((moved, zb[1]), "E506", "F(stage 1, microbatch 0) runs on rank 0", "rank 1")


def test_a_task_out_of_range(zb: Programs) -> None:
    programs = edited(zb, 0, ("F     s0 m2", "F     s0 m3"))
    assert_refused(programs, "E506", "microbatch 3", "2 stages and 3 microbatches")


# --- messages: E501, E502 ----------------------------------------------------------------------


def test_a_send_without_receive(gpipe: Programs) -> None:
    programs = without(gpipe, 1, "seq 1", "wait  x.1")
    assert_refused(programs, "E501", "no receive meets this send")


def test_a_receive_without_send(gpipe: Programs) -> None:
    programs = without(gpipe, 0, "F s0 m1    queue act.0-1 seq 1", "wait  y.1!")
    assert_refused(programs, "E501", "no send meets this receive")


def test_different_shapes_or_dtypes(gpipe: Programs) -> None:
    for old, new in (("fp32[1]", "fp32[2]"), ("fp32[1]", "bf16[1]")):
        programs = edited(gpipe, 1, (f"x       {old}", f"x       {new}"))
        assert_refused(programs, "E501", f"{old} is sent where {new} is received")


def test_swapped_receives(gpipe: Programs) -> None:
    """PyTorch accepts these, and returns wrong gradients (the data of m1 is read as m0's)."""
    first, second = "recv  x.0 <- rank 0      F s0 m0", "recv  x.1 <- rank 0      F s0 m1"
    programs = edited(
        gpipe,
        1,
        (first, "recv  x.1 <- rank 0      F s0 m0"),
        (second, "recv  x.0 <- rank 0      F s0 m1"),
    )
    assert_refused(programs, "E502", "x.0 holds the activation of stage 0, microbatch 1, not")
    programs = swapped(gpipe, 1, first, second)
    assert_refused(programs, "E502", "the message stands as number 0 of its queue", "seq 1")


def test_different_tasks_at_the_ends(gpipe: Programs) -> None:
    old = "recv  x.0 <- rank 0      F s0 m0"
    programs = edited(gpipe, 1, (old, old.replace("m0", "m1")))
    message = "F(stage 0, microbatch 0) is sent where F(stage 0, microbatch 1) is received"
    assert_refused(programs, "E502", message)


def test_a_message_between_ranks_that_are_no_neighbours() -> None:
    programs, _ = compiled("one_f_one_b", 3, 2)
    wrong = edited(programs, 0, ("send  y.0 -> rank 1", "send  y.0 -> rank 2"))
    assert_refused(wrong, "E502", "goes from rank 0 to rank 1")
    assert_refused(wrong, "E502", "in the wrong queue")


def test_the_output_of_the_last_stage_is_not_sent(gpipe: Programs) -> None:
    programs = edited(gpipe, 0, ("rank 1      F s0 m0", "rank 1      F s1 m0"))
    assert_refused(programs, "E502", "F(stage 1, microbatch 0) has no output that is sent")


# --- buffers: E505 -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rank", "old", "new", "message"),
    [
        (0, "dy.1! saved0.0!", "dy.1! saved0.0", "never frees saved0.0"),
        (0, "m0        tokens.0! ->", "m0        tokens.0 ->", "overwrites tokens.0"),
        (1, "loss.2 saved1.0", "loss.1 saved1.0", "overwrites loss.1"),
        (1, "m0        x.0! labels", "m0        x.2! labels", "a slot that its buffer"),
        (1, "labels.0 <- m0", "labels.0 <- m1", "holds the labels of microbatch 1, not"),
        (1, "F     s1 m0        x.0!", "F     s1 m0        x.1!", "before it waited"),
        (1, "send  dx.0", "send  dx.0!", "uses dx.0 after its last use"),
        (1, "load  labels.0", "load  labels.0!", "frees it at once"),
        (1, "loss.0! loss.1!", "loss.0!", "reports the loss of microbatch 1 0 times"),
        (0, "load  tokens.0", "load  y.0", "a buffer of kind tokens or labels"),
        (1, "m0        owed1.0!", "m0        owed1.1!", "not `owed` of stage 1"),
    ],
)
def test_buffers(zb: Programs, rank: int, old: str, new: str, message: str) -> None:
    assert_refused(edited(zb, rank, (old, new)), "E505", message)


def test_a_read_of_what_was_never_written(zb: Programs) -> None:
    assert_refused(
        without(zb, 1, "load  labels.0"), "E505", "uses labels.0 before anything is in it"
    )


def test_a_read_before_the_wait(gpipe: Programs) -> None:
    programs = swapped(gpipe, 1, "wait  x.0", "F     s1 m0")
    assert_refused(programs, "E505", "rank 1 uses x.0 before it waited for the receive into it")


def test_a_buffer_freed_before_its_send_was_waited_for(gpipe: Programs) -> None:
    programs = edited(gpipe, 0, ("wait  y.0!", "wait  y.0"), ("send  y.0", "send  y.0!"))
    assert_refused(programs, "E505", "uses y.0 after its last use")


def test_a_slot_refilled_by_its_reader() -> None:
    programs, _ = compiled("interleaved", 1, 2)
    text = print_program(programs[0])
    reads, writes = re.search(r"F     s1 m0        (\S+) \S+ -> (\S+) ", text).groups()  # type: ignore[union-attr]
    del writes
    wrong = edited(programs, 0, (" -> loss.0 saved1.0", f" -> {reads.rstrip('!')} saved1.0"))
    assert_refused(wrong, "E505", "fills y.0 by the instruction that still uses it")


def test_every_post_is_waited_for_once(gpipe: Programs) -> None:
    assert_refused(without(gpipe, 0, "wait  y.0!"), "E505", "never waits for this message")
    twice = edited(gpipe, 0, ("wait  y.1!", "wait  y.0 @3"))
    assert_refused(twice, "E505", "waits 2 times for this message")


def test_a_wait_for_what_was_not_posted(gpipe: Programs) -> None:
    programs = without(gpipe, 1, "recv  x.0")
    assert_refused(programs, "E503", "rank 1 would wait for ever: no send or receive was posted")


def test_saved_buffers_serve_one_stage() -> None:
    programs, _ = compiled("interleaved", 1, 2)
    text = print_program(programs[0])
    text = re.sub(r"saved1\.(\d)", r"saved0.1\1", text)
    text = re.sub(r"(buffer  saved0 .*×) \d+", r"\1 20", text)
    assert_refused((parse_program(text, "x"),), "E505", "saved0", "which serves stage 0")


# --- collectives: E504 -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line", ["count", "wait  count", "norm", "wait  norm", "step", "report", "wait  report"]
)
def test_what_stands_once(zb: Programs, line: str) -> None:
    text = print_program(zb[0])
    (row,) = (row for row in text.split("\n") if re.fullmatch(rf" *\d+  {line}", row))
    name = line.replace("  ", " ")
    dropped = parse_program(text.replace(row + "\n", ""), "x")
    assert_refused((dropped, zb[1]), "E504", f"rank 0 has `{name}` 0 times")
    doubled = parse_program(text.replace(row, f"{row}\n{row}"), "x")
    assert_refused((doubled, zb[1]), "E504", f"rank 0 has `{name}` 2 times")


def test_one_order_of_collectives(zb: Programs) -> None:
    programs = swapped(zb, 0, "  norm", "  report")
    assert_refused(programs, "E504", "rank 0 takes part in count report norm", "count norm report")


@pytest.mark.parametrize(
    ("rank", "first", "second", "message"),
    [
        (0, "wait  norm", "  step", "`wait norm` must come before `step`"),
        (1, "wait  count", "I     s1 m0", "the backward of the loss needs `wait count` before it"),
        (0, "wait  reduce layers.0", "  norm", "takes the norm before the gradients of layers.0"),
        (0, "W     s0 m2", "  norm", "`norm` must follow all gradients"),
        (0, "W     s0 m1", "W     s0 m2 last", "reduces the gradients of layers.0 before the last"),
    ],
)
def test_order_of_the_end(zb: Programs, rank: int, first: str, second: str, message: str) -> None:
    assert_refused(swapped(zb, rank, first, second), "E504", message)


def test_units_are_reduced_once(zb: Programs) -> None:
    programs = without(zb, 0, "  reduce  layers.0")
    assert_refused(programs, "E504", "reduces the gradients of layers.0 0 times")
    programs = without(zb, 0, "wait  reduce layers.0")
    assert_refused(programs, "E504", "waits 0 times for the gradients of layers.0")
    twice = edited(zb, 0, ("W     s0 m0        owed", "W     s0 m0 last   owed"))
    assert_refused(twice, "E504", "reduces the gradients of layers.0 2 times")


def test_replicas_need_reductions() -> None:
    programs, model = compiled("zb_h1", 2, 3, 1)
    assert verdict(programs, model) == ()
    assert verdict(programs, model, 1) == ()
    (first, *_) = verdict(programs, model, 2)
    assert first.code == "E504"


# --- bodies: E508 ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rank", "old", "new", "message"),
    [
        (1, "h1 saved.0", "h1 saved.1", "must write `saved.0`, not `saved.1`"),
        (1, "h1 labels ->", "x labels ->", "must read the hidden states before unit 1"),
        (1, "h1 labels ->", "h2 labels ->", "reads `h2`, which is not defined"),
        (1, "h1 labels ->", "h1 ->", "must read the hidden states before unit 1, the labels"),
        (1, "-> loss saved.1", "-> los saved.1", "it writes `loss`, but no call leaves"),
        (1, "x labels -> loss saved", "x labels dy -> loss saved", "it must read `labels` `x`"),
        (1, "x labels -> loss saved", "x labels -> loss", "it must write `loss` `saved`"),
        (1, "  call    head.W    head      owed.1\n", "", "it calls W of head 0 times"),
        (1, "head      owed.1", "head      owed.0", "the call of head.W for head must read owed.1"),
        (1, "head.F    head ", "head.F    tail ", "it calls the unit tail, which"),
        (1, "head.F    head ", "head.W    head ", "head.W has no place in F"),
        (0, "call    stage0.I", "reduce  layers.0\n  call    stage0.I", "is not the stage's last"),
    ],
)  # fmt: skip
def test_bodies(zb: Programs, rank: int, old: str, new: str, message: str) -> None:
    assert_refused(edited(zb, rank, (old, new)), "E508", message)


def test_a_reduction_before_its_gradients(zb: Programs) -> None:
    last = next(body for body in zb[1].bodies if body.last)
    reduce = Reduce("head", ("dp",))
    early = replace(last, steps=(reduce, *(step for step in last.steps if step != reduce)))
    bodies = tuple(early if body is last else body for body in zb[1].bodies)
    programs = (zb[0], replace(zb[1], bodies=bodies))
    assert_refused(programs, "E508", "it reduces head before its gradients are complete")


def test_two_bodies_of_one_name(zb: Programs) -> None:
    programs = (replace(zb[0], bodies=(*zb[0].bodies, zb[0].bodies[0])), zb[1])
    assert_refused(programs, "E508", "rank 0 has the body `F s0` twice")


def test_operands_fit_the_body(zb: Programs) -> None:
    programs = edited(zb, 1, ("F     s1 m0        x.0! labels.0!", "F     s1 m0        x.0!"))
    assert_refused(programs, "E508", "must read 2 and write 2 slots")


def test_graphs_are_the_units(zb: Programs) -> None:
    _, model = compiled("zb_h1", 2, 3)
    programs = edited(zb, 0, ("call    stage0.F", "call    stage1.F"))
    assert_refused(programs, "E508", "that is stage0.F", model=model)
    graphs = {name: graph for name, graph in model.graphs.items() if name != "stage0.F"}
    assert_refused(
        zb, "E508", "the model has no graph stage0.F", model=replace(model, graphs=graphs)
    )


def test_stages_hold_the_models_units(zb: Programs) -> None:
    _, model = compiled("zb_h1", 2, 3)
    stages = ((0, ("embedding",)),)
    assert_refused(
        (replace(zb[0], stages=stages), zb[1]), "E508", "layers.0 stands in 0", model=model
    )


def test_buffers_have_the_graphs_shapes(zb: Programs) -> None:
    _, model = compiled("zb_h1", 2, 3)
    programs = edited(zb, 1, ("labels  fp32[1]", "labels  int64[7]"))
    assert_refused(programs, "E508", "the buffer labels is int64[7]", "fp32[1]", model=model)


def test_shared_memory_stays_in_use() -> None:
    """Where F saves the stage's input itself, I must hold its buffer, and W where I hands it on."""
    programs, model = compiled("zb_h1", 2, 3)
    graphs = dict(model.graphs)

    def share(name: str, role: str, alias: str) -> None:
        old = graphs[name]
        outputs = tuple(
            Value(v.role, v.name, v.shape, v.dtype, v.stride, alias) if v.role == role else v
            for v in old.outputs
        )
        graphs[name] = replace(old, outputs=outputs)

    share("stage1.F", "saved", "x")
    sharing = replace(model, graphs=graphs)
    assert_refused(programs, "E508", "`I s1`", "it must read `x`", model=sharing)
    share("stage1.I", "owed", "saved")
    share("stage0.I", "owed", "dy")
    sharing = replace(model, graphs=graphs)
    assert_refused(programs, "E508", "`W s1`", "it must read `x`", model=sharing)
    assert_refused(programs, "E508", "`W s0`", "it must read `dy`", model=sharing)


# --- progress: E503 ----------------------------------------------------------------------------


def told(diagnostic: Diagnostic) -> list[str]:
    """The cycle's notes without the places of the schedule."""
    return [re.sub(r" \(\w+\.sched:\d+\)", "", note) for note in diagnostic.notes]


def test_a_cycle_of_receives(gpipe: Programs) -> None:
    """Rank 0 wants a gradient before it sends the activation that the gradient needs."""
    programs = moved(gpipe, 0, "recv  dy.0", "F     s0 m0")
    (only,) = verdict(moved(programs, 0, "wait  dy.0", "recv  dy.0"))
    assert only.code == "E503"
    ring = "rank 0 → rank 1 → rank 0, each waiting for the next"
    assert only.message == f"the programs deadlock: {ring}"
    assert told(only) == [
        "rank 0, instruction 4: wait dy.0",
        "  waits for rank 1, instruction 11: send dx.0 -> rank 0 B s1 m0 queue grad.1-0 seq 0",
        "  comes after rank 1, instruction 3: wait x.0",
        "  waits for rank 0, instruction 5: send y.0 -> rank 1 F s0 m0 queue act.0-1 seq 0",
        "  comes after rank 0, instruction 4: wait dy.0",
    ]


def test_a_deadlock_only_where_ranks_have_one_queue(gpipe: Programs) -> None:
    """Opposite orders of two posts are harmless in two queues, and a hang in one."""
    (only,) = verdict(moved(gpipe, 0, "recv  dy.0", "F     s0 m0"))
    assert only.code == "E503"
    assert only.message.startswith(
        "the programs deadlock where all communication of a rank is in one queue: "
    )
    assert told(only) == [
        "rank 0, instruction 3: recv dy.0 <- rank 1 B s1 m0 queue grad.1-0 seq 0",
        "  is queued on rank 1 behind rank 1, instruction 2: "
        "recv x.1 <- rank 0 F s0 m1 queue act.0-1 seq 1",
        "  is queued on rank 0 behind rank 0, instruction 3: "
        "recv dy.0 <- rank 1 B s1 m0 queue grad.1-0 seq 0",
    ]


def test_the_cycle_of_pytorch_172668() -> None:
    """Rank 0 sends F1 before it receives F0, rank 1 sends F0 before it receives F1.

    Whoever waits for the send in between waits for ever, as there every send does.
    """
    programs, _ = compiled("interleaved", 2, 3)
    assert verdict(programs) == ()
    programs = moved(programs, 0, "wait  y.1!", "send  y.1")
    assert verdict(programs) == ()
    programs = moved(programs, 1, "recv  x.1", "send  y.0")
    programs = moved(programs, 1, "wait  y.0!", "send  y.0")
    (only,) = verdict(programs)
    assert only.code == "E503"
    assert only.message.startswith("the programs deadlock: rank 0 → rank 1 → rank 0")
    assert told(only) == [
        "rank 0, instruction 7: wait y.1!",
        "  waits for rank 1, instruction 6: recv x.1 <- rank 0 F s0 m1 queue act.0-1 seq 1",
        "  comes after rank 1, instruction 5: wait y.0!",
        "  waits for rank 0, instruction 8: recv x.0 <- rank 1 F s1 m0 queue act.1-0 seq 0",
        "  comes after rank 0, instruction 7: wait y.1!",
    ]


def test_the_shortest_cycle_is_printed() -> None:
    """All four ranks stand still; the cycle is one of two."""
    programs, _ = compiled("one_f_one_b", 4, 1)
    programs = moved(programs, 0, "recv  dy.0", "F     s0 m0")
    (only,) = verdict(moved(programs, 0, "wait  dy.0", "recv  dy.0"))
    assert only.code == "E503"
    assert "rank 0 → rank 1 → rank 0" in only.message


def test_norm_before_everyone_posts_it(gpipe: Programs) -> None:
    """Waiting for the norm before one's own last send: the peer never comes to its norm."""
    programs = moved(gpipe, 1, "wait  dx.1!", "wait  norm")
    assert verdict(programs) == ()  # its data left long before
    programs = moved(gpipe, 0, "wait  report", "report")
    assert verdict(programs) == ()


@pytest.mark.parametrize("axes", [(), ("pp",), ("foo",), ("dp", "dp"), ("dp", "pp")])
def test_gradients_are_summed_over_replicas_and_nothing_else(
    zb: Programs, axes: tuple[str, ...]
) -> None:
    """Other axes would end in gloo with an exception, or mix what belongs to other stages."""
    bodies = tuple(
        replace(
            body,
            steps=tuple(replace(s, axes=axes) if isinstance(s, Reduce) else s for s in body.steps),
        )
        for body in zb[0].bodies
    )
    assert_refused((replace(zb[0], bodies=bodies), *zb[1:]), "E508", "gradients are summed over dp")


def test_pools_are_as_large_as_their_use(zb: Programs) -> None:
    """The prediction of memory rests on their slots and bytes."""
    dy = zb[0].buffer("dy")
    for wrong, words in (
        (replace(dy, slots=dy.slots + 5), f"has {dy.slots + 5} slots, but {dy.slots} are used"),
        (replace(dy, bytes=0), f"said to hold 0 bytes, but holds {dy.bytes}"),
    ):
        buffers = tuple(wrong if buffer.name == "dy" else buffer for buffer in zb[0].buffers)
        assert_refused((replace(zb[0], buffers=buffers), *zb[1:]), "E505", words)


def test_pools_of_kept_tensors_are_as_large_as_the_graphs_say(zb: Programs) -> None:
    _, model = compiled("zb_h1", 2, 3)
    for name in ("saved0", "owed0"):
        pool = zb[0].buffer(name)
        wrong = replace(pool, bytes=pool.bytes + 1)
        buffers = tuple(wrong if b.name == name else b for b in zb[0].buffers)
        words = f"buffer {name} is said to hold {pool.bytes + 1} bytes, but stage 0 keeps "
        programs = (replace(zb[0], buffers=buffers), *zb[1:])
        assert_refused(programs, "E505", f"{words}{pool.bytes}", model=model)


def test_pools_have_a_known_dtype_and_kept_ones_no_shape(zb: Programs) -> None:
    programs = edited(zb, 0, ("tokens  fp32[1]", "tokens  foo[1]"))
    assert_refused(programs, "E505", "buffer tokens has no dtype that is known: `foo`")
    saved = replace(zb[0].buffer("saved0"), shape=(2,), dtype="fp32")
    buffers = tuple(saved if b.name == "saved0" else b for b in zb[0].buffers)
    programs = (replace(zb[0], buffers=buffers), *zb[1:])
    assert_refused(programs, "E505", "buffer saved0 holds many tensors, and so has no shape")


@pytest.mark.parametrize(
    ("graph", "role", "alias"), [("stage0.F", "y", "x"), ("stage1.I", "dx", "dy")]
)
def test_outputs_that_are_sent_have_memory_of_their_own(
    zb: Programs, graph: str, role: str, alias: str
) -> None:
    _, model = compiled("zb_h1", 2, 3)
    old = model.graphs[graph]
    outputs = tuple(replace(v, alias=alias) if v.role == role else v for v in old.outputs)
    sharing = replace(model, graphs=model.graphs | {graph: replace(old, outputs=outputs)})
    words = f"the output `{role}` of {graph} shares the memory of `{alias}`"
    assert_refused(zb, "E508", words, model=sharing)


def test_a_post_behind_a_wait_says_why_it_is_there() -> None:
    """For its slot, for the value it sends, or only because it is written so."""
    program = compiled("one_f_one_b", 3, 4)[0][1]
    lines = print_program(program).split("\n")
    lines = lines[lines.index("stream") + 1 :]

    def rows(part: str) -> list[int]:
        return [n for n, line in enumerate(lines) if part in line]

    waits, receives, sends = rows("wait  x.0"), rows("recv  x.0"), rows("send  y.0")
    words = _comes_after(program, receives[1], waits[0])
    assert (words.word, words.why) == ("needs the slot of", ": x.0 is in use")
    assert _comes_after(program, receives[1], receives[1] - 1).word == "comes after"
    assert _comes_after(program, sends[0], waits[0]).word == "needs the value of"


def test_the_graphs_of_a_tail_are_checked_likewise() -> None:
    programs, model = compiled_with_tail("zb_h1", 2, 3)
    old = model.graphs["stage0.tail.F"]
    outputs = tuple(replace(v, alias="x") if v.role == "y" else v for v in old.outputs)
    sharing = replace(model, graphs=model.graphs | {old.name: replace(old, outputs=outputs)})
    words = "the output `y` of stage0.tail.F shares the memory of `x`"
    assert_refused(programs, "E508", words, model=sharing)
    lacking = {name: graph for name, graph in model.graphs.items() if name != "head.tail.W"}
    words = "the model has no graph head.tail.W"
    assert_refused(programs, "E508", words, model=replace(model, graphs=lacking))
