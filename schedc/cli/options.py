"""Options that several subcommands share, and how their values are read."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from difflib import get_close_matches
from fractions import Fraction
from typing import TypeVar

import click

from schedc.ir.cost import Costs

F = TypeVar("F", bound=Callable[..., object])

COST_NAMES = ("F", "B", "I", "W", "comm", "mem_I", "overlap")
NUMBER = re.compile(r"\d{1,50}(\.\d{1,50})?(/\d{1,50})?", re.ASCII)


def set_option(function: F) -> F:
    return click.option(
        "--set",
        "settings",
        multiple=True,
        metavar="NAME=VALUE",
        callback=lambda _context, _parameter, values: read_settings(values),
        help="Set P, M or a parameter of a schedule, or a key of a plan. Repeatable.",
    )(function)


def cost_option(function: F) -> F:
    return click.option(
        "--cost",
        "costs",
        default="",
        metavar="F=1,I=1,W=1,comm=0",
        callback=lambda _context, _parameter, value: read_costs(value),
        help="Costs per microbatch for 1/P of the model; B=2 stands for I=1,W=1.",
    )(function)


def _remember_color(context: click.Context, _parameter: click.Parameter, value: str) -> str:
    """Diagnostics are printed by ``main``, which has to know the choice too."""
    context.ensure_object(dict)["color"] = value
    return value


def color_option(function: F) -> F:
    return click.option(
        "--color",
        type=click.Choice(["auto", "always", "never"]),
        default="auto",
        callback=_remember_color,
        help="Colour the output. NO_COLOR is respected.",
    )(function)


def json_option(function: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def read_settings(values: Iterable[str]) -> dict[str, str]:
    """``name=value`` pairs; a name given twice is an error."""
    settings: dict[str, str] = {}
    for value in values:
        name, equals, text = (part.strip() for part in value.partition("="))
        if not equals or not name or not text:
            raise click.BadParameter(f"{value!r} is not NAME=VALUE", param_hint="--set")
        if name in settings:
            raise click.BadParameter(f"{name!r} is set twice", param_hint="--set")
        settings[name] = text
    return settings


def read_costs(text: str) -> Costs:
    """Costs from ``F=1,B=2,comm=0.1``; numbers are exact, also decimal ones."""
    given: dict[str, Fraction] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, number = (piece.strip() for piece in part.partition("="))
        if name not in COST_NAMES:
            close = get_close_matches(name, COST_NAMES, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            known = ", ".join(COST_NAMES)
            raise click.BadParameter(
                f"no cost {name!r} (there are {known}){hint}", param_hint="--cost"
            )
        if name in given:
            raise click.BadParameter(f"{name!r} is given twice", param_hint="--cost")
        if not NUMBER.fullmatch(number) or ("/" in number and int(number.partition("/")[2]) == 0):
            raise click.BadParameter(
                f"{part!r}: a cost is a number, 0 or more, such as 2, 0.5 or 1/3",
                param_hint="--cost",
            )
        whole, _, divisor = number.partition("/")
        given[name] = Fraction(whole) / (Fraction(divisor) if divisor else 1)
    if "B" in given:
        if "I" in given or "W" in given:
            raise click.BadParameter("give B, or I and W, not both", param_hint="--cost")
        given["I"] = given["W"] = given.pop("B") / 2
    if given.get("mem_I", Fraction(0)) > 1:
        raise click.BadParameter("mem_I is a share: from 0 to 1", param_hint="--cost")
    if given.get("overlap", Fraction(1)) > 1:
        raise click.BadParameter(
            "overlap is a share of what two operations cost one after another: from 0 to 1",
            param_hint="--cost",
        )
    return replace(Costs(), **given)


def refuse_costs(costs: Costs, what: str) -> None:
    """Raises where costs were given for what has times of its own."""
    if costs != Costs():
        raise click.UsageError(f"--cost prices a bare schedule; {what} has times of its own")


def terminal_width() -> int:
    """Columns of the terminal, at least the 40 a chart needs; 100 where there is none."""
    return max(40, shutil.get_terminal_size((100, 24)).columns)
