"""What operations and programs take: from FLOPs until measured, from measured graph times after."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

from schedc.diagnostics import Diagnostic, DiagnosticError
from schedc.ir.cost import StageCosts
from schedc.ir.order import Op
from schedc.program.durations import Durations
from schedc.program.flat import flat_layouts
from schedc.program.manifest import Manifest
from schedc.program.signature import Model, Unit
from schedc.program.work import work_of

NOMINAL_FLOPS = 50_000_000_000
"""FLOP/s at which graphs are priced that nobody has measured: about one CPU core in fp32."""

NANOSECOND = Fraction(1, 1_000_000_000)

TIMES_SCHEMA = "schedc times 1"


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of everything a program does, by graph, unit and rank.

    ``reduce`` and ``step`` may be empty: such times count as zero. ``note`` says where the times
    come from, for the reader of a prediction.
    """

    graphs: Mapping[str, float]
    message: float = 0.0
    reduce: Mapping[str, float] = field(default_factory=dict[str, float])
    count: float = 0.0
    tie: float = 0.0
    norm: float = 0.0
    report: float = 0.0
    step: tuple[float, ...] = ()
    note: str = ""


def nominal_times(model: Model) -> Times:
    """Times of a model's graphs from their FLOPs; messages, reductions and the step are free."""
    graphs = {name: graph.flops / NOMINAL_FLOPS for name, graph in model.graphs.items()}
    gflops = NOMINAL_FLOPS // 1_000_000_000
    note = f"nothing measured: FLOPs at {gflops} GFLOP/s a rank, communication and optimizer free"
    return Times(graphs, note=note)


def read_times(path: Path, manifest: Manifest) -> Times:
    """Times that a run of the build ``manifest`` wrote with ``--times-out``.

    Raises E907 where they are another build's, on another mesh, or leave something out.
    """

    def refuse(why: str) -> DiagnosticError:
        return DiagnosticError(Diagnostic("E907", f"{path}: {why}"))

    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise refuse(f"cannot be read as measured times: {error}") from error
    if not isinstance(data, dict) or data.get("schema") != TIMES_SCHEMA:
        raise refuse(f"is no file of measured times (its schema is not {TIMES_SCHEMA!r})")
    try:
        times = Times(
            graphs={name: _seconds(time) for name, time in data["graphs"].items()},
            message=_seconds(data["message"]),
            reduce={unit: _seconds(time) for unit, time in data["reduce"].items()},
            count=_seconds(data["count"]),
            tie=_seconds(data["tie"]),
            norm=_seconds(data["norm"]),
            report=_seconds(data["report"]),
            step=tuple(_seconds(time) for time in data["step"]),
            note=str(data.get("note", "")),
        )
    except KeyError as error:
        raise refuse(f"has no entry {error}") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise refuse(f"is damaged: {error}") from error
    mesh = manifest.mesh
    if data.get("build") != manifest.hashes.get("graphs", ""):
        raise refuse("was measured on other graphs than those of this build; measure it again")
    if data.get("mesh") != str(mesh):
        raise refuse(f"was measured on mesh {data.get('mesh')}; this build's is {mesh}")
    graphs = [n for n, graph in manifest.signatures.items() if n != "rotary" and not graph.idle]
    units = _reduced_units(manifest) if mesh.dp > 1 else []
    missing = [name for name in graphs if name not in times.graphs]
    missing += [f"the reduction of {unit}" for unit in units if unit not in times.reduce]
    if missing:
        raise refuse(f"has no time for {', '.join(missing)}; measure this build again")
    if len(times.step) != mesh.pp:
        raise refuse(f"has the step of {len(times.step)} pipeline ranks; this build has {mesh.pp}")
    return times


def _reduced_units(manifest: Manifest) -> list[str]:
    """The units that have gradients of their own."""
    held = list(zip(manifest.rank_of, manifest.stages, strict=True))
    found: list[str] = []
    for rank in range(manifest.mesh.pp):
        names = {name for at, units in held if at == rank for name in units}
        layouts = flat_layouts(unit for unit in manifest.units if unit.name in names)
        found += [name for name, layout in layouts.items() if layout.size]
    return found


def _seconds(value: object) -> float:
    if isinstance(value, int | float) and 0 <= value < math.inf:
        return float(value)
    raise ValueError(f"{value!r} is no time in seconds")


def stage_costs(
    times: Times, model: Model, partition: tuple[tuple[str, ...], ...], ranks: int
) -> StageCosts:
    """Costs of each stage in seconds, exact to the nanosecond.

    Every operation takes at least one, but for those with nothing to do (frozen parameters), which
    take none. Memory is in activation units, a stage ``ranks / stages`` of them.
    """

    def seconds(op: str) -> tuple[Fraction, ...]:
        works = [work_of(model, names).has(Op[op]) for names in partition]
        graphs = [[f"{model.unit(name).graphs}.{op}" for name in names] for names in partition]
        return tuple(
            max(int(works), sum(_nanoseconds(times.graphs[graph]) for graph in stage)) * NANOSECOND
            for works, stage in zip(works, graphs, strict=True)
        )

    return StageCosts(
        F=seconds("F"),
        I=seconds("I"),
        W=seconds("W"),
        comm=_nanoseconds(times.message) * NANOSECOND,
        units=(Fraction(ranks, len(partition)),) * len(partition),
    )


def durations(times: Times, ranks: int, units: tuple[Unit, ...]) -> Durations:
    """Durations of programs in nanoseconds."""
    step = times.step or (0.0,) * ranks
    return Durations(
        tick=NANOSECOND,
        calls={graph: _nanoseconds(time) for graph, time in times.graphs.items()},
        message=_nanoseconds(times.message),
        reduce={unit.name: _nanoseconds(times.reduce.get(unit.name, 0.0)) for unit in units},
        count=_nanoseconds(times.count),
        tie=_nanoseconds(times.tie),
        norm=_nanoseconds(times.norm),
        step=tuple(_nanoseconds(time) for time in step),
        report=_nanoseconds(times.report),
    )


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
