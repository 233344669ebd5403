"""The model that programs are verified against: its units in the stages, its graphs (E508)."""

from __future__ import annotations

from schedc.program.program import Programs
from schedc.program.signature import Model
from schedc.program.verify_columns import Findings


def check_model(programs: Programs, model: Model, findings: Findings) -> None:
    """The programs' stages are the model's units, which have their graphs, fit to be sent from."""
    _check_units(programs, model, findings)
    for tail in model.tails:
        _check_graphs(model.of(tail), findings)


def _check_units(programs: Programs, model: Model, findings: Findings) -> None:
    """The stages hold the model's units, all of them, in order."""
    held = {stage: units for program in programs for stage, units in program.stages}
    there = [unit for stage in sorted(held) for unit in held[stage]]
    wanted = [unit.name for unit in model.units]
    if there != wanted:
        for unit in wanted:
            if there.count(unit) != 1:
                count = there.count(unit)
                findings.add(
                    "E508", f"the model's unit {unit} stands in {count} stages, not in one"
                )
        for unit in sorted(set(there) - set(wanted)):
            findings.add("E508", f"the model has no unit {unit}")
        if not findings:
            findings.add("E508", "the stages do not hold the model's units in order")


def _check_graphs(model: Model, findings: Findings) -> None:
    """Units have their graphs, and what these give to be sent has memory of its own.

    Else a received slot would be reused while it is sent.
    """
    for name in dict.fromkeys(f"{unit.graphs}.{op}" for unit in model.units for op in "FIW"):
        if name not in model.graphs:
            findings.add("E508", f"the model has no graph {name}")
            continue
        for value in model.graphs[name].outputs_of("y", "dx"):
            if value.alias is not None:
                what = f"the output `{value.name}` of {name} shares the memory of `{value.alias}`"
                findings.add("E508", f"{what}, which is reused while the output is sent")
