"""Which units make up which stage: ``balanced``, ``even``, or a layout written out."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

from schedc.diagnostics import Diagnostic, DiagnosticError, Span
from schedc.program.signature import Model

Stages = tuple[tuple[str, ...], ...]

TOKEN = re.compile(r"\s*(?:(?P<kind>[EHt])(?:\s*\*\s*(?P<count>\d+))?)")


def unit_costs(model: Model) -> dict[str, int]:
    """FLOPs of each unit's F, I and W for one microbatch."""
    return {
        unit.name: sum(model.graphs[f"{unit.graphs}.{role}"].flops for role in "FIW")
        for unit in model.units
    }


def partition(model: Model, stages: int, layout: str, span: Span | None = None) -> Stages:
    """The names of the units of each stage of ``model``; see :func:`assign_layers`."""
    costs = unit_costs(model)
    return assign_layers(tuple(costs), tuple(costs.values()), stages, layout, span)


def assign_layers(
    units: Sequence[str],
    costs: Sequence[int],
    stages: int,
    layout: str = "balanced",
    span: Span | None = None,
) -> Stages:
    """Contiguous, non-empty runs of ``units``, one for each of ``stages``; each unit exactly once.

    ``units`` are the embedding, the layers and the head; ``costs`` their FLOPs. ``balanced`` makes
    the costliest stage as cheap as can be, then the sum of squares as small as can be, then late
    stages as long as can be. ``even`` gives every stage as many layers as the next, or one more
    to the first ones. Otherwise ``layout`` is written out: ``"E t*3 | ttt | t H"``.

    Raises :class:`DiagnosticError`, pointing at ``span``: E801 for layers left out or too many,
    E802 for empty stages, E814 for another number of stages, E804 for what is no layout.
    """
    if layout in ("balanced", "even"):
        if stages > len(units):
            message = (
                f"{stages} stages, but only {len(units)} units to fill them: the embedding, "
                f"{len(units) - 2} layers and the head"
            )
            raise DiagnosticError(Diagnostic("E802", message, span))
        cut = _balanced if layout == "balanced" else _even
        cuts = cut(list(costs), stages)
    else:
        cuts = _written(layout, len(units) - 2, stages, span)
    return tuple(tuple(units[a:b]) for a, b in pairwise(cuts))


def _balanced(costs: list[int], stages: int) -> list[int]:
    """Where stages begin, and the end, by two dynamic programs over (stages, units)."""
    sums = [0, *accumulate(costs)]
    limit, _ = _best(sums, stages, max, None)
    return _best(sums, stages, lambda before, cost: before + cost * cost, limit)[1]


def _best(
    sums: list[int], stages: int, join: Callable[[int, int], int], limit: int | None
) -> tuple[int, list[int]]:
    """The least joined cost of cutting the units into ``stages`` runs, and the cuts.

    No run costs more than ``limit``. Of equal choices the longer last run wins.
    """
    rows: list[dict[int, tuple[int, int]]] = [{0: (0, 0)}]  # by end: joined cost, last start
    for stage in range(1, stages + 1):
        row: dict[int, tuple[int, int]] = {}
        for end in range(stage, len(sums) - (stages - stage)):
            choices = [
                (join(before, sums[end] - sums[start]), start)
                for start, (before, _) in rows[-1].items()
                if start < end and (limit is None or sums[end] - sums[start] <= limit)
            ]
            if choices:
                row[end] = min(choices)
        rows.append(row)
    cuts = [len(sums) - 1]
    for row in reversed(rows[1:]):
        cuts.append(row[cuts[-1]][1])
    return rows[-1][len(sums) - 1][0], cuts[::-1]


def _even(costs: list[int], stages: int) -> list[int]:
    """Cuts that spread the layers evenly. A stage for want of layers is the head, then also the
    embedding, alone."""
    layers = len(costs) - 2
    spare = max(0, stages - layers)  # stages without layers: the head's, then the embedding's
    filled = stages - spare
    counts = [layers // filled + (i < layers % filled) for i in range(filled)] if filled else []
    if spare == 1:
        counts = [*counts, 0]
    elif spare == 2:
        counts = [0, *counts, 0]
    cuts = [0, *(1 + done for done in accumulate(counts))]
    cuts[-1] = len(costs)
    return cuts


def _written(layout: str, layers: int, stages: int, span: Span | None) -> list[int]:
    """The cuts that a layout string says."""
    parts = [_part(part, span) for part in layout.split("|")]
    if len(parts) != stages:
        count = f"{len(parts)} stage" + "s" * (len(parts) != 1)
        message = f"the layout has {count}, the schedule {stages}"
        raise DiagnosticError(Diagnostic("E814", message, span))
    for i, part in enumerate(parts):
        if not part:
            message = f"stage {i} of the layout is empty"
            raise DiagnosticError(Diagnostic("E802", message, span))
    whole = "".join(parts)
    for letter, name in (("E", "embedding"), ("H", "head")):
        if (count := whole.count(letter)) != 1:
            message = f"the layout names the {name} {count} times, the model has 1"
            raise DiagnosticError(Diagnostic("E801", message, span))
    if (count := whole.count("t")) != layers:
        message = f"the layout has {count} layers, the model {layers}"
        raise DiagnosticError(Diagnostic("E801", message, span))
    if whole[0] != "E" or whole[-1] != "H":
        message = "a layout begins with the embedding E and ends with the head H"
        raise DiagnosticError(Diagnostic("E804", message, span))
    return [0, *accumulate(len(part) for part in parts)]


def _part(text: str, span: Span | None) -> str:
    """One stage of a layout, spelled out: ``E t*3`` is ``Ettt``."""
    letters, position = "", 0
    while position < len(text.rstrip()):
        match = TOKEN.match(text, position)
        if match is None or not _is_sound(match["kind"], match["count"]):
            word = text[position:].split()[0]
            raise DiagnosticError(
                Diagnostic(
                    "E804",
                    f'"{word}" is no part of a layout',
                    span,
                    help="E, H, t, t*N and | make a layout, as in E t*3 | t*5 H",
                )
            )
        letters += match["kind"] * int(match["count"] or 1)
        position = match.end()
    return letters


def _is_sound(kind: str, count: str | None) -> bool:
    """Whether a letter may be repeated so often: only layers, and no model has 100,000."""
    return count is None or (kind == "t" and len(count) <= 5 and int(count) > 0)
