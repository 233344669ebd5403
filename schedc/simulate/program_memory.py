"""Memory of rank programs: the bytes alive before, within and after every instruction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from schedc.program.body import Reduce
from schedc.program.flat import flat_layouts
from schedc.program.instructions import BODY, CODE, READS, REF, WRITES, Code
from schedc.program.program import BufferKind, Programs, RankProgram
from schedc.program.signature import DTYPE_BYTES, Signature, Unit
from schedc.simulate.program_body_memory import rise_of

Bytes = npt.NDArray[np.int64]

MOMENTS = {"adamw": 2, "sgd": 0}
"""Numbers that the optimizer keeps for each parameter; SGD without momentum."""

CATEGORY: dict[BufferKind, str] = {
    "saved": "saved",
    "owed": "owed",
    "x": "received",
    "dy": "received",
    "y": "produced",
    "dx": "produced",
    "tokens": "data",
    "labels": "data",
    "loss": "data",
}
ROUNDED = "rounded"
"""Copies of gradients while they are summed in another dtype than fp32."""

SLOTS = ("saved", "owed", "produced", "data", ROUNDED)
RECEIVED = ("x", "dy")


@dataclass(frozen=True, eq=False)
class MemoryProfile:
    """The bytes alive on a rank: ``highest[i]`` within instruction ``i``, ``after[i]`` behind it.

    ``peak`` is reached within instruction ``row``. ``at_peak`` says what it consists of:
    ``parameters gradients optimizer rotary received`` stay through the step; ``saved owed produced
    data`` lie in slots when the instruction begins; ``rounded`` are copies of gradients that are
    being summed in a narrower dtype; ``working`` is what it adds at its highest.
    """

    peak: int
    row: int
    at_peak: dict[str, int]
    highest: Bytes
    after: Bytes


def memory_of(
    programs: Programs,
    signatures: Mapping[str, Signature],
    units: Sequence[Unit],
    optimizer: str,
) -> tuple[MemoryProfile, ...]:
    """What each rank holds along its stream, in a step that is not the first.

    The model, as the runtime does it:

    * A unit's parameters and fp32 gradients are flat tensors of one length
      (:mod:`schedc.program.flat`); ``optimizer`` keeps 2 (``adamw``) or 0 (``sgd``) more of these,
      and an fp32 copy of parameters of another type. Frozen parameters have none of it. The
      fused optimizers, clipping and the norm allocate nothing. Reductions and ties sum in place,
      reductions in another dtype than fp32 in a copy that lives from their start to the end of
      their wait.
    * One pair of rotary tables on each rank.
    * Receive buffers, one a slot, stay from step to step. All other slots hold their bytes from the
      instruction that writes them until after the last that reads them; a run takes over what it
      is the last to read, and drops it unit by unit.
    * Within a run: see :func:`schedc.simulate.program_body_memory.rise_of`.

    Not counted: scalars, one number a row for the norm, what kernels and communicators allocate for
    themselves, the data that batches are cut from.
    """
    by_name = {unit.name: unit for unit in units}
    profiles: list[MemoryProfile] = []
    for program in programs:
        layouts = flat_layouts(by_name[name] for name in program.units)
        numbers = {name: layout.size for name, layout in layouts.items()}
        persistent = _persistent(program, signatures, by_name, optimizer)
        profiles.append(_profile(program, signatures, persistent, numbers))
    return tuple(profiles)


def _persistent(
    program: RankProgram, signatures: Mapping[str, Signature], units: Mapping[str, Unit], how: str
) -> dict[str, int]:
    """Bytes that stay through the step, by category."""
    own = [units[name] for name in program.units]
    dtypes = {parameter.dtype for unit in own for _, parameter in unit.parameters}
    layouts = flat_layouts(own).values()
    numbers = sum(layout.size for layout in layouts)
    frozen = sum(layout.frozen_size for layout in layouts)
    masters = any(dtype != "fp32" for dtype in dtypes)
    tables = [v for graph in signatures.values() for v in graph.outputs_of("cos", "sin")]
    return {
        "parameters": (numbers + frozen) * max((DTYPE_BYTES[dtype] for dtype in dtypes), default=4),
        "gradients": 4 * numbers,
        "optimizer": 4 * numbers * (MOMENTS[how] + masters),
        "rotary": sum(value.bytes for value in tables),
        "received": sum(b.bytes * b.slots for b in program.buffers if b.kind in RECEIVED),
    }


def _profile(
    program: RankProgram,
    signatures: Mapping[str, Signature],
    persistent: dict[str, int],
    numbers: Mapping[str, int],
) -> MemoryProfile:
    table = program.stream.table
    change = _changes_of_slots(program)
    copies = _copies(program, numbers)
    _add_copies(change[:, SLOTS.index(ROUNDED)], program, copies)
    after = sum(persistent.values()) + np.cumsum(change.sum(axis=1))
    before = after - change.sum(axis=1)
    highest = np.maximum(np.maximum(before, after), before + _rises(program, signatures, copies))
    if not len(table):
        stays = sum(persistent.values())
        return MemoryProfile(stays, -1, persistent, highest, after)
    row = int(np.argmax(highest))
    slots: list[int] = change[:row].sum(axis=0).tolist()
    at_peak = {**persistent, **dict(zip(SLOTS, slots, strict=True))}
    at_peak["working"] = int(highest[row] - before[row])
    return MemoryProfile(int(highest[row]), row, at_peak, highest, after)


def _changes_of_slots(program: RankProgram) -> Bytes:
    """[instructions, SLOTS]: bytes that each adds by what it writes, less those it frees."""
    stream = program.stream
    place = {
        buffer.name: (SLOTS.index(CATEGORY[buffer.kind]), buffer.bytes)
        for buffer in program.buffers
        if buffer.kind not in RECEIVED
    }
    added = np.zeros((len(stream.operands), len(SLOTS)), dtype=np.int64)
    freed = np.zeros_like(added)
    for index, operands in enumerate(stream.operands):
        for operand in operands:
            if operand.buffer in place:
                column, size = place[operand.buffer]
                added[index, column] += size
                freed[index, column] += size if operand.last else 0
    return added[stream.table[:, WRITES]] - freed[stream.table[:, READS]]


def _copies(program: RankProgram, numbers: Mapping[str, int]) -> dict[str, int]:
    """The bytes of each unit's rounded gradients, for those that are summed rounded."""
    steps = [step for body in program.bodies for step in body.steps]
    return {
        step.unit: numbers[step.unit] * DTYPE_BYTES[step.dtype]
        for step in steps
        if isinstance(step, Reduce) and step.dtype != "fp32"
    }


def _add_copies(change: Bytes, program: RankProgram, copies: Mapping[str, int]) -> None:
    """Add to ``change`` what runs leave in copies, and what waits for reductions free."""
    table = program.stream.table
    for index, body in enumerate(program.bodies):
        made = [copies.get(step.unit, 0) for step in body.steps if isinstance(step, Reduce)]
        if sum(made):
            change[(table[:, CODE] == Code.RUN) & (table[:, BODY] == index)] += sum(made)
    for index, unit in enumerate(program.stream.units):
        waits = (table[:, CODE] == Code.WAIT_REDUCE) & (table[:, REF] == index)
        change[waits] -= copies.get(unit, 0)


def _rises(
    program: RankProgram, signatures: Mapping[str, Signature], copies: Mapping[str, int]
) -> Bytes:
    """For each instruction, what it adds at its highest to what was alive before it."""
    stream = program.stream
    units = {stage: len(names) for stage, names in program.stages}
    received = {buffer.name for buffer in program.buffers if buffer.kind in RECEIVED}
    rises = np.zeros(len(stream), dtype=np.int64)
    runs = np.flatnonzero(stream.table[:, CODE] == Code.RUN)
    found: dict[tuple[int, int], int] = {}
    by_owned: dict[tuple[int, frozenset[str]], int] = {}
    keys: list[tuple[int, int]] = stream.table[runs][:, (BODY, READS)].tolist()
    for row, (body, reads) in zip(runs.tolist(), keys, strict=True):
        rise = found.get((body, reads))
        if rise is None:
            names = program.bodies[body].reads
            owned = frozenset(
                name
                for name, operand in zip(names, stream.operands[reads], strict=True)
                if operand.last and operand.buffer not in received
            )
            if (body, owned) not in by_owned:
                its = program.bodies[body]
                by_owned[body, owned] = rise_of(its, units[its.stage], owned, signatures, copies)
            rise = found[body, reads] = by_owned[body, owned]
        rises[row] = rise
    return rises
