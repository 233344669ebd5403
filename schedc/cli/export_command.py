"""``schedc export``: a schedule in the form of another system."""

from __future__ import annotations

from pathlib import Path

import click

from schedc.cli.import_command import write_text
from schedc.cli.options import cost_option, set_option
from schedc.ir.cost import Costs


@click.command("export")
@click.argument("target", metavar="FILE[:NAME]|NAME")
@click.option(
    "--to", "form", type=click.Choice(["torch-csv"]), required=True, help="The form to write."
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The file to write. [-]")
@click.option("--messages", is_flag=True, help="Write sends and receives too (compute_comms).")
@set_option
@cost_option
def command(
    target: str,
    form: str,
    output: Path | None,
    messages: bool,
    settings: dict[str, str],
    costs: Costs,
) -> None:
    """Write a schedule as a CSV that torch.distributed.pipelining loads.

    Load it with `_PipelineScheduleRuntime._load_csv(FILE, format="compute_only")`, or
    "compute_comms" with --messages.
    """
    from schedc.diagnostics import Diagnostic, DiagnosticError
    from schedc.driver.exchange import export_torch_csv
    from schedc.driver.target import choose_target

    chosen = choose_target(target)
    if chosen.is_plan:
        raise DiagnosticError(
            Diagnostic("E215", f"`{chosen.name}` is a plan, not a schedule; name its schedule")
        )
    text, _ = export_torch_csv(chosen.library, chosen.name, settings, costs, messages)
    write_text(text, output)
