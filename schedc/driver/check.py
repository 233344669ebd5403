"""Checking a schedule: evaluated, proved, simulated, its claims decided. Loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from schedc.diagnostics import Diagnostic, DiagnosticError, Source
from schedc.ir.cost import Costs, StageCosts
from schedc.ir.order import Op
from schedc.ir.timeline import Figures, Timeline
from schedc.ir.trace import Trace
from schedc.ir.verify import verify_order
from schedc.passes.pipeline import compile_programs
from schedc.program.abstract import abstract_model
from schedc.program.program import Programs
from schedc.sema.claims import ClaimResult, claims_to_diagnostics, evaluate_claims
from schedc.sema.library import Library
from schedc.sema.schedule import Instance, instantiate, read_setting
from schedc.simulate.critical import critical_path
from schedc.simulate.figures import figures, figures_json
from schedc.simulate.order import simulate_order
from schedc.simulate.trace import trace_of

DEFAULT_P = 4
DEFAULT_M = 8


@dataclass(frozen=True, eq=False)
class ScheduleReport:
    """All that is known of a schedule for one P, M, choice of parameters and costs."""

    instance: Instance
    costs: StageCosts
    timeline: Timeline
    figures: Figures
    claims: tuple[ClaimResult, ...]

    def to_json(self) -> dict[str, object]:
        """What ``schedc check --json`` prints."""
        return {
            **figures_json(self.timeline, self.figures, self.costs),
            "deadlock_free": True,
            "checks": [
                {"text": claim.text, "holds": claim.holds, "reason": claim.reason}
                for claim in self.claims
            ],
            "notes": list(self.instance.notes),
        }

    def trace(self) -> Trace:
        return trace_of(self.timeline, self.figures, self.costs, self.instance.title)

    def critical_path(self) -> tuple[tuple[str, int, int], ...]:
        """The operations that the makespan hangs on, as (letter, stage, microbatch)."""
        tables = self.timeline.order.tables
        path = critical_path(self.timeline, self.costs)
        rows = [tables[rank][row].tolist() for rank, row in path]
        return tuple((Op(op).name, stage, microbatch) for op, stage, microbatch, _ in rows)


def evaluate_schedule(
    library: Library, name: str, settings: Mapping[str, str], costs: Costs | None = None
) -> Instance:
    """The schedule ``name``; ``settings`` may give ``P``, ``M`` and its parameters.

    ``costs`` are what an order that depends on them is made for.
    """
    sizes = {"P": DEFAULT_P, "M": DEFAULT_M}
    for letter in sizes:
        if letter in settings:
            sizes[letter] = _size(letter, settings[letter])
    if "S" in settings:
        raise DiagnosticError(
            Diagnostic("E207", "S is derived: the schedule's `stages` line says how many there are")
        )
    arguments = {key: value for key, value in settings.items() if key not in sizes}
    return instantiate(library, name, sizes["P"], sizes["M"], arguments, costs)


def _size(letter: str, text: str) -> int:
    value = read_setting(Source("--set", f"{letter}={text}"), len(letter) + 1)
    if isinstance(value, bool) or not isinstance(value, int):
        raise DiagnosticError(Diagnostic("E207", f"{letter} must be a whole number, not {text}"))
    return value


def check_schedule(
    library: Library, name: str, settings: Mapping[str, str], costs: Costs
) -> ScheduleReport:
    """Evaluate, verify and simulate a schedule, and prove its messages free of deadlock.

    False claims do not raise: see :meth:`ScheduleReport.claims` and :func:`refuse_false_claims`.
    """
    instance = evaluate_schedule(library, name, settings, costs)
    order = instance.order
    verify_order(order)
    stage_costs = costs.of_stages(order.ranks, order.stages)
    timeline = simulate_order(order, stage_costs)
    abstract_programs(timeline)
    found = figures(timeline, stage_costs)
    claims = evaluate_claims(instance, found, stage_costs)
    return ScheduleReport(instance, stage_costs, timeline, found, claims)


def abstract_programs(timeline: Timeline) -> Programs:
    """The verified programs of a bare schedule, for a model without numbers.

    Where ``timeline`` has operations that take no time, or slots of two, they are those for equal
    costs, one operation after another.
    """
    order = timeline.order.one_by_one()
    if order is not timeline.order or any(
        (e == s).any() for s, e in zip(timeline.start, timeline.end, strict=True)
    ):
        timeline = simulate_order(order, Costs().of_stages(order.ranks, order.stages))
    model, partition = abstract_model(order.stages)
    return compile_programs(timeline, model, partition)


def refuse_false_claims(report: ScheduleReport) -> None:
    """Raises DiagnosticError where a claim of ``report`` is false."""
    if false := claims_to_diagnostics(report.claims):
        raise DiagnosticError(false)
