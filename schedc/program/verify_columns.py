"""What the verifier's checks share: the streams of all ranks as columns, and the findings."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
import numpy.typing as npt

from schedc.diagnostics import Diagnostic
from schedc.ir.order import Op
from schedc.program.instructions import CODE, MICROBATCH, OP, STAGE, Code
from schedc.program.print import instruction_place, instruction_text
from schedc.program.program import Programs

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
At = tuple[int, int]
"""An instruction: (rank, row)."""

MOST_OF_A_KIND = 6
"""Findings of one code that are spelled out; more are only counted."""


class Columns:
    """The tables of all ranks under one another; ``rank`` and ``row`` tell where each line is."""

    def __init__(self, programs: Programs) -> None:
        self.programs = programs
        lengths = [len(program.stream) for program in programs]
        self.offsets: Ints = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
        self.table = np.concatenate([program.stream.table for program in programs])
        self.rank: Ints = np.repeat(np.arange(len(programs)), lengths)
        self.row: Ints = np.arange(len(self.table)) - np.repeat(self.offsets[:-1], lengths)
        self.microbatches = programs[0].microbatches
        self.evaluates = programs[0].evaluates
        self.stages = sum(len(program.stages) for program in programs)

    @cached_property
    def rank_of(self) -> Ints:
        """The rank of each stage; every stage has one (checked before anything else)."""
        ranks: Ints = np.full(self.stages, -1, dtype=np.int64)
        for program in self.programs:
            for stage, _ in program.stages:
                ranks[stage] = program.rank
        return ranks

    def rows(self, *codes: Code) -> Ints:
        """The lines of the table that hold one of ``codes``."""
        return np.isin(self.table[:, CODE], codes).nonzero()[0]

    def column(self, lines: Ints, column: int) -> Ints:
        return self.table[lines, column].astype(np.int64)

    def at(self, line: int) -> At:
        return int(self.rank[line]), int(self.row[line])

    def task(self, line: int) -> str:
        """The task of a line: ``F(stage 0, microbatch 3)``."""
        row = self.table[line]
        return task_text(int(row[OP]), int(row[STAGE]), int(row[MICROBATCH]))


def task_text(op: int, stage: int, microbatch: int) -> str:
    return f"{Op(op).name}(stage {stage}, microbatch {microbatch})"


class Findings:
    """Collects diagnostics; counts those beyond the first few of a code."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        self._found: dict[str, list[Diagnostic]] = {}
        self._more: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, code: str, message: str, *at: At, help: str | None = None) -> None:
        """A finding, and the instructions that it is about."""
        found = self._found.setdefault(code, [])
        if len(found) >= MOST_OF_A_KIND:
            self._more[code] = self._more.get(code, 0) + 1
            return
        notes = tuple(self.instruction(place) for place in dict.fromkeys(at))
        found.append(Diagnostic(code, message, notes=notes, help=help))

    def note(self, code: str, message: str, notes: tuple[str, ...]) -> None:
        """A finding with notes of its own."""
        self._found.setdefault(code, []).append(Diagnostic(code, message, notes=notes))

    def each(self, code: str, lines: Ints, describe: Callable[[int], tuple[str, At]]) -> None:
        """A finding for each of ``lines``; only the first few are described."""
        for line in lines[:MOST_OF_A_KIND].tolist():
            message, at = describe(line)
            self.add(code, message, at)
        if len(lines) > MOST_OF_A_KIND:
            self._more[code] = self._more.get(code, 0) + len(lines) - MOST_OF_A_KIND

    def instruction(self, at: At) -> str:
        """``rank 1, instruction 14: recv x.0 <- rank 0 … (zb_h1.sched:5)``."""
        rank, row = at
        program = self._programs[rank]
        place = instruction_place(program, row)
        text = f"rank {rank}, instruction {row}: {instruction_text(program, row)}"
        return f"{text} ({place})" if place else text

    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """All findings, by code."""
        result: list[Diagnostic] = []
        for code, found in sorted(self._found.items()):
            result += found
            more = self._more.get(code, 0)
            if more:
                last = result[-1]
                notes = (*last.notes, f"and {more} more of this kind")
                result[-1] = Diagnostic(code, last.message, notes=notes, help=last.help)
        return tuple(result)
