"""The trace: a timeline as plain numbers, predicted or measured, ready to be drawn or compared.

This is ``timeline.json`` in a compiled folder and what a run writes. Times are floats here (it is
a printed form); exact figures are computed before and carried along.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast

SCHEMA = "schedc timeline 1"


@dataclass(frozen=True, slots=True)
class TraceTask:
    """An operation on a rank, from ``start`` to ``end``; ``place`` is its ``.sched`` line."""

    rank: int
    op: str
    stage: int
    microbatch: int
    start: float
    end: float
    place: str = ""


@dataclass(frozen=True, slots=True)
class TraceMessage:
    """An activation (F) or gradient (B) of ``stage`` on its way from rank to rank."""

    kind: Literal["F", "B"]
    source: int
    target: int
    stage: int
    microbatch: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class TraceOther:
    """What a rank does between operations: ``reduce``, ``norm``, ``step`` and their kind."""

    rank: int
    name: str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Trace:
    """All that is known of one step.

    ``unit`` is ``"s"`` or ``""`` (cost units). ``memory[r]`` is the curve of rank ``r``: (time,
    amount from then on), in ``memory_unit`` (``"units"`` of activations or ``"bytes"``).
    ``figures`` are those of ``schedc check --json`` and, for programs, ``step_…``.
    """

    title: str
    origin: Literal["predicted", "measured"]
    unit: str
    ranks: int
    stages: int
    microbatches: int
    rank_of: tuple[int, ...]
    tasks: tuple[TraceTask, ...]
    messages: tuple[TraceMessage, ...] = ()
    others: tuple[TraceOther, ...] = ()
    memory: tuple[tuple[tuple[float, float], ...], ...] = ()
    memory_unit: Literal["units", "bytes"] = "units"
    memory_limit: float | None = None
    figures: dict[str, Any] = field(default_factory=dict[str, Any])
    notes: tuple[str, ...] = ()

    def to_json(self) -> str:
        """One line a task, so that a diff of two traces reads well."""

        def rows(values: tuple[Any, ...]) -> str:
            fields = [json.dumps([getattr(v, f) for f in v.__slots__]) for v in values]
            return "[" + ",".join(f"\n  {row}" for row in fields) + "]"

        head = {
            "schema": SCHEMA,
            "title": self.title,
            "origin": self.origin,
            "unit": self.unit,
            "ranks": self.ranks,
            "stages": self.stages,
            "microbatches": self.microbatches,
            "rank_of": self.rank_of,
            "memory_unit": self.memory_unit,
            "memory_limit": self.memory_limit,
            "figures": self.figures,
            "notes": self.notes,
        }
        parts = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
        parts.append(f' "memory": {json.dumps(self.memory)}')
        parts.append(f' "tasks": {rows(self.tasks)}')
        parts.append(f' "messages": {rows(self.messages)}')
        parts.append(f' "others": {rows(self.others)}')
        return "{\n" + ",\n".join(parts) + "\n}\n"

    @staticmethod
    def from_json(text: str) -> Trace:
        """Raises ValueError where ``text`` is no trace of this schema."""
        loaded: Any = json.loads(text)
        data = cast("dict[str, Any]", loaded) if isinstance(loaded, dict) else {}
        if data.get("schema") != SCHEMA:
            raise ValueError(f"not a timeline: the schema is not {SCHEMA!r}")
        try:
            trace = Trace(
                title=data["title"],
                origin=data["origin"],
                unit=data["unit"],
                ranks=data["ranks"],
                stages=data["stages"],
                microbatches=data["microbatches"],
                rank_of=tuple(data["rank_of"]),
                tasks=_rows(TraceTask, data["tasks"]),
                messages=_rows(TraceMessage, data["messages"]),
                others=_rows(TraceOther, data["others"]),
                memory=tuple(tuple((t + 0.0, v + 0.0) for t, v in c) for c in data["memory"]),
                memory_unit=data["memory_unit"],
                memory_limit=data["memory_limit"],
                figures=dict(data["figures"]),
                notes=tuple(data["notes"]),
            )
            _check(Trace, trace)
            _check_sizes(trace)
            return trace
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a timeline: {error}") from error


MOST_RANKS = 65_536


def _check_sizes(trace: Trace) -> None:
    """Raises TypeError where the parts of a trace do not fit one another."""
    if trace.origin not in ("predicted", "measured"):
        raise TypeError(f"origin is {trace.origin!r}")
    if trace.memory_unit not in ("units", "bytes"):
        raise TypeError(f"memory_unit is {trace.memory_unit!r}")
    if type(trace.memory_limit) not in (type(None), int, float):
        raise TypeError(f"memory_limit is {trace.memory_limit!r}")
    if not 1 <= trace.ranks <= MOST_RANKS:
        raise TypeError(f"ranks is {trace.ranks}, not from 1 to {MOST_RANKS}")
    if len(trace.rank_of) != trace.stages:
        raise TypeError(f"rank_of has {len(trace.rank_of)} entries for {trace.stages} stages")
    for rank in trace.rank_of:
        if type(rank) is not int or not 0 <= rank < trace.ranks:
            raise TypeError(f"rank_of names {rank!r}, with {trace.ranks} ranks")
    if len(trace.memory) not in (0, trace.ranks):
        raise TypeError(f"memory has {len(trace.memory)} curves for {trace.ranks} ranks")
    for note in trace.notes:
        if not isinstance(note, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"a note is {note!r}")


Row = TypeVar("Row", TraceTask, TraceMessage, TraceOther)

_TYPES = {"int": int, "float": (int, float), "str": str}
"""What may stand in a field, by its annotation."""


def _rows(kind: type[Row], rows: list[list[Any]]) -> tuple[Row, ...]:
    """Rows of a trace. Raises TypeError where one is none."""
    made = tuple(kind(*row) for row in rows)
    for row in made:
        _check(kind, row)
    return made


def _check(kind: type[object], value: object) -> None:
    """Raises TypeError where a plain field of ``value`` has a value of another type."""
    for name, annotation in kind.__annotations__.items():
        found = getattr(value, name)
        if annotation in _TYPES and not isinstance(found, _TYPES[annotation]):
            raise TypeError(f"{name} is {found!r}")
