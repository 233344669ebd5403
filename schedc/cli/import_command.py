"""``schedc import``: a schedule of another system as a .sched file."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE.csv")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The file to write. [-]")
def command(file: Path, output: Path | None) -> None:
    """Turn a schedule CSV of torch.distributed.pipelining into a .sched file.

    Both of its forms are read, compute-only and with messages. The order is proved complete and
    free of deadlock, messages that are written out are proved to meet; then they are left out, for
    schedc derives them. Runs of operations become loops.
    """
    from schedc.driver.exchange import import_torch_csv

    text, schedule = import_torch_csv(file)
    if schedule.communicates:
        click.echo("its messages are right, and left out: schedc derives them", err=True)
    if schedule.derived:
        words = ", ".join(schedule.derived)
        click.echo(f"left out: {words}; a plan's ZeRO and replicas say them", err=True)
    write_text(text, output)


def write_text(text: str, output: Path | None) -> None:
    """``text`` to a file, or to standard output where none is named."""
    if output is None or str(output) == "-":
        click.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise click.UsageError(f"cannot write {output}: {error.strerror}") from error
    click.echo(f"written: {output}", err=True)
