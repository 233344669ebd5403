"""``schedc explain``: what an error code means and how to mend it."""

from __future__ import annotations

from difflib import get_close_matches

import click

from schedc.catalogue import CATALOGUE


@click.command("explain")
@click.argument("code", required=False)
def command(code: str | None) -> None:
    """Explain an error code such as E401; without one, list all codes."""
    if code is None:
        for known, page in sorted(CATALOGUE.items()):
            click.echo(f"{known}  {page.title}")
        return
    page = CATALOGUE.get(code.upper())
    if page is None:
        close = get_close_matches(code.upper(), CATALOGUE, n=1, cutoff=0.5)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise click.UsageError(f"there is no code {code!r}.{hint} `schedc explain` lists all.")
    click.echo(f"{code.upper()}: {page.title}\n\n{page.explanation.strip()}")
    if page.example:
        click.echo(f"\nExample:\n\n{page.example.rstrip()}")
