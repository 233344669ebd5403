"""The one list of diagnostic codes, each with its page (``schedc explain E203``).

E1 the text, E2 names, types and evaluation, E3 completeness, E4 order, E5 communication and
programs, E6 memory, E7 claims, E8 plans and partition, E9 artifacts and runs.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Page:
    """What a code means: a title, an explanation with the fix, and an example that has it."""

    title: str
    explanation: str
    example: str = ""


CATALOGUE: dict[str, Page] = {
    # ---- E1: the text ---------------------------------------------------------------------
    "E101": Page(
        "a character without meaning",
        "The text has a character that the language does not use, often one that only looks like "
        "another: a full-width digit, a curly quote, `;` or `'`. Names are made of the letters "
        "a-z and A-Z, digits and `_`. Write the plain character that the message proposes.",
        "mesh dp = ２",
    ),
    "E102": Page(
        "something else was expected here",
        "The text stops making sense at the place marked. The message lists all that may stand "
        "there. Often a word is misspelt, a bracket or `=` is missing, or `=` stands for `==`. "
        "White space and line ends do not matter, and statements need nothing between them.",
        "schedule s { plce stage s on rank s }",
    ),
    "E103": Page(
        "a text in quotes is malformed",
        'A text stands between two `"` on one line. Inside it `\\"` is a quote and `\\\\` a '
        "backslash; there are no other escapes. In the texts of `note` and `require`, braces hold "
        "an expression, and a brace itself is doubled: `{{`.",
        'note "warm-up',
    ),
    "E104": Page(
        "not a number",
        "A number is a row of digits, or digits with a point that has digits on both sides. There "
        "are no exponents, no `_` between digits, no hexadecimal numbers. Only a known unit may "
        "follow directly, as in `80GiB`; there is no unit `B`, because B is an operation.",
        "mesh pp = 1e9",
    ),
    "E105": Page(
        "the text ends too early",
        "The file ends in the middle of something. Where a bracket was left open, the message "
        "points to it: close it where its content ends.",
        "schedule s { place stage s on rank s",
    ),
    "E106": Page(
        "an empty file",
        "A file must hold a schedule, a plan or an import. This one is empty or has only comments.",
        "# to do",
    ),
    "E107": Page(
        "not UTF-8",
        "A `.sched` file is text in UTF-8, with or without a byte-order mark. Save it so.",
    ),
    "E108": Page(
        "a reserved letter as a name",
        "F, B, I, W and R are the operations and cannot name a variable, parameter or schedule. "
        "All other words may be used as names, except `not`.",
        "let F = 3",
    ),
    "E109": Page(
        "nested too deeply",
        "Blocks or expressions stand inside one another hundreds of levels deep. Give parts of "
        "the expression names with `let`.",
    ),
    "E110": Page(
        "not supported yet",
        "The language has this, but this version of the compiler does not. It is refused by name "
        "so that nothing is silently ignored. Leave it out, or write the order by hand.",
        "policy { prefer F }",
    ),
    # ---- E2: names, types, evaluation -----------------------------------------------------
    "E201": Page(
        "an unknown name",
        "Nothing of this name can be seen here. A `let` is seen below its line, inside its block. "
        "P, M and S are given (S only below `stages`). Figures such as `makespan` and costs such "
        "as `T.F` are known only in `check`.",
        "let n = warmpu + 1",
    ),
    "E202": Page(
        "the same thing twice",
        "Schedules and plans of a file, parameters of a schedule, and `stages`, `place` and "
        "`order` of a schedule may each stand once. Rename or delete one. A `let` may repeat a "
        "name: it hides the earlier one from there on.",
        "schedule s(K = 1, K = 2) { … }",
    ),
    "E203": Page(
        "a wrong number of arguments",
        "An operation takes a stage and a microbatch, `F(s, m)`; `min` and `max` take one list or "
        "any number of values, the other functions one value; a figure of a rank takes the rank: "
        "`busy(r)`.",
        "F(0)",
    ),
    "E204": Page(
        "a value of the wrong kind",
        "The values are whole numbers, rationals, truth values, texts, ranges, tuples and lists. "
        "`/` is exact: 7 / 2 is a rational and cannot count or index, 8 / 2 is 4 and can; use "
        "`//` to round down or `ceil`. Conditions must be true or false, not numbers. Values of "
        "different kinds cannot be compared.",
        "for i in 0..M / 3 { F(r, i) }",
    ),
    "E205": Page(
        "division by zero",
        "The right side of `/`, `//` or `%` is zero, or the step of a range is. The message says "
        "for which P, M and rank. Guard it: `(a / b if b > 0 else 0)` or `max(1, b)`.",
        "let per = M / (P - 1)",
    ),
    "E206": Page(
        "an index out of range",
        "A list of n elements has the indices 0 to n - 1, and -n to -1 from its end. Elements of "
        "an empty list cannot be asked for either.",
        "let last = slots[len(slots)]",
    ),
    "E207": Page(
        "a stage or microbatch out of range",
        "Stages are 0..S, microbatches 0..M, both half open. The message gives the number used "
        "and the range. There must be one stage at least.",
        "F(r, M)",
    ),
    "E208": Page(
        "a counter that owes nothing",
        "`F*(s)` is the next forward of stage s on this rank; it fails once all M are issued. "
        "`B*(s)` and `I*(s)` need a forward issued before. `W*` needs an I without its W. Without "
        "a stage, F*, B* and I* work only where the rank holds one stage.",
        "order on rank r { W* }",
    ),
    "E209": Page(
        "too large",
        "Evaluation is bounded, so that a mistake cannot fill the memory or run for ever: at most "
        "8 million operations in a schedule, 1 million elements in a list, 20 million steps in "
        "all, 4096 bits in a number. The message says which bound was met.",
        "repeat 10 ** 12 { F*(r) }",
    ),
    "E210": Page(
        "a part is missing",
        "A schedule says where its stages live (`place stage s on rank s`) and in which order a "
        "rank works (`order on rank r { … }`).",
        "schedule s { place stage s on rank s }",
    ),
    "E211": Page(
        "a requirement is not met",
        "The schedule demands something of P, M or its parameters with `require`, and here it is "
        "not the case. The message is the schedule's own.",
        'require M % P == 0 else "M = {M} must be a multiple of P = {P}"',
    ),
    "E212": Page(
        "a file cannot be read",
        "The file does not exist or cannot be opened. An imported file is looked for beside the "
        "file that imports it, then among the bundled ones.",
        'import "mine.sched"',
    ),
    "E213": Page(
        "imports in a circle",
        "A file imports itself, directly or through others. Move what both need to a third file.",
        'import "self.sched"',
    ),
    "E214": Page(
        "a clash of imported names",
        "An import brings in every name of the imported file, and this name is defined there and "
        "here, or in two imported files. Rename one. (A bundled schedule that is not imported "
        "never clashes: the file's own comes first.)",
        'import "gpipe.sched"  schedule gpipe { … }',
    ),
    "E215": Page(
        "no such schedule or plan",
        "There is nothing of this name in the file, in what it imports, or among the bundled "
        "ones; or a plan was given where a schedule is needed. `schedc list` shows what is there.",
        "schedule zb_h3",
    ),
    "E216": Page(
        "an unknown parameter",
        "The schedule has no parameter of this name. Its parameters stand in parentheses behind "
        "its name. For a bare schedule write `--set V=3`, for a plan `--set schedule.V=3`.",
        "--set K=2",
    ),
    "E217": Page(
        "an impossible number of ranks or microbatches",
        "P (pipeline ranks) and M (microbatches) are whole numbers, at least 1.",
        "--set P=0",
    ),
    "E218": Page(
        "a given name is bound",
        "P, M, S, true and false mean the same everywhere and cannot be parameters, variables of "
        "loops or names of a `let`.",
        "let P = 4",
    ),
    "E219": Page(
        "a quantity out of place",
        "A number with a unit (`80 GiB`, `30 s`) is not a plain number and cannot be computed "
        "with here.",
        "let n = 3 s",
    ),
    "E220": Page(
        "a pattern of the wrong length",
        "`let (a, b) = value` needs a tuple, list or range of exactly as many elements as the "
        "pattern has names.",
        "let (v, m) = (1, 2, 3)",
    ),
    "E221": Page(
        "which of several is meant",
        "A file was named that holds several schedules or plans, or none. Choose one with "
        "`FILE:NAME`. Where a file has one plan, or no plan and one schedule, that is taken.",
        "schedc viz mine.sched",
    ),
    "E222": Page(
        "a policy that says too little, or the same twice",
        "`prefer` names every operation there is, the one that goes first in front: `B, F`, or "
        "`I, F, W` below `split backward`. `tie` decides between operations of one kind: "
        "`deepest stage` or `shallowest stage`, `oldest microbatch` or `newest microbatch`.",
        "policy { prefer I, F, W }",
    ),
    # ---- E3: completeness -----------------------------------------------------------------
    "E301": Page(
        "a missing operation",
        "Each stage needs, for each microbatch, one F and either one B or one I and one W, on the "
        "rank that holds the stage. The message names the stage, microbatch and rank. Look at the "
        "bounds of the loops: ranges are half open.",
        "for m in 0..M - 1 { F(r, m) }",
    ),
    "E302": Page(
        "an operation stands twice",
        "Each operation of a stage and microbatch may be issued once. The message shows both "
        "places.",
        "F(r, 0)  F(r, 0)",
    ),
    "E303": Page(
        "an operation on the wrong rank",
        "A rank can only execute operations of the stages placed on it. The message says which "
        "stages the rank holds. Change `place`, or the stage of the operation.",
        "place stage s on rank s  order on rank r { F(0, 0) }",
    ),
    "E304": Page(
        "B mixed with I and W",
        "The backward of a stage and microbatch is either one B, or an I and a W, never both.",
        "B(r, m)  W(r, m)",
    ),
    "E305": Page(
        "an impossible placement",
        "`place` must give every stage a rank in 0..P.",
        "place stage s on rank s + 1",
    ),
    "E306": Page(
        "an operation that does not exist",
        "The order has an operation of a stage or microbatch outside 0..S or 0..M.",
    ),
    "E307": Page(
        "a malformed order",
        "The text of an order (`--emit order`) does not follow its form. The message says what "
        "was expected in the line.",
    ),
    "E308": Page(
        "costs too fine to add up",
        "All times are exact. The costs given have no common unit in which the whole schedule "
        "still fits in 63 bits. Give them with fewer digits.",
        "--cost F=1.000000000000000001",
    ),
    "E309": Page(
        "slots that cannot be repeated",
        "In a pattern every rank's slots are distinct modulo the period, leave a hole for each "
        "weight gradient that goes into holes, and stand after the slots whose results they need: "
        "F of a stage after F of the stage before, I after I of the stage behind, one slot at "
        "least. Shift a slot, or lengthen the period.",
        "pattern every 2 on rank r { F(r) at r  B(r) at r + 4 }",
    ),
    "E310": Page(
        "not PyTorch's schedule format",
        "In a schedule CSV of torch.distributed.pipelining a row is a rank and a cell an action: a "
        "stage, a word and a microbatch, such as 2F0 or 1RECV_F0; UNSHARD, RESHARD and "
        "REDUCE_GRAD are of a whole stage; (0F1;3B0)OVERLAP_F_B is a slot of two. PyTorch reads "
        "0F0garbage as 0F0; here it is an error. The message names row and cell.",
        "0F0,0F1,0B0garbage,0B1",
    ),
    # ---- E4: order ------------------------------------------------------------------------
    "E401": Page(
        "the order deadlocks",
        "Every rank would wait for another one, for ever. An operation waits for its inputs (F "
        "for the F of the stage before, B or I for its own F and the backward of the stage after, "
        "W for its I) and for what stands before it on its rank. The message prints the shortest "
        "cycle, each step with its source line. Break it by issuing one of these operations "
        "earlier, usually with a longer warm-up.",
        "order on rank r { for m in 0..M { B(r, m)  F(r, m) } }",
    ),
    "E402": Page(
        "a limit that no order can keep",
        "A rank keeps at least what one microbatch keeps on all of its stages: they are all "
        "forwarded before the first of their backwards. In activation units a stage is P/S.",
        "policy { prefer B, F  limit activations <= 1/2 }",
    ),
    "E403": Page(
        "a policy wedges",
        "List scheduling has come to a point where no rank can go on: what is ready does not fit "
        "into memory, and what would free memory waits for another rank. The message says who "
        "keeps what. On ranks with several stages, early microbatches of a first stage can take "
        "the room that the last stage needs: `reserve 1 for last local stage` keeps it free.",
        "policy { prefer F, B  limit activations <= P }",
    ),
    # ---- E5: communication and programs ---------------------------------------------------
    "E501": Page(
        "a message without partner",
        "In a set of programs each send needs exactly one receive on the other rank, and each "
        "receive a send. One was removed, doubled or moved to another rank.",
    ),
    "E502": Page(
        "two ends of a message differ",
        "A send and its receive must agree on the edge (operation, stage, microbatch), the shape, "
        "the dtype, and the sequence number in their queue. The message gives both ends.",
    ),
    "E503": Page(
        "the communication deadlocks",
        "Taking every message as a rendezvous (it is done only when both sides have posted it), "
        "the programs wait for one another in a circle: with their queues as they are, with one "
        "queue a communicator as on NCCL, or with one a rank. The message says with which, and "
        "prints the shortest circle. Post the messages of all ranks in one order.",
    ),
    "E504": Page(
        "collectives in different order",
        "All ranks of a group must start the same collectives in the same order. Two of them do "
        "not. Gradients are summed over replicas, and those of tied embeddings over their two "
        "ranks, once, when they are complete and before the norm.",
    ),
    "E505": Page(
        "a buffer is misused",
        "A buffer is filled once, then read, then free. Here it is read before it is filled, "
        "filled while still in use, or used after its last reader.",
    ),
    "E506": Page(
        "an operation is missing from a program, or stands twice",
        "Each rank's program must execute each operation of its stages exactly once for each "
        "microbatch.",
    ),
    "E507": Page(
        "a malformed program",
        "The text of a `.prog` file does not follow its form. Programs may be edited by hand; the "
        "message says what was expected in the line.",
    ),
    "E508": Page(
        "a body is misused",
        "The steps of a body (graph calls, gathers, reductions) do not fit together, or the "
        "stream calls a body with the wrong operands.",
    ),
    "E509": Page(
        "messages that do not fit the order",
        "A schedule CSV that writes its messages out needs, for each result that another rank "
        "reads, one send behind the operation and one receive before the reader, and nothing "
        "else. Messages between two ranks meet in the order they are posted: with two receives "
        "swapped, PyTorch's runtime trains on wrong gradients without a word.",
        "0RECV_B1,0RECV_B0",
    ),
    # ---- E7: claims -----------------------------------------------------------------------
    "E701": Page(
        "a claim does not hold",
        "A `check` line of the schedule is false for these P, M and costs. The message gives the "
        "values of both sides, and the rank where the claim speaks of every rank. Either the "
        "schedule is not what it is meant to be, or the claim needs a condition: "
        "`check … when …`.",
        "check peak_activations(r) <= 1",
    ),
    # ---- E8: plans and partition ----------------------------------------------------------
    "E801": Page(
        "a layer is left out or named twice",
        "The layout must give every layer of the model to exactly one stage. Nothing is dropped "
        "or repeated to make it fit.",
        'layers "E t*3 | t*3 H"',
    ),
    "E802": Page(
        "more stages than parts of the model",
        "A stage needs at least one layer, or the embedding or the head. Use fewer stages or a "
        "deeper model.",
    ),
    "E803": Page(
        "the batch does not divide",
        "The global batch must be a multiple of dp, and be enough for one microbatch of every "
        "replica. Where microbatches do not divide what a replica has, the last one is smaller.",
        "mesh dp = 4  batch 10 in microbatches of 2",
    ),
    "E804": Page(
        "a malformed layout",
        "A layout lists the stages separated by `|`: `E` is the embedding, `t` a layer, `t*3` "
        "three, `H` the head. `balanced` and `even` find one themselves.",
        'layers "E t*3 & t*5 H"',
    ),
    "E805": Page(
        "the model's configuration cannot be used",
        "The `config.json` cannot be read, lacks a field, or describes something that this "
        "compiler does not build (it builds Llama, Mistral, Qwen2 and Qwen3), or the plan asks for "
        "a sequence that the model is not made for. The message names the field.",
    ),
    "E806": Page(
        "an unknown model",
        "`model` is the name of a preset, a folder that holds a `config.json`, or that file.",
        'model "llama-tny"',
    ),
    "E807": Page(
        "a plan lacks a key",
        "A plan needs model, sequence, batch, mesh, schedule and precision. All others have "
        "defaults.",
        'plan p { model "llama-tiny" }',
    ),
    "E808": Page(
        "a key stands twice",
        "Each key of a plan, axis of a mesh and option of a precision may stand once. Delete one.",
        "sequence 128  sequence 256",
    ),
    "E809": Page(
        "an unknown key",
        "A plan has no such key, a mesh no such axis (they are dp, pp, cp and tp), or a precision "
        "no such option (bf16 has master and reduce, fp16 those and scale). Nothing unknown is "
        "ignored.",
        "mesh pp2 = 2",
    ),
    "E810": Page(
        "a plan asks for what is not supported yet",
        "This version compiles plans with pipeline and data parallelism. Other keys and "
        "values are known, but refused by name rather than ignored.",
        "zero 1",
    ),
    "E811": Page(
        "a wrong value in a plan",
        "Sizes are whole numbers, at least 1; other keys take one of a few words. The message "
        "lists them.",
        "mesh pp = -1",
    ),
    "E812": Page(
        "a derived number cannot be set",
        "In a plan, P is the mesh's pp, M follows from the batch, and S from the schedule. Set "
        "those instead: `--set pp=4`, `--set microbatch=1`.",
        "--set P=4",
    ),
    "E813": Page(
        "a bare schedule cannot be run",
        "Programs need a model, a mesh and sizes. A schedule has none of these; write a plan that "
        "names it: `plan p { model … schedule NAME … }`.",
        "schedc compile gpipe",
    ),
    "E814": Page(
        "the layout has another number of stages",
        "The layout string lists one part, between `|`, for each stage of the schedule. Give as "
        "many parts as there are stages, or use `balanced` or `even`.",
        'mesh pp = 2  layers "E t*3 | t*3 | t*3 H"',
    ),
    # ---- E9: artifacts and runs -----------------------------------------------------------
    "E815": Page(
        "a pattern that freezes nothing",
        "`freeze` takes patterns of Hugging Face's names of parameters, in which `*` stands for "
        "anything and `?` for one character: `model.layers.0.*`. This one names no parameter of "
        "the model. A tied head has no parameter of its own: it is frozen with the embedding.",
        'freeze "layers.0.*"',
    ),
    "E816": Page(
        "everything is frozen",
        "The patterns of `freeze` name every parameter of the model: there is nothing to train.",
        'freeze "*"',
    ),
    "E901": Page(
        "a compiled folder is damaged",
        "A file of the folder is missing, cut short or does not belong to the others. Compile "
        "again.",
    ),
    "E902": Page(
        "the data cannot be used",
        "The training data cannot be read, is empty, or does not fit the plan (sequences longer "
        "than `sequence`, token numbers outside the vocabulary, fewer sequences than a batch).",
    ),
    "E903": Page(
        "weights do not fit",
        "The checkpoint lacks a parameter of the model, has one that the model does not, one of "
        "another shape, or numbers beyond the range of the plan's precision. Nothing is skipped or "
        "initialised silently.",
    ),
    "E904": Page(
        "a run is set up wrongly",
        "The number of processes differs from the plan's mesh, or an option has a wrong value.",
    ),
    "E907": Page(
        "measured times cannot be used",
        "The file given with `--times` cannot be read, is not one that a run wrote with "
        "`--times-out`, or lacks a graph of the compiled plan. Measure again.",
    ),
    "E908": Page(
        "a timeline cannot be read",
        "The file is no timeline: neither a compiled folder, nor its `timeline.json`, nor what a "
        "run wrote with `--trace-out`.",
    ),
}
