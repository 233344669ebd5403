"""Two schedules side by side: figures, and where their orders part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from schedc.diagnostics import Diagnostic, DiagnosticError
from schedc.driver.check import evaluate_schedule
from schedc.driver.exchange import read_verified_csv
from schedc.driver.target import choose_target
from schedc.ir.cost import Costs
from schedc.ir.order import Order
from schedc.ir.timeline import Figures
from schedc.ir.verify import verify_order
from schedc.simulate.figures import figures
from schedc.simulate.order import simulate_order


@dataclass(frozen=True, eq=False)
class Side:
    """One of two schedules that are compared."""

    title: str
    order: Order
    figures: Figures


@dataclass(frozen=True, slots=True)
class Parting:
    """The first slot in which a rank does different things; an end is the text "nothing"."""

    rank: int
    slot: int
    first: str
    second: str


@dataclass(frozen=True, eq=False)
class Comparison:
    """``partings`` has the ranks whose orders differ, ``placements`` whether stages lie alike."""

    first: Side
    second: Side
    placements: bool
    partings: tuple[Parting, ...]

    @property
    def equal(self) -> bool:
        return self.placements and not self.partings

    def to_json(self) -> dict[str, object]:
        """What ``schedc diff --json`` prints."""
        return {
            "equal": self.equal,
            "first": _figures_json(self.first),
            "second": _figures_json(self.second),
            "same_placement": self.placements,
            "differences": [
                {"rank": p.rank, "slot": p.slot, "first": p.first, "second": p.second}
                for p in self.partings
            ],
        }


def _figures_json(side: Side) -> dict[str, object]:
    found = side.figures
    return {
        "schedule": side.title,
        "stages": side.order.stages,
        "makespan": float(found.makespan),
        "longest_stage": float(found.longest_stage),
        "bubble": float(found.bubble),
        "bubble_rate": float(found.bubble_rate),
        "peak_activations": [float(peak) for peak in found.peak_activations],
        "messages": found.messages,
    }


def compare(first: str, second: str, settings: Mapping[str, str], costs: Costs) -> Comparison:
    """Compare what two names on the command line stand for, at the same P, M and costs.

    A CSV file has its own P and M; they are those of the other one too, unless ``settings`` say
    something else, which then is an error. Parameters go to the schedules that have them.
    """
    csv = [read_verified_csv(Path(name)).order for name in (first, second) if _is_csv(name)]
    sizes = dict(settings)
    for order in csv:
        for letter, value in (("P", order.ranks), ("M", order.microbatches)):
            if sizes.setdefault(letter, str(value)) != str(value):
                raise DiagnosticError(
                    Diagnostic(
                        "E217",
                        f"{order.name} has {letter} = {value}, and is compared at {letter} = "
                        f"{sizes[letter]}",
                        help="two schedules are compared at the same P and M",
                    )
                )
    known = [_parameters(name) for name in (first, second)]
    for name in sizes.keys() - {"P", "M"}:
        if not any(name in parameters for parameters in known):
            raise DiagnosticError(Diagnostic("E216", f"neither schedule has a parameter `{name}`"))
    sides = [
        _side(name, {k: v for k, v in sizes.items() if k in ("P", "M") or k in parameters}, costs)
        for name, parameters in zip((first, second), known, strict=True)
    ]
    one, other = (side.order for side in sides)
    partings = tuple(p for rank in range(one.ranks) for p in _parting(one, other, rank))
    return Comparison(sides[0], sides[1], one.rank_of == other.rank_of, partings)


def _is_csv(name: str) -> bool:
    return name.endswith(".csv")


def _parameters(name: str) -> set[str]:
    if _is_csv(name):
        return set()
    target = choose_target(name)
    if target.is_plan:
        raise DiagnosticError(
            Diagnostic("E215", f"`{target.name}` is a plan; schedules are compared, name its own")
        )
    return {parameter.name for parameter in target.library.schedule(target.name).parameters}


def _side(name: str, settings: Mapping[str, str], costs: Costs) -> Side:
    if _is_csv(name):
        title, order = Path(name).name, read_verified_csv(Path(name)).order
    else:
        target = choose_target(name)
        instance = evaluate_schedule(target.library, target.name, settings, costs)
        title, order = instance.title, instance.order
        verify_order(order)
    stage_costs = costs.of_stages(order.ranks, order.stages)
    timeline = simulate_order(order, stage_costs)
    return Side(title, replace(order, name=title), figures(timeline, stage_costs))


def _parting(one: Order, other: Order, rank: int) -> list[Parting]:
    """The first slot of ``rank`` that differs, if one does."""
    mine, theirs = _slots(one, rank), _slots(other, rank)
    for slot in range(max(len(mine), len(theirs))):
        pair = tuple(line[slot] if slot < len(line) else "nothing" for line in (mine, theirs))
        if pair[0] != pair[1]:
            return [Parting(rank, slot, *pair)]
    return []


def _slots(order: Order, rank: int) -> list[str]:
    words = [f"{t.op.name}({t.stage}, {t.microbatch})" for t in order.tasks(rank)]
    for row in reversed(order.pairs[rank] if order.pairs else ()):
        words[row : row + 2] = [" | ".join(words[row : row + 2])]
    return words
