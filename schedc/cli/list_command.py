"""``schedc list``: the bundled schedules and plans."""

from __future__ import annotations

import json

import click

from schedc.cli.options import json_option
from schedc.sema.library import bundled
from schedc.syntax import ast
from schedc.syntax.printer import print_expression


@click.command("list")
@json_option
def command(as_json: bool) -> None:
    """List the bundled schedules and plans, each with its first line of comment."""
    library = bundled()
    rows = [
        {"kind": kind, "name": name, "use": _use(item), "about": _about(item)}
        for kind, names in (("schedule", library.schedules), ("plan", library.plans))
        for name in names
        if (item := library.find(name)) is not None
    ]
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    width = max(len(row["use"]) for row in rows)
    for row in rows:
        click.echo(f"{row['kind']:<9} {row['use']:<{width}}  {row['about']}".rstrip())


def _use(item: ast.Schedule | ast.Plan) -> str:
    """How a plan names it: ``interleaved(V = 2)``."""
    if isinstance(item, ast.Plan) or not item.parameters:
        return item.name
    parameters = (f"{p.name} = {print_expression(p.default)}" for p in item.parameters)
    return f"{item.name}({', '.join(parameters)})"


def _about(item: ast.Schedule | ast.Plan) -> str:
    first = item.span.source.text.splitlines()[0]
    return first.lstrip("# ").strip() if first.startswith("#") else ""
