"""Tied embeddings on two ranks: their two gradients are summed before the norm."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from schedc.program.instructions import (
    CODE,
    COLUMNS,
    PEER,
    READS,
    REF,
    WRITES,
    Code,
    Stream,
    Table,
)
from schedc.program.program import Programs, RankProgram
from schedc.program.signature import Model
from schedc.program.work import tied_parameter


def tie_embeddings(programs: Programs, model: Model) -> Programs:
    """Programs whose two copies of a tied parameter have one gradient, and so stay equal.

    Both copies begin equal and each rank keeps its own state of the optimizer: equal gradients,
    norm and learning rate give equal bits. Where both units lie on one rank they share storage and
    gradient, and nothing is to be done; nor where the parameter is frozen.

    The sum over dp comes first. Each half of the gradient is then reduced as soon as its unit's
    last W is done, while others still compute, and replicas have equal halves before the tie, which
    adds just two numbers: equal bits everywhere. The other way round, both reductions would begin
    at the end, after the tie.

    The tie stands behind all messages and reductions of its rank, so that it holds up none of them
    where a rank's communication shares one queue. Nothing is lost by it: the embedding's last W
    ends its rank's stream.

    Contract: no program ties yet; gradients are reduced where there are replicas.

    Pseudocode::

        on the ranks of the embedding and of the head: tie, wait tie, right before norm
    """
    tie = tied_parameter(model.units)
    if tie is None:
        return programs
    ranks = {unit: p.rank for p in programs for unit in p.units if unit in tie.places}
    (first, rank), (second, other) = ranks.items()
    if rank == other:
        return programs
    peers = {rank: (first, other), other: (second, rank)}
    return tuple(_with_tie(p, *peers[p.rank]) if p.rank in peers else p for p in programs)


def _with_tie(program: RankProgram, unit: str, peer: int) -> RankProgram:
    """Rows that others refer to (sends and receives) stand before ``norm``: references hold."""
    stream = program.stream
    norm = int((stream.table[:, CODE] == Code.NORM).nonzero()[0][0])
    added: Table = np.full((2, COLUMNS), -1, dtype=np.int32)
    added[:, CODE] = Code.TIE, Code.WAIT_TIE
    added[:, (READS, WRITES)] = 0
    added[0, PEER] = peer
    added[0, REF] = stream.units.index(unit)
    table = np.concatenate([stream.table[:norm], added, stream.table[norm:]])
    return replace(program, stream=Stream(table, stream.operands, stream.units, stream.places))
