"""Buffer reuse: values that never live at once share a slot."""

from __future__ import annotations

import heapq
from dataclasses import replace

from schedc.program.instructions import READS, WRITES, Operand, Stream, StreamBuilder
from schedc.program.program import Programs, RankProgram


def reuse_buffers(programs: Programs) -> Programs:
    """Programs with as few slots in each buffer as values are alive at once on that rank.

    Contract: last uses are marked. Slots are taken and freed along a rank's own stream, so reuse
    adds no wait and no dependency between ranks.

    Pseudocode::

        along the stream: a written value takes the lowest free slot of its buffer;
        after its last use its slot is free
    """
    return tuple(_reuse(program) for program in programs)


def _reuse(program: RankProgram) -> RankProgram:
    stream = program.stream
    builder = StreamBuilder(stream.units)
    free: dict[str, list[int]] = {buffer.name: [] for buffer in program.buffers}
    slots: dict[str, int] = {buffer.name: 0 for buffer in program.buffers}
    live: dict[tuple[str, int], int] = {}

    def take(operand: Operand) -> Operand:
        name = operand.buffer
        if free[name]:
            slot = heapq.heappop(free[name])
        else:
            slot = slots[name]
            slots[name] += 1
        live[name, operand.slot] = slot
        return Operand(name, slot, operand.last)

    def use(operand: Operand) -> Operand:
        return Operand(operand.buffer, live[operand.buffer, operand.slot], operand.last)

    table = stream.table.copy()
    rows: list[list[int]] = table[:, (READS, WRITES)].tolist()
    for row, (reads, writes) in enumerate(rows):
        if reads:
            used = tuple(use(operand) for operand in stream.operands[reads])
            rows[row][0] = builder.operands(used)
        if writes:
            rows[row][1] = builder.operands(tuple(take(w) for w in stream.operands[writes]))
        for old in stream.operands[reads]:
            if old.last:
                heapq.heappush(free[old.buffer], live.pop((old.buffer, old.slot)))
    table[:, (READS, WRITES)] = rows
    operands = builder.build().operands
    return replace(
        program,
        stream=Stream(table, operands, stream.units, stream.places),
        buffers=tuple(replace(b, slots=slots[b.name]) for b in program.buffers),
    )
