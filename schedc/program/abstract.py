"""A model without numbers: programs of a bare schedule, for the proof, the clock and the tests."""

from __future__ import annotations

from fractions import Fraction
from math import lcm

from schedc.ir.cost import StageCosts
from schedc.program.durations import Durations
from schedc.program.signature import Model, Role, Signature, Unit, Value


def _value(role: Role, alias: str | None = None) -> Value:
    return Value(role, role, (1,), "fp32", (1,), alias)


def _signature(name: str, inputs: tuple[Value, ...], outputs: tuple[Value, ...]) -> Signature:
    return Signature(name, "abstract", inputs, outputs, flops=1, moved=0, peak=0, peak_beside=0)


def abstract_model(stages: int) -> tuple[Model, tuple[tuple[str, ...], ...]]:
    """A model with one layer a stage, and its partition.

    The layer of stage ``s`` has graphs of its own, ``stage<s>.F`` and so on, so that each stage can
    have its own duration.
    """
    names: dict[str, str] = {"embedding": "embedding"}
    names |= {f"layers.{s}": f"stage{s}" for s in range(stages)}
    names["head"] = "head"
    graphs: dict[str, Signature] = {}
    for unit, prefix in names.items():
        first, last = unit == "embedding", unit == "head"
        x = _value("tokens" if first else "x")
        labels = (_value("labels"),) if last else ()
        saved, owed = _value("saved"), _value("owed")
        dx = () if first else (_value("dx"),)
        y = _value("loss" if last else "y")
        graphs[f"{prefix}.F"] = _signature(f"{prefix}.F", (x, *labels), (y, saved))
        graphs[f"{prefix}.I"] = _signature(f"{prefix}.I", (saved, _value("dy")), (*dx, owed))
        graphs[f"{prefix}.W"] = _signature(f"{prefix}.W", (owed,), ())
    units = tuple(
        Unit(unit, "embedding" if unit == "embedding" else "head" if unit == "head" else "layer",
             prefix, ())
        for unit, prefix in names.items()
    )  # fmt: skip
    partition = tuple(
        (
            *(("embedding",) if s == 0 else ()),
            f"layers.{s}",
            *(("head",) if s == stages - 1 else ()),
        )
        for s in range(stages)
    )
    return Model(units, graphs, {}, {}), partition


def abstract_durations(costs: StageCosts, ranks: int) -> Durations:
    """Durations of an abstract model's graphs under ``costs``; all beside compute takes no time."""
    times = (*costs.F, *costs.I, *costs.W, costs.comm)
    scale = lcm(*(time.denominator for time in times))
    calls = {f"{unit}.{op}": 0 for unit in ("embedding", "head") for op in "FIW"}
    for op, column in (("F", costs.F), ("I", costs.I), ("W", costs.W)):
        calls |= {f"stage{s}.{op}": int(time * scale) for s, time in enumerate(column)}
    return Durations(
        tick=Fraction(1, scale),
        calls=calls,
        message=int(costs.comm * scale),
        reduce={},
        count=0,
        norm=0,
        step=(0,) * ranks,
        report=0,
    )
