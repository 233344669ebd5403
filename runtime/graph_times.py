"""How long everything takes that a prediction is made of, measured with all ranks at work."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from schedc.ir.order import Op, Task
from schedc.program.body import Body, Call, Reduce
from schedc.program.instructions import Tie
from schedc.program.program import Queue
from schedc.program.signature import Unit, Value
from schedc.runtime.bodies import TANGENT
from schedc.runtime.machine import ALL_DTYPES
from schedc.runtime.optimizer import Optimizer
from schedc.runtime.rank import Rank, optimizer_settings
from schedc.runtime.timing import Clock, clock_of
from schedc.runtime.transports.interface import Control, Link
from schedc.runtime.unit_state import UnitState

SCHEMA = "schedc times 1"
WARM_UP, ROUNDS, SECONDS = 2, 5, 1.5
"""Every rank calls its graphs at least so many times, and for at least so long, all at once."""

Times = dict[str, Any]


def measure(rank: Rank, control: Control, clip: float) -> Times:
    """All times, on rank 0; elsewhere an empty dictionary. Leaves garbage in gradients only."""
    with torch.inference_mode():
        control.barrier()
        mine: Times = {"graphs": _graphs(rank)}
        control.barrier()
        mine["step"] = _step(rank, clip)
        mine["reduce"] = _reductions(rank, control)
        mine["message"] = _message(rank, control)
        mine["tie"] = _tie(rank, control)
        mine |= _sums(rank, control)
    everybody = control.gather(mine)
    return _merged(rank, everybody) if control.rank == 0 else {}


def to_json(times: Times) -> str:
    return json.dumps({"schema": SCHEMA, **times}, indent=1, sort_keys=True) + "\n"


def _merged(rank: Rank, everybody: list[Times]) -> Times:
    mesh = rank.manifest.mesh
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    note = f"measured on {mesh.size} ranks"
    if rank.device.type == "cpu" and mesh.size > (cores or 1):
        note += f", which share {cores} cores: every time includes waiting for a core"
    build = rank.manifest.hashes.get("graphs", "")
    merged: Times = {"build": build, "mesh": str(mesh), "cores": cores, "note": note}
    for key in ("graphs", "reduce"):
        names = sorted({name for times in everybody for name in times[key]})
        merged[key] = {
            n: statistics.median(t[key][n] for t in everybody if n in t[key]) for n in names
        }
    for key in ("message", "tie", "norm", "count", "report"):
        merged[key] = (
            statistics.median(t[key] for t in everybody if t[key] is not None)
            if any(t[key] is not None for t in everybody)
            else 0.0
        )
    merged["step"] = [
        statistics.median(
            times["step"]
            for number, times in enumerate(everybody)
            if mesh.coordinates(number)["pp"] == pp
        )
        for pp in range(mesh.pp)
    ]
    return merged


def _graphs(rank: Rank) -> dict[str, float]:
    """The median time of each distinct graph of the rank's bodies."""
    calls = [call for unit in _distinct_units(rank) for call in _unit_calls(rank, unit)]
    clock = clock_of(rank.device)
    found: dict[str, list[float]] = {name: [] for name, _ in calls}
    deadline = time.perf_counter() + SECONDS
    rounds = 0
    while rounds < WARM_UP + ROUNDS or time.perf_counter() < deadline:
        marks = [clock.mark()]
        for _, call in calls:
            call()
            marks.append(clock.mark())
        clock.synchronize()  # once a round: a GPU is never far behind, and never starved within
        if rounds >= WARM_UP:
            for (name, _), (began, ended) in zip(calls, pairwise(marks), strict=True):
                found[name].append(clock.seconds(began, ended))
        rounds += 1
    return {name: statistics.median(times) for name, times in found.items()}


def _distinct_units(rank: Rank) -> list[Unit]:
    """The first of the rank's units with each set of graphs."""
    units: dict[str, Unit] = {}
    model = rank.artifact.model
    for tail in model.tails:
        for name in rank.states:
            unit = model.of(tail).unit(name)
            units.setdefault(unit.graphs, unit)
    return list(units.values())


def _unit_calls(rank: Rank, unit: Unit) -> Iterator[tuple[str, Callable[[], None]]]:
    """Calls of a unit's F, I and W on random values, with all that a body does around a graph."""
    signatures = rank.manifest.signatures
    forward, backward = signatures[f"{unit.graphs}.F"], signatures[f"{unit.graphs}.I"]
    vocabulary = rank.manifest.config["vocab_size"]
    assert isinstance(vocabulary, int)
    values: dict[str, Any] = {}
    for value in (*forward.inputs_of("x", "tokens", "labels"), *backward.inputs_of("dy")):
        values[value.role] = _random(value, vocabulary, rank.device)
    data = tuple(v.role for v in forward.inputs_of("x", "tokens", "labels"))
    labels = ("labels",) if backward.inputs_of("labels") else ()
    outputs = tuple(v.role for v in forward.outputs_of("y", "loss"))
    inputs = tuple(v.role for v in backward.outputs_of("dx"))
    steps = (
        Call(forward.name, unit.name, data, (*outputs, "saved.0")),
        Call(backward.name, unit.name, ("saved.0", "dy", *labels), (*inputs, "owed.0")),
        Call(f"{unit.graphs}.W", unit.name, ("owed.0",), ()),
    )
    for step in steps:
        if not signatures[step.graph].idle:
            yield step.graph, _bound_call(rank, step, values)


def _bound_call(rank: Rank, step: Call, values: dict[str, Any]) -> Callable[[], None]:
    """``values`` are filled by the calls before: F saves what I reads, I owes what W reads."""
    body = Body(Op.F, 0, False, step.reads, step.writes, (step,))
    bound = rank.machine.binder.bind(body, units=1)
    call = bound.steps[0]

    def timed() -> None:
        frame: list[Any] = [None] * bound.size
        frame[bound.places[TANGENT]] = None
        for name in step.reads:
            frame[bound.places[name]] = values[name]
        call(frame)
        for name in step.writes:
            values[name] = frame[bound.places[name]]

    return timed


def _random(value: Value, vocabulary: int, device: torch.device) -> Tensor:
    if value.dtype == "int64":
        return torch.randint(0, vocabulary, value.shape, device=device)
    return torch.randn(value.shape, dtype=ALL_DTYPES[value.dtype], device=device)


def _median(clock: Clock, call: Callable[[], object], rounds: int = ROUNDS) -> float:
    times: list[float] = []
    for _ in range(WARM_UP + rounds):
        began = clock.mark()
        call()
        ended = clock.mark()
        clock.synchronize()
        times.append(clock.seconds(began, ended))
    return statistics.median(times[WARM_UP:])


def _step(rank: Rank, clip: float) -> float:
    """The optimizer's step with clipping, on stand-ins, one unit at a time."""
    settings = optimizer_settings(rank.manifest, rank.config)
    clock = clock_of(rank.device)
    seconds = 0.0
    states = tuple(rank.states.values())
    for at, unit in enumerate(state.unit for state in states):
        with torch.inference_mode(False):
            zeros = {p.name: torch.zeros(p.shape) for _, p in unit.parameters}
            state = UnitState(unit, zeros, states[:at], rank.device)
            optimizer = Optimizer((state,), settings)
        seconds += _median(clock, lambda o=optimizer: o.step(0.0, 2 * clip), rounds=3)
    return seconds


def _reductions(rank: Rank, control: Control) -> dict[str, float]:
    """Each unit's reduction over dp alone; none where there is one replica."""
    found: dict[str, float] = {}
    if rank.manifest.mesh.dp == 1:
        return found
    clock = clock_of(rank.device)
    bodies = [body.steps for body in rank.program.bodies]
    sums = {step.unit: step for steps in bodies for step in steps if isinstance(step, Reduce)}

    def reduce(step: Reduce) -> None:
        rank.machine.reduce(step)
        rank.machine.reduction(step.unit).wait()

    for name, state in rank.states.items():
        if name not in sums:  # frozen
            continue
        state.flat_gradients.zero_()
        found[name] = _median(clock, lambda step=sums[name]: reduce(step))
    return found


def _message(rank: Rank, control: Control) -> float | None:
    """Half a round trip of hidden states between pipeline neighbours, pair after pair."""
    mesh, pp = rank.manifest.mesh, rank.program.rank
    hidden = next(v for s in rank.manifest.signatures.values() for v in s.inputs_of("x"))
    payload = torch.zeros(hidden.shape, dtype=ALL_DTYPES[hidden.dtype], device=rank.device)
    clock = clock_of(rank.device)
    task = Task(Op.F, 0, 0)
    found: float | None = None
    for first in range(mesh.pp - 1):
        control.barrier()
        forth = Link(Queue("act", first, first + 1), 0, task)
        back = Link(Queue("grad", first + 1, first), 0, task)

        def ask(forth: Link = forth, back: Link = back) -> None:
            answer = rank.transport.post_recv(back, payload)
            rank.transport.post_send(forth, payload).wait()
            answer.wait()

        def reply(forth: Link = forth, back: Link = back) -> None:
            rank.transport.post_recv(forth, payload).wait()
            rank.transport.post_send(back, payload).wait()

        if pp == first:
            found = _median(clock, ask) / 2
        elif pp == first + 1:
            _median(clock, reply)
    return found


def _tie(rank: Rank, control: Control) -> float | None:
    """The tie of the two ranks that have one; None on the others."""
    control.barrier()
    ties = [i for i in rank.program.stream if isinstance(i, Tie)]
    if not ties:
        return None
    post = rank.machine.bind_tie(ties[0].unit, ties[0].peer)
    return _median(clock_of(rank.device), lambda: post().wait())


def _sums(rank: Rank, control: Control) -> Times:
    found: Times = {}
    number = torch.zeros(1, dtype=torch.float64, device=rank.device)
    count = torch.zeros(1, dtype=torch.int64, device=rank.device)
    clock, post_sum = clock_of(rank.device), rank.transport.post_sum
    control.barrier()
    found["norm"] = _median(clock, lambda: rank.machine.post_norm().wait())
    control.barrier()
    found["count"] = _median(clock, lambda: post_sum("count", count, ("dp",)).wait())
    control.barrier()
    found["report"] = _median(clock, lambda: post_sum("report", number, ("dp", "pp")).wait())
    return found
