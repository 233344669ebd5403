"""A ``plan`` block and its ``--set`` values to a checked, typed :class:`schedc.ir.plan.Plan`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from schedc.diagnostics import Diagnostic, DiagnosticError, Label, Source, Span
from schedc.ir.mesh import Mesh
from schedc.ir.plan import Optimizer, Plan
from schedc.ir.precision import Precision
from schedc.sema.precision import read_precision
from schedc.sema.schedule import (
    MOST_MICROBATCHES,
    MOST_RANKS,
    Arguments,
    Instance,
    evaluate_node,
    instantiate_with,
    read_setting,
    unknown_parameter,
)
from schedc.sema.values import kind, show
from schedc.syntax import ast
from schedc.syntax.hints import did_you_mean
from schedc.syntax.parse import parse_precision_use, parse_schedule_use, parse_setting

if TYPE_CHECKING:
    from schedc.sema.library import Library

REQUIRED = ("model", "sequence", "batch", "mesh", "schedule", "precision")
OPTIONAL = ("layers", "zero", "recompute", "optimizer", "freeze", "evaluation")
LATER = ("context", "sequence_parallel", "cluster")
"""Keys of later versions."""
KEYS = (*REQUIRED, *OPTIONAL, *LATER)
AXES = ("dp", "pp", "cp", "tp")
SETTINGS = (*(key for key in KEYS if key != "mesh"), "microbatch", *AXES)
"""What ``--set`` may name for a plan, beside ``schedule.PARAMETER``."""

MOST_SIZE = 16_777_216
"""Tokens of a sequence; sequences of a batch."""


def check_plan(plan: ast.Plan) -> None:
    """Check the form of a plan: unknown and repeated keys. Raises all mistakes together."""
    mistakes: list[Diagnostic] = []
    first: dict[str, Span] = {}
    for entry in plan.entries:
        if entry.key not in KEYS:
            mistakes.append(_unknown_key(entry))
        elif entry.key in first:
            label = Label(first[entry.key], "first here")
            mistakes.append(
                Diagnostic("E808", f"`{entry.key}` stands twice", entry.key_span, (label,))
            )
        first.setdefault(entry.key, entry.key_span)
    if mistakes:
        raise DiagnosticError(mistakes)


def _unknown_key(entry: ast.Entry) -> Diagnostic:
    help = did_you_mean(entry.key, KEYS)
    if entry.key in AXES:
        help = f"axes belong to the mesh: `mesh {entry.key} = …`"
    elif entry.key == "microbatch":
        help = "write `batch TOTAL in microbatches of SIZE`"
    return Diagnostic(
        "E809",
        f"a plan has no key `{entry.key}`",
        entry.key_span,
        notes=(f"the keys are {', '.join(KEYS)}",),
        help=help,
    )


def make_plan(library: Library, name: str, settings: Mapping[str, str]) -> Plan:
    """The plan ``name`` with ``--set`` values in place of its own.

    ``settings`` may name every key but ``mesh``, and ``microbatch``, ``dp``, ``pp``, ``cp``,
    ``tp`` and ``schedule.PARAMETER``. Raises :class:`DiagnosticError` with all mistakes.
    """
    return plan_and_instance(library, name, settings)[0]


def plan_and_instance(
    library: Library, name: str, settings: Mapping[str, str]
) -> tuple[Plan, Instance]:
    """As :func:`make_plan`, with the schedule's instance: its claims, notes and title."""
    plan = library.plan(name)
    check_plan(plan)
    return _Reader(library, plan, settings).read()


@dataclass(frozen=True, slots=True)
class _Found:
    """A value and the place it was written."""

    value: ast.EntryValue
    span: Span


class _Reader:
    """Reads one plan, collecting mistakes."""

    def __init__(self, library: Library, plan: ast.Plan, settings: Mapping[str, str]) -> None:
        self.library = library
        self.plan = plan
        self.mistakes: list[Diagnostic] = []
        self.entries = {entry.key: entry for entry in plan.entries}
        self.found: dict[str, _Found] = {}
        self.arguments: dict[str, tuple[str, Source, Span]] = {}
        self.patterns: tuple[ast.Text, ...] = ()
        for key, entry in self.entries.items():
            self._entry(key, entry)
        for key, text in settings.items():
            self._setting(key, text)

    def _report(self, code: str, message: str, span: Span | None, help: str | None = None) -> None:
        self.mistakes.append(Diagnostic(code, message, span, help=help))

    # ---- gathering ------------------------------------------------------------------------

    def _entry(self, key: str, entry: ast.Entry) -> None:
        """Take an entry apart: a batch into two sizes, a mesh into its axes."""
        value = entry.values[0] if entry.values else ast.Raw("", entry.span)
        match value:
            case ast.Batch():
                self.found["batch"] = _Found(value.total, value.total.span)
                self.found["microbatch"] = _Found(value.each, value.each.span)
            case ast.Mesh():
                self._mesh(value)
            case ast.Text() if key == "freeze":
                self.patterns = tuple(v for v in entry.values if isinstance(v, ast.Text))
            case _:
                self.found[key] = _Found(value, value.span)
        if key == "zero" and len(entry.values) > 1:
            self._report("E810", f"options of `{key}` are not supported yet", entry.values[1].span)

    def _mesh(self, mesh: ast.Mesh) -> None:
        for axis in mesh.axes:
            name = Span(
                axis.span.source,
                axis.span.line,
                axis.span.column,
                axis.span.line,
                axis.span.column + len(axis.name),
            )
            if axis.name not in AXES:
                help = did_you_mean(axis.name, AXES) or f"the axes are {', '.join(AXES)}"
                self._report("E809", f"a mesh has no axis `{axis.name}`", name, help)
            elif axis.name in self.found:
                self._report("E808", f"axis `{axis.name}` stands twice", name)
            else:
                self.found[axis.name] = _Found(axis.size, axis.size.span)

    def _setting(self, key: str, text: str) -> None:
        source = Source("--set", f"{key}={text}")
        place = Span(source, 1, 1, 1, len(key) + 1)
        skip = len(key) + 1
        value_span = Span(source, 1, skip + 1, 1, max(skip + 2, len(source.text) + 1))
        if key in ("P", "M", "S"):
            better = {"P": "set `pp`", "M": "set `batch` or `microbatch`", "S": "choose a schedule"}
            self._report("E812", f"a plan derives `{key}`; it cannot be set", place, better[key])
        elif key.startswith("schedule."):
            self.arguments[key.removeprefix("schedule.")] = (text, source, place)
        elif key not in SETTINGS:
            help = did_you_mean(key, SETTINGS)
            if key == "mesh":
                help = "the axes of the mesh are set one by one: --set pp=4 --set dp=2"
            if key in self._parameters():
                help = f"parameters of the schedule are set as `schedule.{key}`"
            self._report("E809", f"a plan has nothing called `{key}` to set", place, help)
        elif key == "freeze":
            words = [word.strip() for word in text.split(",")] if text.strip() else []
            self.patterns = tuple(
                ast.Text(word.removeprefix('"').removesuffix('"'), value_span) for word in words
            )
        else:
            try:
                self.found[key] = _Found(_read_value(key, text, source, value_span), value_span)
            except DiagnosticError as error:
                self.mistakes += error.diagnostics

    def _parameters(self) -> list[str]:
        used = self.found.get("schedule")
        if used is None or not isinstance(used.value, ast.ScheduleUse):
            return []
        found = self.library.find(used.value.name)
        return [p.name for p in found.parameters] if isinstance(found, ast.Schedule) else []

    # ---- reading --------------------------------------------------------------------------

    def read(self) -> tuple[Plan, Instance]:
        self._missing()
        self._later()
        sizes = self._sizes()
        model = self._model()
        layers = self._layers()
        optimizer = self._word("optimizer", ("adamw", "sgd"), (), "adamw")
        precision = self._precision()
        self._word("recompute", ("none",), ("full", "attention", "mlp", "norms", "fit"), "none")
        self._zero()
        self._freeze()
        schedule, arguments = self._schedule()
        self._batch(sizes)
        if self.mistakes:
            raise DiagnosticError(sorted(self.mistakes, key=_place))
        mesh = Mesh(dp=sizes["dp"], pp=sizes["pp"], cp=sizes["cp"], tp=sizes["tp"])
        together = mesh.dp * sizes["microbatch"]
        microbatches = -(-sizes["batch"] // together)
        instance = instantiate_with(self.library, schedule, mesh.pp, microbatches, arguments)
        passes = sizes["evaluation"] // together if "evaluation" in self.found else microbatches
        evaluation = instance
        if passes != microbatches:
            try:
                evaluation = instantiate_with(self.library, schedule, mesh.pp, passes, arguments)
            except DiagnosticError as error:
                words = f"M = {passes} is that of the plan's `evaluation {sizes['evaluation']}`"
                noted = (replace(d, notes=(*d.notes, words)) for d in error.diagnostics)
                raise DiagnosticError(noted) from None
        plan = Plan(
            name=self.plan.name,
            model=model,
            sequence=sizes["sequence"],
            batch=sizes["batch"],
            microbatch=sizes["microbatch"],
            mesh=mesh,
            order=instance.order,
            evaluation=passes * together,
            evaluation_order=evaluation.order.forwards(),
            layers=layers,
            precision=precision,
            optimizer=cast(Optimizer, optimizer),
            freeze=tuple(pattern.value for pattern in self.patterns),
            spans=self._spans(),
        )
        assert plan.microbatches == microbatches
        return plan, instance

    def _spans(self) -> dict[str, Span]:
        """The place of every key: of its ``--set`` value, of its value, or of the key itself."""
        spans = {key: entry.key_span for key, entry in self.entries.items()}
        spans |= {f"freeze {pattern.value}": pattern.span for pattern in self.patterns}
        return spans | {key: found.span for key, found in self.found.items()}

    def _missing(self) -> None:
        for key in REQUIRED:
            given = key in self.entries or key in self.found
            if not given and not (key == "mesh" and any(axis in self.found for axis in AXES)):
                self._report(
                    "E807",
                    f"plan `{self.plan.name}` has no `{key}`",
                    self.plan.name_span,
                    _EXAMPLES[key],
                )
        if "batch" in self.found and "microbatch" not in self.found:
            self._report(
                "E807",
                f"plan `{self.plan.name}` does not say the size of a microbatch",
                self.found["batch"].span,
                "also `--set microbatch=…`",
            )

    def _later(self) -> None:
        for key in LATER:
            if key in self.found:
                entry = self.entries.get(key)
                span = self.found[key].span
                if entry is not None and span.source is entry.span.source:
                    span = entry.key_span
                self._report("E810", f"`{key}` is not supported yet", span)

    def _sizes(self) -> dict[str, int]:
        """All sizes, 1 where missing or wrong, so that later checks have something to go on."""
        sizes: dict[str, int] = {}
        for key in ("sequence", "batch", "microbatch", "evaluation", *AXES):
            sizes[key] = 1
            if key in self.found:
                most = MOST_RANKS if key in AXES else MOST_SIZE
                sizes[key] = self._size(key, self.found[key], most)
        for axis, what in (("cp", "context parallelism"), ("tp", "tensor parallelism")):
            if sizes[axis] > 1:
                self._report(
                    "E810",
                    f"`{axis} = {sizes[axis]}` ({what}) is not supported yet",
                    self.found[axis].span,
                    f"leave {axis} out, or set it to 1",
                )
        return sizes

    def _size(self, key: str, found: _Found, most: int) -> int:
        if isinstance(found.value, _NOT_EXPRESSIONS):
            self._report("E811", f"`{key}` must be a whole number from 1 to {most}", found.span)
            return 1
        try:
            value = evaluate_node(found.value)
        except DiagnosticError as error:
            self.mistakes += error.diagnostics
            return 1
        if type(value) is int and 1 <= value <= most:
            return value
        shown = show(value) if type(value) is int else f"{kind(value)}, {show(value)}"
        self._report(
            "E811",
            f"`{key}` is {shown}; it must be a whole number from 1 to {most}",
            found.span,
        )
        return 1

    def _batch(self, sizes: dict[str, int]) -> None:
        """The batch must divide over replicas, and fill at least one microbatch of each."""
        if "batch" not in self.found or "microbatch" not in self.found or self.mistakes:
            return
        batch, dp, each = sizes["batch"], sizes["dp"], sizes["microbatch"]
        span = self.found["batch"].span
        if batch % dp:
            self._report(
                "E803",
                f"a batch of {batch} does not divide over dp = {dp} replicas "
                f"({batch} = {batch // dp} * {dp} + {batch % dp})",
                span,
                _near(batch, dp),
            )
        elif each > batch // dp:
            self._report(
                "E803",
                f"a batch of {batch} over dp = {dp} is {batch // dp} sequences a replica, fewer "
                f"than one microbatch of {each}",
                span,
                f"write `batch {batch} in microbatches of {batch // dp}` or fewer",
            )
        elif batch // (dp * each) > MOST_MICROBATCHES:
            self._report("E811", f"more than {MOST_MICROBATCHES} microbatches", span)
        passes = sizes["evaluation"]
        if "evaluation" in self.found and passes % (dp * each):
            self._report(
                "E803",
                f"an evaluation of {passes} sequences does not divide into microbatches of {each} "
                f"on dp = {dp} replicas; what the data lacks is filled up and ignored",
                self.found["evaluation"].span,
                _near(passes, dp * each),
            )

    def _model(self) -> str:
        found = self.found.get("model")
        if found is None:
            return ""
        if isinstance(found.value, ast.Text) and found.value.value.strip():
            return found.value.value
        self._report("E811", "`model` names a preset, a folder or a config.json", found.span)
        return ""

    def _layers(self) -> str:
        found = self.found.get("layers")
        if found is None:
            return "balanced"
        if isinstance(found.value, ast.Text):
            if found.value.value.strip():
                return found.value.value
            self._report("E811", "the layout of `layers` is empty", found.span)
            return "balanced"
        return self._word("layers", ("balanced", "even"), (), "balanced")

    def _word(self, key: str, known: tuple[str, ...], later: tuple[str, ...], default: str) -> str:
        """The word that ``key`` has: one of ``known``, while those of ``later`` are refused."""
        found = self.found.get(key)
        if found is None:
            return default
        if isinstance(found.value, ast.Raw):
            self._report("E810", f"options of `{key}` are not supported yet", found.span)
            return default
        word = found.value.word if isinstance(found.value, ast.Word) else ""
        if word in known:
            return word
        if word in later:
            self._report("E810", f"`{key} {word}` is not supported yet", found.span)
            return default
        choices = " or ".join(f"`{choice}`" for choice in known)
        shown = f"`{word}`" if word else "something else"
        help = did_you_mean(word, known)
        self._report("E811", f"`{key}` is {choices}, not {shown}", found.span, help)
        return default

    def _precision(self) -> Precision:
        found = self.found.get("precision")
        if found is not None and isinstance(found.value, ast.PrecisionUse):
            try:
                return read_precision(found.value)
            except DiagnosticError as error:
                self.mistakes += error.diagnostics
        return Precision("fp32")

    def _zero(self) -> None:
        found = self.found.get("zero")
        if found is None or isinstance(found.value, _NOT_EXPRESSIONS):
            return
        try:
            value = evaluate_node(found.value)
        except DiagnosticError as error:
            self.mistakes += error.diagnostics
            return
        if type(value) is int and value in (1, 2, 3):
            self._report("E810", f"`zero {value}` is not supported yet", found.span)
        elif type(value) is not int or value != 0:
            self._report("E811", f"`zero` is 0, 1, 2 or 3, not {show(value)}", found.span)

    def _freeze(self) -> None:
        """What the patterns name is for who knows the model; here only that they are some."""
        seen: set[str] = set()
        for pattern in self.patterns:
            if not pattern.value.strip():
                self._report("E811", "a pattern of `freeze` is empty", pattern.span)
            elif pattern.value in seen:
                self._report("E811", f"`{pattern.value}` stands twice in `freeze`", pattern.span)
            seen.add(pattern.value)

    def _schedule(self) -> tuple[str, Arguments]:
        found = self.found.get("schedule")
        arguments: Arguments = {}
        if found is None or not isinstance(found.value, ast.ScheduleUse):
            return "", arguments
        use = found.value
        try:
            schedule = self.library.schedule(use.name, use.span)
        except DiagnosticError as error:
            self.mistakes += error.diagnostics
            return use.name, arguments
        known = [parameter.name for parameter in schedule.parameters]
        for argument in use.arguments:
            if argument.name not in known:
                self.mistakes.append(unknown_parameter(schedule, argument.name, argument.span))
            elif argument.name in arguments:
                self._report("E202", f"`{argument.name}` is given twice", argument.span)
            else:
                try:
                    arguments[argument.name] = (evaluate_node(argument.value), argument.span)
                except DiagnosticError as error:
                    self.mistakes += error.diagnostics
        for name, (_, source, place) in self.arguments.items():
            if name not in known:
                self.mistakes.append(unknown_parameter(schedule, name, place))
                continue
            try:
                arguments[name] = (read_setting(source, len("schedule.") + len(name) + 1), place)
            except DiagnosticError as error:
                self.mistakes += error.diagnostics
        return use.name, arguments


_NOT_EXPRESSIONS = (ast.Batch, ast.Mesh, ast.ScheduleUse, ast.PrecisionUse, ast.Word, ast.Raw)

_EXAMPLES = {
    "model": 'for example `model "llama-tiny"`',
    "sequence": "for example `sequence 128`",
    "batch": "for example `batch 32 in microbatches of 2`",
    "mesh": "for example `mesh dp = 2, pp = 2`",
    "schedule": "for example `schedule zb_h1`",
    "precision": "for example `precision fp32`",
}


def _place(mistake: Diagnostic) -> tuple[str, int, int]:
    """The order in which the mistakes of a plan are told: as they stand in the text."""
    span = mistake.span
    return (span.source.name, span.line, span.column) if span is not None else ("", 0, 0)


def _near(batch: int, unit: int) -> str:
    """The batches next to ``batch`` that ``unit`` divides."""
    below, above = batch // unit * unit, (batch // unit + 1) * unit
    return f"{unit} divides {below} and {above}" if below else f"{unit} divides {above}"


def _read_value(key: str, text: str, source: Source, span: Span) -> ast.EntryValue:
    """The value of ``--set KEY=TEXT`` as the plan's own text would have given it."""
    if key in ("sequence", "batch", "microbatch", "evaluation", "zero", *AXES):
        return parse_setting(source, len(key) + 1)
    if key == "schedule":
        return parse_schedule_use(source, len(key) + 1)
    if key == "precision":
        return parse_precision_use(source, len(key) + 1)
    word = text.strip()
    if key == "model" or (key == "layers" and word not in ("balanced", "even")):
        return ast.Text(word.removeprefix('"').removesuffix('"'), span)
    return ast.Word(word, span)
