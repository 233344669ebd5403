"""Memory within a body: which tensors are alive from call to call, and in each call's middle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Literal

from schedc.program.body import Body, Call
from schedc.program.signature import Role, Signature

Storages = tuple[str | None, ...]
"""The storages of some tensors, by name; None for those of parameters and tables, which stay, and
for the gradient of the loss, a scalar."""


def rise_of(
    body: Body,
    units: int,
    owned: frozenset[str],
    signatures: Mapping[str, Signature],
    copies: Mapping[str, int],
) -> int:
    """How far above what is alive before ``body`` its memory rises, in bytes.

    ``units`` is how many its stage has; ``owned`` are those of its inputs that nobody reads after
    it: they die with their last reader. ``copies`` are the bytes of the rounded gradients that the
    reduction of a unit sums.

    The model, as the runtime does it:

    * In a call's middle its graph's ``peak`` is alive, which includes the saved and owed tensors
      and the ``x`` and ``dy`` that it reads, each until its last use. Everything else in the body
      stays: the inputs and results of other units, hidden states and gradients between units.
    * A result that shares the storage of an input costs nothing and keeps that storage alive.
    * Gradients of parameters are added to the unit's when the call ends, and are gone after it.

    * An ``x`` or ``dy`` that others hold too (a receive buffer, a slot that is read again) stays.

    One thing is not known from a signature: a stage's input that others hold, and that a call reads
    as a saved tensor, counts as still used when the call's memory is highest. Where it was not, the
    truth is higher by that one tensor.
    """
    frame = _Frame(body, units, owned, signatures)
    for index, step in enumerate(body.steps):
        if isinstance(step, Call):
            frame.call(index, step)
        else:
            frame.copy(copies.get(step.unit, 0))
    return frame.highest


class _Frame:
    """A body's values while it runs; ``live`` counts bytes relative to its beginning."""

    def __init__(
        self, body: Body, units: int, owned: frozenset[str], signatures: Mapping[str, Signature]
    ) -> None:
        self.body, self.signatures, self.last = body, signatures, units - 1
        self.size: dict[str, int] = {}
        self.values: dict[str, Storages] = {}
        self.holders: Counter[str] = Counter()
        self.last_read: dict[str, int] = {}
        self.live = self.highest = 0
        self._find_inputs()
        slots = {name: (name,) for name in body.reads if name not in ("saved", "owed")}
        slots |= {name: s for name, s in self.values.items() if _interface(name) in body.reads}
        for storages in (*self.values.values(), *slots.values()):
            self._hold(storages)
        self.live = 0
        for name, storages in slots.items():
            if _interface(name) in owned:
                self._drop(storages)

    def _find_inputs(self) -> None:
        """The values that the body reads and does not write, and the size of each."""
        written: set[str] = set()
        for index, step in enumerate(self.body.steps):
            if not isinstance(step, Call):
                continue
            unit = step.graph.rpartition(".")[0]
            for name in step.reads:
                self.last_read[name] = index
                if name in written or name in self.values:
                    continue
                if _interface(name) == "saved":
                    self.values[name] = self._saved(unit, _position(name))
                elif _interface(name) == "owed":
                    self.values[name] = self._owed(unit, _position(name))
                else:
                    self.values[name] = (name,) if name in self.body.reads else (None,)
            for value in self.signatures[step.graph].inputs:
                if value.role in self.body.reads and value.role in step.reads:
                    self.size[value.role] = value.bytes
            written.update(step.writes)
        for name in self.body.reads:
            self.size.setdefault(name, 0)  # of no call, and no part of what is saved or owed

    def _saved(self, unit: str, j: int) -> Storages:
        """What F of the stage's unit ``j`` kept."""
        graph = self.signatures[f"{unit}.F"]
        names: dict[Role, str] = {"tokens": "tokens", "labels": "labels"}
        names["x"] = "x" if j == 0 else f"h{j}"
        inputs: dict[str, str | None] = {}
        for value in graph.inputs:
            inputs[value.name] = names.get(value.role)
            if value.role in names:
                self.size[names[value.role]] = value.bytes
        return self._results(graph, "saved", f"saved.{j}", inputs)

    def _owed(self, unit: str, j: int) -> Storages:
        """What I of the stage's unit ``j`` kept."""
        graph = self.signatures[f"{unit}.I"]
        has_loss = bool(self.signatures[f"{unit}.F"].outputs_of("loss"))
        saved = iter(self._saved(unit, j))
        gradient = None if has_loss else "dy" if j == self.last else f"dh{j + 1}"
        inputs: dict[str, str | None] = {}
        for value in graph.inputs:
            if value.role == "saved":
                inputs[value.name] = next(saved)
            elif value.role == "dy" and gradient is not None:
                inputs[value.name] = gradient
                self.size[gradient] = value.bytes
            elif value.role == "labels":
                inputs[value.name] = "labels"
        return self._results(graph, "owed", f"owed.{j}", inputs)

    def _results(
        self,
        graph: Signature,
        which: Literal["saved", "owed", "single"],
        name: str,
        inputs: Mapping[str, str | None],
    ) -> Storages:
        """The storages of some of a graph's results; new ones are named and get their size."""
        roles: tuple[Role, ...] = ("y", "loss", "dx") if which == "single" else (which,)
        storages: list[str | None] = []
        for value in graph.outputs_of(*roles):
            if value.alias is not None:
                storages.append(inputs.get(value.alias))
            else:
                own = name if which == "single" else f"{name}.{value.name}"
                self.size[own] = value.bytes
                storages.append(own)
        return tuple(storages)

    def call(self, index: int, call: Call) -> None:
        """One call: its middle, then its results, then what it was the last to read."""
        graph = self.signatures[call.graph]
        given = [storage for name in call.reads for storage in self.values[name]]
        pairs = list(zip(graph.inputs, given, strict=False))
        stays = any(s and v.role in ("x", "dy") and self._stays(s, index, call) for v, s in pairs)
        owned = ("saved", "owed") if stays else ("x", "saved", "owed", "dy")
        within = {s for value, s in pairs if s and value.role in owned}
        around = self.live - sum(self.size[storage] for storage in within)
        self.highest = max(self.highest, around + (graph.peak_beside if stays else graph.peak))
        inputs = {value.name: storage for value, storage in pairs}
        for name in call.writes:
            kind = _interface(name)
            which = kind if kind == "saved" or kind == "owed" else "single"
            self.values[name] = self._results(graph, which, name, inputs)
            self._hold(self.values[name])
        for name in call.reads:
            if self.last_read[name] == index and name not in self.body.writes:
                self._drop(self.values.pop(name))
        self.highest = max(self.highest, self.live)

    def copy(self, size: int) -> None:
        """A copy that stays to the end of the body."""
        self.live += size
        self.highest = max(self.highest, self.live)

    def _stays(self, storage: str, index: int, call: Call) -> bool:
        """Whether others hold ``storage`` when all that this call is the last to read is gone."""
        last = [n for n in call.reads if self.last_read[n] == index and n not in self.body.writes]
        return self.holders[storage] > sum(self.values[name].count(storage) for name in last)

    def _hold(self, storages: Storages) -> None:
        for storage in storages:
            if storage is not None:
                self.live += 0 if self.holders[storage] else self.size[storage]
                self.holders[storage] += 1

    def _drop(self, storages: Storages) -> None:
        for storage in storages:
            if storage is not None:
                self.holders[storage] -= 1
                self.live -= 0 if self.holders[storage] else self.size[storage]


def _interface(name: str) -> str:
    """The name under which the body's interface has a value: ``saved`` for ``saved.3``."""
    return name.partition(".")[0]


def _position(name: str) -> int:
    return int(name.partition(".")[2])
