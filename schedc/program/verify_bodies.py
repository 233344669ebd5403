"""Bodies: every graph of the stage that is not idle once, each on the value it wants (E508).

A body is interpreted over names. Each name stands for a value of the stage, ``(kind, j)``: ``h j``
is the hidden states before unit ``j`` (``h 0`` the stage's input, ``h n`` its output), ``dh j``
their gradient, ``saved j`` and ``owed j`` what unit ``j`` keeps.
"""

from __future__ import annotations

from collections import Counter

from schedc.ir.order import Op
from schedc.program.body import GRADIENT_AXES, REDUCE_DTYPES, Body, Call, Reduce
from schedc.program.program import Programs, RankProgram
from schedc.program.signature import Model, Unit
from schedc.program.verify_columns import Findings
from schedc.program.verify_gradients import gradients_of
from schedc.program.verify_model import check_model
from schedc.program.work import NOTHING, GradientCall, works_of

Value = tuple[str, int]

_CALLS = {Op.F: "F", Op.I: "I", Op.W: "W", Op.B: "IW"}
_MAY_READ = {
    Op.F: {"x", "tokens", "labels"},
    Op.I: {"x", "tokens", "labels", "dy", "saved"},
    Op.B: {"x", "tokens", "labels", "dy", "saved"},
    Op.W: {"x", "tokens", "labels", "dy", "saved", "owed"},
}


def check_bodies(programs: Programs, model: Model | None, findings: Findings) -> None:
    """All bodies of all programs; with a model also against its units and graphs."""
    stages = sum(len(program.stages) for program in programs)
    if model is not None:
        check_model(programs, model, findings)
        if findings:
            return
    for program in programs:
        gives = gradients_of(program, model)
        names = Counter(body.name for body in program.bodies)
        for name in sorted(name for name, count in names.items() if count > 1):
            findings.add("E508", f"rank {program.rank} has the body `{name}` twice")
        for body in program.bodies:
            if body.tail and model is not None and not model.has_tail:
                where = f"rank {program.rank}, body `{body.name}`"
                findings.add("E508", f"{where}: the model has no smaller last microbatch")
                continue
            sized = model.of(body.tail) if model is not None else None
            _BodyCheck(program, body, stages, sized, gives, findings).run()


class _BodyCheck:
    """Interprets one body."""

    def __init__(
        self,
        program: RankProgram,
        body: Body,
        stages: int,
        model: Model | None,
        gives: dict[str, tuple[GradientCall, ...]],
        findings: Findings,
    ) -> None:
        self.body, self.model, self.gives, self.findings = body, model, gives, findings
        self.where = f"rank {program.rank}, body `{body.name}`"
        self.names: tuple[str, ...] = dict(program.stages).get(body.stage, ())
        self.is_local = any(stage == body.stage for stage, _ in program.stages)
        self.first, self.final = body.stage == 0, body.stage == stages - 1
        self.keeps = not program.evaluates
        self.work = works_of(program, model)[body.stage] if self.is_local else NOTHING
        self.values: dict[str, Value] = {}
        self.calls: Counter[tuple[str, int]] = Counter()

    def run(self) -> None:
        body = self.body
        if not self.is_local or body.op not in _CALLS:
            self._refuse("this rank does not hold the stage, or the operation has no body")
            return
        if not self.work.has(body.op):
            frozen = "what it would train, and all before it, is frozen"
            why = frozen if self.keeps else "this is an evaluation"
            self._refuse(f"there is nothing to do: {why}")
            return
        if not self._interface():
            return
        self._bind_reads()
        for step in body.steps:
            match step:
                case Call():
                    self._call(step)
                case Reduce():
                    self._reduce(step)
        self._check_calls()
        self._check_writes()
        if self.model is not None:
            self._check_held(self.model)

    def _refuse(self, what: str) -> None:
        self.findings.add("E508", f"{self.where}: {what}")

    def _interface(self) -> bool:
        """What the body reads from and writes to the stream is what its operation needs."""
        op, reads, writes = self.body.op, self.body.reads, self.body.writes
        source = "tokens" if self.first else "x"
        labels = {"labels"} if self.final else set[str]()
        gradient = set[str]() if self.final else {"dy"}
        dx = {"dx"} if self.work.dx and not self.first else set[str]()
        saved, owed = ({n} if does else set[str]() for n, does in self._kept())
        needed, written = {
            Op.F: ({source} | labels, {"loss" if self.final else "y"} | saved),
            Op.I: (gradient | {"saved"}, dx | owed),
            Op.B: (gradient | {"saved"}, dx),
            Op.W: ({"owed"}, set[str]()),
        }[op]
        may = _MAY_READ[op] - ({"x"} if self.first else {"tokens"})
        may -= {"dy"} if self.final else {"labels"}
        good = True
        if len(set(reads)) < len(reads) or not needed <= set(reads) <= may:
            wanted = f"{_list(needed)}, and may read {_list(may - needed)}"
            self._refuse(f"it must read {wanted}, each once; it reads {_list(reads)}")
            good = False
        if len(set(writes)) < len(writes) or set(writes) != written:
            self._refuse(f"it must write {_list(written)}; it writes {_list(writes)}")
            good = False
        return good

    def _kept(self) -> tuple[tuple[str, bool], tuple[str, bool]]:
        """What a later operation of the stage reads of this one's tensors."""
        return ("saved", self.work.I), ("owed", self.work.W)

    def _is_called(self, kind: str, j: int) -> bool:
        """Whether the graph of unit ``j`` has anything to do."""
        if not self.work.has(Op[kind]):
            return False
        if self.model is None:
            return True
        return not self.model.graphs[f"{self.model.unit(self.names[j]).graphs}.{kind}"].idle

    def _bind_reads(self) -> None:
        last = len(self.names)
        for name in self.body.reads:
            if name in ("saved", "owed"):
                for j in range(last):
                    self.values[f"{name}.{j}"] = (name, j)
            elif name in ("x", "tokens"):
                self.values[name] = ("h", 0)
            elif name == "dy":
                self.values[name] = ("dh", last)
            else:
                self.values[name] = (name, 0)
        if self.final and self.body.op in (Op.I, Op.B):
            self.values["tangent"] = ("dh", last)

    def _call(self, call: Call) -> None:
        kind = call.graph.rpartition(".")[2]
        if call.unit not in self.names:
            self._refuse(f"it calls the unit {call.unit}, which the stage does not hold")
            return
        j = self.names.index(call.unit)
        if kind not in _CALLS[self.body.op]:
            self._refuse(f"{call.graph} has no place in {self.body.op.name}")
            return
        if self.model is not None and not self._check_graph(self.model, call, kind):
            return
        self.calls[kind, j] += 1
        reads, writes = self._interface_of_call(call, kind, j)
        found = tuple(self.values.get(name) for name in call.reads)
        for name, value in zip(call.reads, found, strict=True):
            if value is None:
                self._refuse(f"{_text(call)} reads `{name}`, which is not defined before it")
        if None not in found and found != reads:
            wanted = ", ".join(map(_value_text, reads))
            got = ", ".join(_value_text(value) for value in found if value is not None)
            self._refuse(f"{_text(call)} must read {wanted}; it reads {got}")
        if len(call.writes) != len(writes):
            wanted = ", ".join(map(_value_text, writes)) or "nothing"
            self._refuse(f"{_text(call)} must write {wanted}")
            return
        for name, value in zip(call.writes, writes, strict=True):
            if name in self.values:
                self._refuse(f"{_text(call)} writes `{name}` a second time")
            if value[0] in ("saved", "owed") and name != f"{value[0]}.{value[1]}":
                self._refuse(f"{_text(call)} must write `{value[0]}.{value[1]}`, not `{name}`")
            self.values[name] = value

    def _interface_of_call(
        self, call: Call, kind: str, j: int
    ) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
        """The values that the graph of unit ``j`` reads and writes, in order."""
        is_head = self.final and j == len(self.names) - 1
        if kind == "F":
            labels: tuple[Value, ...] = (("labels", 0),) if is_head else ()
            saved: tuple[Value, ...] = (("saved", j),) if self._is_called("I", j) else ()
            return (("h", j), *labels), (("h", j + 1), *saved)
        if kind == "I":
            labels = (("labels", 0),) if self._labels_in_I(call, is_head) else ()
            dx: tuple[Value, ...] = (("dh", j),) if self._dx_in_I(call, j) else ()
            owed: tuple[Value, ...] = (("owed", j),) if self._is_called("W", j) else ()
            return (("saved", j), ("dh", j + 1), *labels), (*dx, *owed)
        return (("owed", j),), ()

    def _labels_in_I(self, call: Call, is_head: bool) -> bool:
        if not is_head:
            return False
        if self.model is not None:
            return bool(self.model.graphs[call.graph].inputs_of("labels"))
        return len(call.reads) == 3

    def _dx_in_I(self, call: Call, j: int) -> bool:
        if self.model is not None:
            return bool(self.model.graphs[call.graph].outputs_of("dx"))
        return not (self.first and j == 0)

    def _check_graph(self, model: Model, call: Call, kind: str) -> bool:
        unit = model.unit(call.unit)
        wanted = f"{unit.graphs}.{kind}"
        if call.graph != wanted:
            self._refuse(f"{call.graph} is not the graph of {unit.name}: that is {wanted}")
            return False
        if model.graphs[wanted].idle:
            self._refuse(f"it calls {wanted} for {unit.name}, which has nothing to do")
            return False
        return True

    def _reduce(self, step: Reduce) -> None:
        if not self.body.last:
            self._refuse(f"it reduces {step.unit}, but is not the stage's last")
        elif step.axes != GRADIENT_AXES:
            axes, right = (" ".join(names) or "nothing" for names in (step.axes, GRADIENT_AXES))
            self._refuse(f"it reduces {step.unit} over {axes}; gradients are summed over {right}")
        elif step.dtype not in REDUCE_DTYPES:
            self._refuse(f"it reduces {step.unit} in {step.dtype}, not in a dtype of gradients")
        else:
            here = [call for call in self.gives.get(step.unit, ()) if call[0] == self.body.stage]
            made = [call for call in here if call[1] in _CALLS[self.body.op]]
            if not here:
                self._refuse(f"it reduces {step.unit}, which has no gradients on this stage")
            elif not made or any(not self.calls[op, self.names.index(u)] for _, op, u in made):
                self._refuse(f"it reduces {step.unit} before its gradients are complete")

    def _check_calls(self) -> None:
        for kind in _CALLS[self.body.op]:
            for j, name in enumerate(self.names):
                count = self.calls[kind, j]
                if count != 1 and self._is_called(kind, j):
                    self._refuse(f"it calls {kind} of {name} {count} times, not once")

    def _check_writes(self) -> None:
        last = len(self.names)
        for name in self.body.writes:
            if name in ("saved", "owed"):
                reader = "I" if name == "saved" else "W"
                left = [j for j in range(last) if self._is_called(reader, j)]
                wanted = {f"{name}.{j}": (name, j) for j in left}
            else:
                wanted = {name: ("dh", 0) if name == "dx" else ("h", last)}
            for inner, value in wanted.items():
                if self.values.get(inner) != value:
                    self._refuse(
                        f"it writes `{inner}`, but no call leaves {_value_text(value)} there"
                    )

    def _check_held(self, model: Model) -> None:
        """Buffers whose memory saved and owed tensors share are operands, so that they stay."""
        if self.body.op is Op.F or not self.names:
            return
        first, last = (model.unit(name) for name in (self.names[0], self.names[-1]))
        held = _held(model, first, last, self.body.op is Op.W)
        source = "tokens" if self.first else "x"
        wanted = {source} if "input" in held else set[str]()
        wanted |= {"dy"} if "dy" in held and not self.final else set[str]()
        for name in sorted(wanted - set(self.body.reads)):
            self._refuse(f"it must read `{name}`: tensors that it uses share that memory")


def _held(model: Model, first: Unit, last: Unit, weights: bool) -> set[str]:
    """Which of the stage's input and dy the tensors that I (or W) reads are views of."""
    forward = model.graphs[f"{first.graphs}.F"]
    sources = {value.name for value in forward.inputs_of("x", "tokens")}
    saved = {value.name for value in forward.outputs_of("saved") if value.alias in sources}
    if not weights:
        return {"input"} if saved else set()
    held = set[str]()
    if any(v.alias in saved for v in model.graphs[f"{first.graphs}.I"].outputs_of("owed")):
        held.add("input")
    backward = model.graphs[f"{last.graphs}.I"]
    gradients = {value.name for value in backward.inputs_of("dy")}
    if any(value.alias in gradients for value in backward.outputs_of("owed")):
        held.add("dy")
    return held


def _list(names: set[str] | tuple[str, ...]) -> str:
    ordered = names if isinstance(names, tuple) else sorted(names)
    return " ".join(f"`{name}`" for name in ordered) or "nothing"


def _text(call: Call) -> str:
    return f"the call of {call.graph} for {call.unit}"


def _value_text(value: Value) -> str:
    kind, j = value
    match kind:
        case "h":
            return f"the hidden states before unit {j}"
        case "dh":
            return f"the gradient of the hidden states before unit {j}"
        case "labels":
            return "the labels"
        case _:
            return f"{kind}.{j}"
