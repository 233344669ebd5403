"""``schedc check``: proofs, figures and claims of schedules and plans."""

from __future__ import annotations

import json
import sys
from fractions import Fraction
from typing import TYPE_CHECKING

import click

from schedc.cli.main import wants_color
from schedc.cli.options import (
    color_option,
    cost_option,
    json_option,
    refuse_costs,
    set_option,
)
from schedc.diagnostics import Diagnostic, DiagnosticError
from schedc.driver.check import ScheduleReport, check_schedule, refuse_false_claims
from schedc.driver.target import Target, all_targets
from schedc.ir.cost import Costs
from schedc.sema.claims import ClaimResult

if TYPE_CHECKING:
    from rich.table import Table

    from schedc.driver.build import Build


@click.command("check")
@click.argument("target", metavar="FILE[:NAME]|NAME")
@set_option
@cost_option
@json_option
@color_option
def command(target: str, settings: dict[str, str], costs: Costs, as_json: bool, color: str) -> None:
    """Check all that a file defines, or one schedule or plan.

    A schedule is evaluated for P ranks and M microbatches (--set P=8 --set M=32; 4 and 8 by
    default), proved complete and free of deadlock, and simulated; its claims are decided. A plan
    is compiled as well: model, partition, programs and memory.
    """
    targets = all_targets(target)
    if len(targets) > 1 and settings:
        names = ", ".join(found.name for found in targets)
        raise click.UsageError(f"--set needs one schedule or plan: choose {target}:NAME of {names}")
    if any(found.is_plan for found in targets):
        refuse_costs(costs, "a plan")
    documents: list[dict[str, object]] = []
    mistakes: list[Diagnostic] = []
    for found in targets:
        try:
            _check(found, settings, costs, documents, None if as_json else color)
        except DiagnosticError as error:
            mistakes += error.diagnostics
    if as_json and documents:
        click.echo(json.dumps(documents[0] if len(targets) == 1 else documents, indent=1))
    if mistakes:
        raise DiagnosticError(mistakes)


def _check(
    target: Target,
    settings: dict[str, str],
    costs: Costs,
    documents: list[dict[str, object]],
    color: str | None,
) -> None:
    """Check one schedule or plan, add its document, and print it unless ``color`` is None.

    Raises DiagnosticError; what is known in spite of a false claim is added and printed before.
    """
    if target.is_plan:
        from schedc.driver.build import compile_plan

        build = compile_plan(target.library, target.name, settings)
        documents.append(plan_json(build))
        if color is not None:
            _print_plan(build, color)
        return
    report = check_schedule(target.library, target.name, settings, costs)
    documents.append(report.to_json())
    if color is not None:
        _print_schedule(report, color)
    refuse_false_claims(report)


def plan_json(build: Build) -> dict[str, object]:
    """What ``check --json`` prints of a plan: sizes, stages, and the figures of its prediction."""
    mesh = build.plan.mesh
    return {
        "plan": build.plan.name,
        "schedule": build.instance.title,
        "mesh": {"dp": mesh.dp, "pp": mesh.pp, "cp": mesh.cp, "tp": mesh.tp},
        "P": mesh.pp,
        "M": build.plan.microbatches,
        "S": build.plan.order.stages,
        "stages": [list(units) for units in build.stages],
        "instructions": [len(program.stream) for program in build.programs],
        **build.trace.figures,
        "notes": list(build.trace.notes),
        "deadlock_free": True,
        "checks": [{"text": c.text, "holds": c.holds, "reason": c.reason} for c in build.claims],
    }


def show(value: Fraction) -> str:
    """An exact number for people: whole, or rounded to four digits after the point."""
    return str(value.numerator) if value.denominator == 1 else f"{float(value):.4f}".rstrip("0")


def console_of(color: str):
    from rich.console import Console

    colored = wants_color(color, sys.stdout)
    return Console(
        force_terminal=colored, no_color=not colored, color_system="auto" if colored else None,
        highlight=False, soft_wrap=True,
    )  # fmt: skip


def table_of(*columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _print_schedule(report: ScheduleReport, color: str) -> None:
    console, found = console_of(color), report.figures
    order = report.timeline.order
    console.print(report.instance.title, style="bold", markup=False, end="")
    console.print(f"   P = {order.ranks}, M = {order.microbatches}, S = {order.stages}")
    table = table_of("rank", "stages", "operations", "busy", "bubble", "peak activations")
    for rank in range(order.ranks):
        stages = ", ".join(map(str, order.stages_of[rank]))
        table.add_row(
            str(rank),
            stages,
            str(len(order.tables[rank])),
            show(found.busy[rank]),
            show(found.bubble_of(rank)),
            show(found.peak_activations[rank]),
        )
    console.print(table)
    rate = f"{float(found.bubble_rate):.1%}"
    console.print(f"makespan {show(found.makespan)}, bubble {show(found.bubble)} ({rate})")
    console.print(f"{found.messages} messages; complete and free of deadlock: proved")
    _print_claims(report.claims, console)
    for note in report.instance.notes:
        console.print(f"note: {note}", markup=False)
    console.print()


def _print_claims(claims: tuple[ClaimResult, ...], console) -> None:
    words = {True: "[green]holds[/green]", False: "[red]FALSE[/red]", None: "not applicable"}
    for claim in claims:
        detail = claim.reason if claim.holds is None else claim.found
        console.print(f"check {words[claim.holds]}: ", end="")
        console.print(f"{claim.text}   ({detail})" if detail else claim.text, markup=False)


def _print_plan(build: Build, color: str) -> None:
    console, plan = console_of(color), build.plan
    figures = build.trace.figures
    console.print(plan.name, style="bold", end="   ")
    console.print(
        f"{build.instance.title} on mesh {plan.mesh}: {plan.mesh.size} ranks, "
        f"M = {plan.microbatches}",
        markup=False,
    )
    table = table_of("rank", "stages", "units", "instructions", "busy s", "peak MiB")
    table.columns[2].justify = "left"
    busy, peak = figures["busy"], figures["peak_bytes"]
    for rank, program in enumerate(build.programs):
        table.add_row(
            str(rank),
            ", ".join(str(stage) for stage, _ in program.stages),
            " ".join(program.units),
            str(len(program.stream)),
            f"{busy[rank]:.4f}",
            f"{peak[rank] / 2**20:.1f}",
        )
    console.print(table)
    console.print(
        f"step {figures['step_makespan']:.4f} s, compute {figures['makespan']:.4f} s, bubble "
        f"{figures['bubble_rate']:.1%}"
    )
    for note in build.trace.notes:
        console.print(f"note: {note}", markup=False)
    console.print("programs complete and free of deadlock: proved")
    _print_claims(build.claims, console)
    console.print()
