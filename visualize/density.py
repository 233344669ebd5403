"""Large charts: operations too narrow to be seen become blocks that show shares of time.

Contract: the boxes still tile each rank's lane, and every operation is in a box or in a block.

Pseudocode: a cell narrower than the threshold joins the run before it; a run is closed at the first
cell edge past BLOCK pixels, and by any cell wider than the threshold. A run of one or two cells
stays as it is. The threshold is 0.5 px, or the least doubling of it at which the whole chart has no
more than BUDGET boxes, so that a file stays below about 2 MB.
"""

from __future__ import annotations

from dataclasses import dataclass

from schedc.ir.trace import TraceTask
from schedc.visualize.lanes import Cell, RankLane

BUDGET = 12_000
BLOCK = 8.0
LEAST = 0.5


@dataclass(frozen=True, slots=True)
class Block:
    """Cells drawn as one box: the operations in it and the share of time of each kind."""

    start: float
    end: float
    tasks: tuple[TraceTask, ...]
    shares: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Density:
    """What each rank's lane consists of, and the width in pixels below which cells merged."""

    least: float
    lanes: tuple[tuple[Cell | Block, ...], ...]

    @property
    def has_blocks(self) -> bool:
        return any(isinstance(item, Block) for lane in self.lanes for item in lane)


def thin(lanes: tuple[RankLane, ...], pixels: float) -> Density:
    """All lanes with as little merged as the budget allows; a unit of time has ``pixels``."""
    least = LEAST
    while True:
        merged = tuple(merge(lane.cells, pixels, least) for lane in lanes)
        if sum(map(len, merged)) <= BUDGET or least > 1e6:
            return Density(least, merged)
        least *= 2


def merge(cells: tuple[Cell, ...], pixels: float, least: float) -> tuple[Cell | Block, ...]:
    """``cells`` with runs of those narrower than ``least`` pixels as blocks."""
    merged: list[Cell | Block] = []
    run: list[Cell] = []

    def close() -> None:
        if len(run) > 2:
            merged.append(_block(run))
        else:
            merged.extend(run)
        run.clear()

    for cell in cells:
        narrow = (cell.end - cell.start) * pixels < least
        if not narrow or (run and run[-1].outside != cell.outside):
            close()
        if not narrow:
            merged.append(cell)
            continue
        run.append(cell)
        if (cell.end - run[0].start) * pixels >= max(BLOCK, 2 * least):
            close()
    close()
    return tuple(merged)


def _block(run: list[Cell]) -> Block:
    """The run as one; where operations overlap, each counts with its own time."""
    times: dict[str, float] = {}
    for cell in run:
        if not cell.tasks:
            times["idle"] = times.get("idle", 0.0) + cell.end - cell.start
        for task in cell.tasks:
            times[task.op] = times.get(task.op, 0.0) + task.end - task.start
    total = sum(times.values()) or 1.0
    shares = tuple((kind, times[kind] / total) for kind in sorted(times, key=_rank_of_kind))
    tasks = tuple(task for cell in run for task in cell.tasks)
    return Block(run[0].start, run[-1].end, tasks, shares)


def _rank_of_kind(kind: str) -> tuple[int, str]:
    """Top to bottom in a block: so that the backward keeps its place when the forwards end."""
    order = ("idle", "F", "R", "I", "W", "B")
    return order.index(kind) if kind in order else len(order), kind
