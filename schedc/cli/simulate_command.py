"""``schedc simulate``: predict a schedule, or a compiled folder from measured times."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from schedc.cli.options import (
    color_option,
    cost_option,
    json_option,
    refuse_costs,
    set_option,
    terminal_width,
)
from schedc.ir.cost import Costs
from schedc.ir.trace import Trace


@click.command("simulate")
@click.argument("target", metavar="FILE[:NAME]|NAME|FOLDER")
@click.option(
    "--times",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Measured times of a compiled folder (a run's --times-out).",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Where to write the timeline. [FOLDER/timeline.json]",
)
@set_option
@cost_option
@json_option
@color_option
def command(
    target: str,
    times: Path | None,
    output: Path | None,
    settings: dict[str, str],
    costs: Costs,
    as_json: bool,
    color: str,
) -> None:
    """Predict: when each operation starts and ends, how idle ranks are, what memory they need.

    For a compiled folder the prediction replaces its timeline.json; its programs stay as they are.
    """
    if Path(target).is_dir():
        if settings:
            raise click.UsageError("--set does not go with a compiled folder: compile again")
        refuse_costs(costs, "a compiled folder")
        trace = _simulate_folder(Path(target), times)
        output = output or Path(target) / "timeline.json"
    else:
        if times is not None:
            raise click.UsageError("--times goes with a compiled folder")
        trace = _simulate_target(target, settings, costs)
    if output is not None:
        try:
            output.write_text(trace.to_json(), encoding="utf-8")
        except OSError as error:
            raise click.UsageError(f"cannot write {output}: {error.strerror}") from error
    if as_json:
        click.echo(json.dumps(trace.figures, indent=1))
        return
    from schedc.cli.main import wants_color
    from schedc.visualize.terminal import to_terminal

    colored = wants_color(color, sys.stdout)
    click.echo(to_terminal(trace, terminal_width(), colored), color=colored)
    if output is not None:
        click.echo(f"timeline written to {output}")


def _simulate_folder(folder: Path, times: Path | None) -> Trace:
    from schedc.cost.estimate import nominal_times, read_times
    from schedc.driver.build import predict
    from schedc.program.artifact import load_artifact
    from schedc.program.verify import verify_programs

    artifact = load_artifact(folder)
    verify_programs(artifact.programs, artifact.model, artifact.manifest.mesh.dp)
    manifest = artifact.manifest
    found = read_times(times, manifest) if times is not None else nominal_times(artifact.model)
    return predict(manifest, artifact.programs, found)


def _simulate_target(target: str, settings: dict[str, str], costs: Costs) -> Trace:
    from schedc.driver.target import choose_target

    found = choose_target(target)
    if found.is_plan:
        refuse_costs(costs, "a plan")
        from schedc.driver.build import compile_plan

        return compile_plan(found.library, found.name, settings).trace
    from schedc.driver.check import check_schedule

    return check_schedule(found.library, found.name, settings, costs).trace()
