"""The communicators of a run: which there are, and the one order in which all ranks make them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch.distributed import ProcessGroup

from schedc.ir.mesh import Mesh

SUMS: tuple[tuple[str, ...], ...] = (("dp",), ("pp",), ("dp", "pp"))
"""The sets of axes that programs sum over."""

KINDS = ("act", "grad")
"""The kinds of queues: each has a communicator of its own in every pipeline group."""

NewGroup = Callable[[tuple[int, ...]], ProcessGroup | None]
"""Makes a communicator of some ranks. All ranks of the world call it, also those outside."""


@dataclass(frozen=True, slots=True)
class Groups:
    """One rank's communicators, by kind of queue and by the axes of a sum; None: a group of one.

    ``tie`` is that of the two pipeline ranks that tie a gradient, where this rank is one of them.

    ``made`` are the distinct ones in the order in which they were made, with their ranks.
    """

    queues: dict[str, ProcessGroup]
    sums: dict[tuple[str, ...], ProcessGroup | None]
    tie: ProcessGroup | None
    made: tuple[tuple[tuple[int, ...], ProcessGroup], ...]


def make_groups(mesh: Mesh, rank: int, new: NewGroup, tied: tuple[int, ...] = ()) -> Groups:
    """All communicators of the world, of which ``rank`` keeps its own.

    ``tied`` are the two pipeline ranks that tie a gradient, if there are. The order of the calls
    depends on the mesh and on these alone. Sums over equal ranks share a communicator;
    no message shares one with a sum. Groups of one get none.
    """
    made: list[tuple[tuple[int, ...], ProcessGroup]] = []

    def make(ranks: tuple[int, ...]) -> ProcessGroup | None:
        group = new(ranks) if len(ranks) > 1 else None
        if group is None or rank not in ranks:
            return None
        made.append((ranks, group))
        return group

    queues: dict[str, ProcessGroup] = {}
    for ranks in mesh.groups("pp"):
        for kind in KINDS:
            group = make(ranks)
            if group is not None:
                queues[kind] = group
    sums: dict[tuple[str, ...], ProcessGroup | None] = {}
    of_ranks: dict[tuple[int, ...], ProcessGroup | None] = {}
    for axes in SUMS:
        for ranks in mesh.groups(*axes):
            if ranks not in of_ranks:
                of_ranks[ranks] = make(ranks)
            if rank in ranks:
                sums[axes] = of_ranks[ranks]
    tie: ProcessGroup | None = None
    for pipeline in mesh.groups("pp") if tied else ():
        ranks = tuple(pipeline[pp] for pp in tied)
        if ranks not in of_ranks:
            of_ranks[ranks] = make(ranks)
        if rank in ranks:
            tie = of_ranks[ranks]
    return Groups(queues, sums, tie, tuple(made))
