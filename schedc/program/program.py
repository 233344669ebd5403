"""A rank program: its buffers, queues, stream and bodies. One per pipeline rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from schedc.program.body import Body
from schedc.program.instructions import CODE, Code, Stream

BufferKind = Literal["tokens", "labels", "x", "y", "dy", "dx", "saved", "owed", "loss"]


@dataclass(frozen=True, slots=True)
class Buffer:
    """A pool of ``slots`` equal buffers.

    ``x`` and ``dy`` are received, ``y`` and ``dx`` produced (and sent, or read by the next stage on
    the same rank); each has one tensor a slot. ``saved`` and ``owed`` of a stage hold many tensors
    (``shape`` is empty, ``dtype`` is ""); ``bytes`` is what a full slot holds that no other buffer
    owns.
    """

    name: str
    kind: BufferKind
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    slots: int


@dataclass(frozen=True, slots=True)
class Queue:
    """Messages of one kind from one rank to another, first in, first out.

    The activations of a pipeline group have one communicator, the gradients another.
    """

    kind: Literal["act", "grad"]
    source: int
    target: int

    def __str__(self) -> str:
        return f"{self.kind}.{self.source}-{self.target}"


@dataclass(frozen=True, eq=False)
class RankProgram:
    """What pipeline rank ``rank`` executes in one step.

    ``stages[i]`` names the units of each local stage: (stage, units). Every dp, cp and tp
    coordinate runs the same program.
    """

    rank: int
    ranks: int
    microbatches: int
    order: str  # name and digest of the order it was made from
    stages: tuple[tuple[int, tuple[str, ...]], ...]
    buffers: tuple[Buffer, ...]
    queues: tuple[Queue, ...]
    stream: Stream
    bodies: tuple[Body, ...]

    @property
    def units(self) -> tuple[str, ...]:
        """The rank's units in model order."""
        return tuple(unit for _, units in self.stages for unit in units)

    def buffer(self, name: str) -> Buffer:
        return next(buffer for buffer in self.buffers if buffer.name == name)


Programs = tuple[RankProgram, ...]
"""The programs of all pipeline ranks, by rank."""


def tied_ranks(programs: Programs) -> tuple[int, ...]:
    """The two pipeline ranks whose programs tie a gradient, the lower first; none where none do."""
    return tuple(p.rank for p in programs if (p.stream.table[:, CODE] == Code.TIE).any())
