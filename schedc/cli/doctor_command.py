"""``schedc doctor``: what is here of what schedc can use."""

from __future__ import annotations

import json
import platform

import click

from schedc import __version__
from schedc.cli.options import json_option
from schedc.driver.doctor import Finding, examine


@click.command("doctor")
@json_option
def command(as_json: bool) -> None:
    """Report torch, GPUs, libraries and the machine, and what each absence costs.

    Exit status 0, whatever is missing.
    """
    findings = examine()
    if as_json:
        fields = {
            f.name: {"found": f.found, "detail": f.detail, "cost": f.cost or None} for f in findings
        }
        click.echo(json.dumps({"schedc": __version__, **fields}, indent=1, ensure_ascii=False))
        return
    click.echo(f"schedc {__version__} on {platform.system()} {platform.machine()}")
    names = max(len(finding.name) for finding in findings)
    details = max((len(finding.detail) for finding in findings if finding.cost), default=0)
    for finding in findings:
        click.echo(_line(finding, names, details))


def _line(finding: Finding, names: int, details: int) -> str:
    mark = "+" if finding.found else "-"
    line = f"{mark} {finding.name:<{names}}  {finding.detail}"
    if finding.cost:
        line = f"{mark} {finding.name:<{names}}  {finding.detail:<{details}}  → {finding.cost}"
    return line
