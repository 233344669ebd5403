"""``schedc diff``: two schedules side by side."""

from __future__ import annotations

import json
import sys
from fractions import Fraction

import click

from schedc.cli.check_command import console_of, show, table_of
from schedc.cli.options import color_option, cost_option, json_option, set_option
from schedc.ir.cost import Costs


@click.command("diff")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@set_option
@cost_option
@json_option
@color_option
def command(
    first: str, second: str, settings: dict[str, str], costs: Costs, as_json: bool, color: str
) -> None:
    """Compare two schedules at the same P, M and costs; exit 0 where their orders are equal.

    Else exit 1. A and B are bundled names, .sched files (FILE:NAME), or CSV files of
    torch.distributed.pipelining.
    """
    from schedc.driver.compare import compare

    found = compare(first, second, settings, costs)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=1))
        sys.exit(0 if found.equal else 1)
    console = console_of(color)
    one, other = found.first.figures, found.second.figures
    order = found.first.order
    console.print(f"P = {order.ranks}, M = {order.microbatches}")
    table = table_of("", found.first.title, found.second.title, "difference")
    rows: list[tuple[str, Fraction, Fraction]] = [
        ("makespan", one.makespan, other.makespan),
        ("longest stage", one.longest_stage, other.longest_stage),
        ("bubble", one.bubble, other.bubble),
        ("peak activations", max(one.peak_activations), max(other.peak_activations)),
        ("messages", Fraction(one.messages), Fraction(other.messages)),
    ]
    for name, mine, theirs in rows:
        change = theirs - mine
        sign = "+" if change > 0 else ""
        table.add_row(name, show(mine), show(theirs), f"{sign}{show(change)}" if change else "=")
    console.print(table)
    if not found.placements:
        console.print("stages are on different ranks")
    for parting in found.partings:
        console.print(
            f"rank {parting.rank} parts at slot {parting.slot}: {parting.first} against "
            f"{parting.second}",
            markup=False,
        )
    if found.equal:
        console.print("the orders are equal")
    sys.exit(0 if found.equal else 1)
