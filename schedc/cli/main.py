"""``schedc``: one command, one file a subcommand. Bodies are imported when they are called."""

from __future__ import annotations

import importlib
import io
import os
import platform
import shlex
import sys
from collections.abc import Sequence

import click

from schedc import __version__
from schedc.diagnostics import DiagnosticError, render

COMMANDS = {
    "check": "Check schedules and plans: proofs, figures and claims.",
    "compile": "Compile a plan to a folder of programs that torchrun can run.",
    "simulate": "Predict a schedule or a compiled folder, the latter from measured times.",
    "viz": "Draw a bubble diagram of a schedule, a plan, a compiled folder or a run.",
    "diff": "Compare two schedules: figures, and where their orders part.",
    "import": "Turn a schedule CSV of torch.distributed.pipelining into a .sched file.",
    "export": "Write a schedule as a CSV that torch.distributed.pipelining loads.",
    "fmt": "Format .sched files: spacing, indentation, alignment; never the meaning.",
    "list": "List the bundled schedules and plans.",
    "explain": "Explain an error code.",
    "doctor": "Report what is here of what schedc can use, and what each absence costs.",
}


class _Commands(click.Group):
    """Loads a subcommand's module only when it is used: ``--help`` stays instant."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"schedc.cli.{cmd_name}_command")
        return module.command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            close = get_close_matches(args[0], list(COMMANDS), n=1)
            hint = f" Did you mean '{close[0]}'?" if close else ""
            raise click.UsageError(f"{error.message.rstrip('.')}.{hint}", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="schedc")
def schedc() -> None:
    """A declarative pipeline-schedule compiler: a schedule as text, proved before it runs."""


def wants_color(choice: str, stream: object) -> bool:
    """``--color`` against NO_COLOR and whether the output is a terminal."""
    if choice != "auto":
        return choice == "always"
    return not os.environ.get("NO_COLOR") and bool(getattr(stream, "isatty", lambda: False)())


def main(arguments: Sequence[str] | None = None) -> None:
    """Exit status: 0 fine, 1 diagnostics, 2 usage, 3 a bug of ours."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal without the characters of a chart
    chosen: dict[str, str] = {}
    try:
        schedc.main(arguments, prog_name="schedc", standalone_mode=False, obj=chosen)
        sys.stdout.flush()
    except DiagnosticError as error:
        color = wants_color(chosen.get("color", "auto"), sys.stderr)
        click.echo(render(error.diagnostics, color), err=True, color=color)
        sys.exit(1)
    except click.exceptions.Abort:
        click.echo("interrupted", err=True)
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads the rest
        sys.exit(1)
    except Exception as error:
        if os.environ.get("SCHEDC_TRACEBACK"):
            raise
        click.echo(
            f"schedc {__version__} has a bug: {type(error).__name__}: {error}\n"
            f"(Python {platform.python_version()}). To report it, run again with "
            f"SCHEDC_TRACEBACK=1 and send the output with this command line:\n  "
            + shlex.join(sys.argv),
            err=True,
        )
        sys.exit(3)
