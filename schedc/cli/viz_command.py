"""``schedc viz``: bubble diagrams of a schedule, a plan, a compiled folder or a run."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from schedc.cli.options import (
    color_option,
    cost_option,
    refuse_costs,
    set_option,
    terminal_width,
)
from schedc.diagnostics import Diagnostic, DiagnosticError
from schedc.ir.cost import Costs
from schedc.ir.trace import Trace


@click.command("viz")
@click.argument("target", metavar="FILE[:NAME]|NAME|FOLDER|TIMELINE.json")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file to write: .svg .png .json (the layout) .txt. [the terminal]",
)
@click.option(
    "--width", type=click.IntRange(min=40), help="Pixels of a picture, columns of a text."
)
@click.option("--critical-path", is_flag=True, help="Outline what the makespan hangs on.")
@set_option
@cost_option
@color_option
def command(
    target: str,
    output: Path | None,
    width: int | None,
    critical_path: bool,
    settings: dict[str, str],
    costs: Costs,
    color: str,
) -> None:
    """Draw a bubble diagram, in the terminal or to a file."""
    trace, path = _trace_of(target, settings, costs)
    if critical_path and path is None:
        raise click.UsageError("--critical-path is known of schedules only")
    if critical_path and (output is None or output.suffix.lower() == ".txt"):
        raise click.UsageError("--critical-path is drawn in pictures: add -o FILE.svg")
    if output is None:
        from schedc.cli.main import wants_color
        from schedc.visualize.terminal import to_terminal

        colored = wants_color(color, sys.stdout)
        click.echo(to_terminal(trace, width or terminal_width(), colored), color=colored)
        return
    from schedc.visualize.write import write_chart

    try:
        write_chart(
            trace,
            output,
            width=width or 1200,
            columns=width or 100,
            critical=path if critical_path else None,
        )
    except (ValueError, RuntimeError) as error:
        raise click.UsageError(str(error)) from error
    except OSError as error:
        raise click.UsageError(f"cannot write {output}: {error.strerror}") from error
    click.echo(f"written to {output}")


def _trace_of(
    target: str, settings: dict[str, str], costs: Costs
) -> tuple[Trace, tuple[tuple[str, int, int], ...] | None]:
    """The trace that ``target`` names, and its critical path where it is a schedule."""
    path = Path(target)
    if path.is_dir() or path.suffix == ".json":
        if settings:
            raise click.UsageError("--set goes with a schedule or a plan")
        refuse_costs(costs, "a timeline")
        return read_trace(path / "timeline.json" if path.is_dir() else path), None
    from schedc.driver.target import choose_target

    found = choose_target(target)
    if found.is_plan:
        refuse_costs(costs, "a plan")
        from schedc.driver.build import compile_plan

        return compile_plan(found.library, found.name, settings).trace, None
    from schedc.driver.check import check_schedule

    report = check_schedule(found.library, found.name, settings, costs)
    return report.trace(), report.critical_path()


def read_trace(path: Path) -> Trace:
    """A trace from a file, or a diagnostic that says why it is none."""
    from schedc.visualize.layout import layout

    try:
        trace = Trace.from_json(path.read_text(encoding="utf-8"))
        layout(trace)  # refuses impossible times and ranks
        return trace
    except (OSError, ValueError) as error:
        raise DiagnosticError(
            Diagnostic(
                "E908",
                f"{path} cannot be read as a timeline: {error}",
                help="name a compiled folder, its timeline.json, or what a run wrote with "
                "--trace-out",
            )
        ) from error
