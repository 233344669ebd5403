"""``schedc check``: proofs, figures and claims of schedules and plans."""

from __future__ import annotations

import json
import sys
from fractions import Fraction
from typing import TYPE_CHECKING

import click

from schedc.cli.main import wants_color
from schedc.cli.options import color_option, cost_option, json_option, set_option
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
    documents: list[dict[str, object]] = []
    reports: list[ScheduleReport] = []
    for found in targets:
        if found.is_plan:
            documents.append(_check_plan(found, settings, as_json, color))
        else:
            report = check_schedule(found.library, found.name, settings, costs)
            reports.append(report)
            documents.append(report.to_json())
            if not as_json:
                _print_schedule(report, color)
    if as_json:
        click.echo(json.dumps(documents[0] if len(documents) == 1 else documents, indent=1))
    refuse_false_claims(tuple(reports))


def _check_plan(
    target: Target, settings: dict[str, str], as_json: bool, color: str
) -> dict[str, object]:
    from schedc.driver.build import compile_plan

    build = compile_plan(target.library, target.name, settings)
    if not as_json:
        _print_plan(build, color)
    return plan_json(build)


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


def _console(color: str):
    from rich.console import Console

    colored = wants_color(color, sys.stdout)
    return Console(
        force_terminal=colored, no_color=not colored, color_system="auto" if colored else None,
        highlight=False, soft_wrap=True,
    )  # fmt: skip


def _table(*columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _print_schedule(report: ScheduleReport, color: str) -> None:
    console, found = _console(color), report.figures
    order = report.timeline.order
    console.print(
        f"[bold]{report.instance.title}[/bold]   P = {order.ranks}, M = {order.microbatches}, "
        f"S = {order.stages}"
    )
    table = _table("rank", "stages", "operations", "busy", "bubble", "peak activations")
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
    console, plan = _console(color), build.plan
    figures = build.trace.figures
    console.print(
        f"[bold]{plan.name}[/bold]   {build.instance.title} on mesh {plan.mesh}: "
        f"{plan.mesh.size} ranks, M = {plan.microbatches}"
    )
    table = _table("rank", "stages", "units", "instructions", "busy s", "peak MiB")
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
