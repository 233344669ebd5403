"""Costs, exact: what an operation of each stage takes and what it keeps in memory."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs per microbatch for 1/P of the model, as ``--cost`` gives them.

    ``comm`` is the latency of an edge between two ranks. ``mem_I`` is the share of an operation's
    activations that I frees at its end (W frees the rest). ``overlap`` is what a slot of two
    operations costs, as a share of their sum; never less than the longer one.
    """

    F: Fraction = Fraction(1)
    I: Fraction = Fraction(1)  # noqa: E741
    W: Fraction = Fraction(1)
    comm: Fraction = Fraction(0)
    mem_I: Fraction = Fraction(1, 2)
    overlap: Fraction = Fraction(1)

    @property
    def B(self) -> Fraction:
        return self.I + self.W

    def of_stages(self, ranks: int, stages: int) -> StageCosts:
        """Every stage's costs where all stages are alike: a stage is ranks/stages of a unit."""
        share = Fraction(ranks, stages)
        return StageCosts(
            F=(self.F * share,) * stages,
            I=(self.I * share,) * stages,
            W=(self.W * share,) * stages,
            comm=self.comm,
            units=(share,) * stages,
            mem_I=self.mem_I,
            overlap=self.overlap,
        )


@dataclass(frozen=True, slots=True)
class StageCosts:
    """Costs of each stage; ``units[s]`` is what one microbatch keeps there, in activation units."""

    F: tuple[Fraction, ...]
    I: tuple[Fraction, ...]  # noqa: E741
    W: tuple[Fraction, ...]
    comm: Fraction
    units: tuple[Fraction, ...]
    mem_I: Fraction = Fraction(1, 2)
    overlap: Fraction = Fraction(1)

    @property
    def uniform(self) -> bool:
        """All stages have equal costs and memory, messages are free, overlaps no cheaper."""
        columns = (self.F, self.I, self.W, self.units)
        return (
            self.comm == 0
            and self.overlap == 1
            and all(len(set(column)) == 1 for column in columns)
        )
