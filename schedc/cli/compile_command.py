"""``schedc compile``: a plan to a folder of programs, or any level of the compiler as text."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

import schedc
from schedc.cli.options import cost_option, refuse_costs, set_option
from schedc.ir.cost import Costs

LEVELS = ("source", "ast", "plan", "order", "program", "graph", "timeline")


@click.command("compile")
@click.argument("target", metavar="FILE[:NAME]|NAME")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="The folder to write. [build/NAME]"
)
@click.option(
    "--emit", type=click.Choice(LEVELS), help="Print a level of the compiler; write nothing."
)
@set_option
@cost_option
def command(
    target: str, output: Path | None, emit: str | None, settings: dict[str, str], costs: Costs
) -> None:
    """Compile a plan to a folder that torchrun runs; or print one level of the way there.

    --cost prices a bare schedule whose order depends on costs: a policy or a pattern.
    """
    from schedc.driver.target import choose_target

    chosen = choose_target(target)
    if chosen.is_plan:
        refuse_costs(costs, "a plan")

    if emit is not None:
        if output is not None:
            raise click.UsageError("--emit prints to the terminal; it does not go with -o")
        from schedc.driver.emit import emit_level

        click.echo(emit_level(chosen, emit, settings, costs), nl=False)
        return
    from schedc.driver.emit import require_plan

    found = require_plan(chosen)
    from schedc.driver.build import compile_plan
    from schedc.program.artifact import write_artifact

    build = compile_plan(found.library, found.name, settings)
    folder = output if output is not None else Path("build") / build.plan.name
    try:
        write_artifact(build.artifact, folder)
    except OSError as error:
        raise click.UsageError(f"cannot write {folder}: {error.strerror}") from error
    instructions = sum(len(program.stream) for program in build.programs)
    click.echo(
        f"{folder}: {len(build.programs)} programs, {instructions} instructions, "
        f"{len(build.model.graphs)} graphs, mesh {build.plan.mesh}"
    )
    torchrun = f"torchrun --nproc-per-node {build.plan.mesh.size} {_executor()}"
    click.echo(f"run it: {torchrun} {shlex.quote(str(folder))} --data TEXT")


def _executor() -> str:
    """How to start the runtime from here: by its file in a checkout, by its module elsewhere."""
    here, ours = Path("runtime/exec.py"), Path(schedc.__file__).parent / "runtime" / "exec.py"
    return str(here) if here.resolve() == ours.resolve() else "-m schedc.runtime.exec"
