"""A ``schedule`` block checked and compiled to closures, once for all P, M and parameters.

Unknown and repeated names, missing parts and wrong numbers of arguments are all reported together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from schedc.diagnostics import Diagnostic, Label, Span
from schedc.sema import scope as names
from schedc.sema.body import Body
from schedc.sema.claims import Claim, compile_claim
from schedc.sema.expressions import Evaluate, compile_expression, compile_pattern
from schedc.sema.interpolation import compile_text
from schedc.sema.issue import refuse_large
from schedc.sema.order_body import compile_order
from schedc.sema.pattern import compile_pattern_body
from schedc.sema.policy import compile_policy
from schedc.sema.scope import Layout, Scope
from schedc.sema.statements import report_later
from schedc.sema.values import Frame, fault, show, truth, whole
from schedc.syntax import ast

BODIES = ("order", "policy", "pattern")
"""The ways to say an order, by their first words."""


@dataclass(frozen=True, eq=False)
class CompiledSchedule:
    """A schedule as closures over a frame."""

    source: ast.Schedule
    layout: Layout
    parameters: tuple[tuple[ast.Parameter, int, Evaluate], ...]
    prologue: tuple[Callable[[Frame], None], ...]
    rank_of: Evaluate
    stage_slot: int
    place_span: Span
    body: Body
    claims: tuple[Claim, ...]
    notes: tuple[Callable[[Frame], str], ...]


# ---- compiling ----------------------------------------------------------------------------------


class _Compiler:
    """Goes through the items of one schedule in the order they are written."""

    def __init__(self, schedule: ast.Schedule) -> None:
        self.schedule = schedule
        self.layout = Layout()
        self.scope = Scope(self.layout)
        self.prologue: list[Callable[[Frame], None]] = []
        self.claims: list[Claim] = []
        self.notes: list[Callable[[Frame], str]] = []
        self.place: tuple[int, Evaluate, Span] | None = None
        self.body: Body | None = None
        self.first: dict[str, Span] = {}

    def compile(self) -> CompiledSchedule:
        schedule, layout = self.schedule, self.layout
        parameters = self._parameters()
        layout.stages_known = not any(isinstance(item, ast.Stages) for item in schedule.items)
        for item in schedule.items:
            self._item(item)
        later = any(isinstance(item, ast.Reserved) for item in schedule.items)
        for part, found in (("place", self.place), ("order", self.body)):
            if found is None and not later:
                layout.report(
                    "E210",
                    f"schedule `{schedule.name}` has no `{part}`",
                    schedule.name_span,
                    {
                        "place": "say where stages live: `place stage s on rank s`",
                        "order": "say what a rank does: `order on rank r { … }`",
                    }[part],
                )
        layout.raise_mistakes()
        assert self.place is not None
        assert self.body is not None
        return CompiledSchedule(
            source=schedule,
            layout=layout,
            parameters=parameters,
            prologue=tuple(self.prologue),
            rank_of=self.place[1],
            stage_slot=self.place[0],
            place_span=self.place[2],
            body=self.body,
            claims=tuple(self.claims),
            notes=tuple(self.notes),
        )

    def _parameters(self) -> tuple[tuple[ast.Parameter, int, Evaluate], ...]:
        found: list[tuple[ast.Parameter, int, Evaluate]] = []
        seen: dict[str, Span] = {}
        self.layout.stages_known = False
        for parameter in self.schedule.parameters:
            if parameter.name in seen:
                self._repeated(
                    f"parameter `{parameter.name}`", parameter.span, seen[parameter.name]
                )
            seen[parameter.name] = parameter.span
            default = compile_expression(parameter.default, self.scope)
            found.append((parameter, self.scope.bind(parameter.name, parameter.span), default))
        return tuple(found)

    def _repeated(self, what: str, span: Span, first: Span) -> None:
        self.layout.diagnostics.append(
            Diagnostic("E202", f"{what} stands twice", span, (Label(first, "first here"),))
        )

    def _only(self, keyword: str, span: Span) -> None:
        if keyword in self.first:
            self._repeated(f"`{keyword}`", span, self.first[keyword])
        self.first.setdefault(keyword, span)

    def _only_body(self, keyword: str, span: Span) -> None:
        """The order is said in exactly one way."""
        self._only(keyword, span)
        for other in BODIES:
            if other != keyword and other in self.first:
                self.layout.diagnostics.append(
                    Diagnostic(
                        "E202",
                        f"the order is said twice, by `{other}` and by `{keyword}`",
                        span,
                        (Label(self.first[other], "first here"),),
                        help="a schedule has one of `order`, `policy` and `pattern`",
                    )
                )

    def _item(self, item: ast.ScheduleItem) -> None:
        scope = self.scope
        match item:
            case ast.Let():
                value = compile_expression(item.value, scope)
                store = compile_pattern(item.pattern, scope)
                self.prologue.append(lambda frame: store(frame, value(frame)))
            case ast.Stages():
                self._only("stages", item.span)
                self._stages(item)
                self.layout.stages_known = True
            case ast.Place():
                self._only("place", item.span)
                inner = scope.inner()
                slot = inner.bind(item.variable, item.span)
                self.place = (slot, compile_expression(item.rank, inner), item.rank.span)
            case ast.Require():
                self._require(item)
            case ast.Check():
                self.claims.append(compile_claim(item, scope))
            case ast.Note():
                self.notes.append(compile_text(item.message, scope))
            case ast.OrderBody():
                self._only_body("order", item.span)
                self.body = compile_order(item, scope)
            case ast.PolicyBody():
                self._only_body("policy", item.span)
                self.body = compile_policy(item, scope)
            case ast.PatternBody():
                self._only_body("pattern", item.span)
                self.body = compile_pattern_body(item, scope)
            case ast.Reserved():
                report_later(item, scope)
            case _:
                assert_never(item)

    def _stages(self, item: ast.Stages) -> None:
        count, span = compile_expression(item.count, self.scope), item.count.span

        def store(frame: Frame) -> None:
            stages = whole(count(frame), "the number of stages", span)
            if stages < 1:
                raise fault("E207", f"the number of stages is {show(stages)}; at least 1", span)
            refuse_large(stages, whole(frame[names.M], "M", span), span)
            frame[names.S] = stages

        self.prologue.append(store)

    def _require(self, item: ast.Require) -> None:
        condition = compile_expression(item.condition, self.scope)
        message, span = compile_text(item.message, self.scope), item.condition.span

        def demand(frame: Frame) -> None:
            if not truth(condition(frame), "what `require` demands", span):
                raise fault("E211", message(frame), span)

        self.prologue.append(demand)


def compile_schedule(schedule: ast.Schedule) -> CompiledSchedule:
    """Check the names and form of a schedule; raises all mistakes together."""
    try:
        return _Compiler(schedule).compile()
    except RecursionError:
        raise fault(
            "E109", f"schedule `{schedule.name}` is nested too deeply", schedule.name_span
        ) from None
