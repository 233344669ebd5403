"""What one rank has issued so far: its operations, and the counters ``F* B* I* W*``."""

from __future__ import annotations

from array import array
from collections import deque

from schedc.diagnostics import Diagnostic, DiagnosticError, Span
from schedc.ir.order import Op
from schedc.sema.values import Value, kind, show

MOST_OPERATIONS = 8_000_000
"""Operations of a schedule on all ranks together."""


def refuse_large(stages: int, microbatches: int, span: Span | None) -> None:
    """Each stage and microbatch has a forward and a backward at least."""
    least = 2 * stages * microbatches
    if least > MOST_OPERATIONS:
        raise DiagnosticError(
            Diagnostic(
                "E209",
                f"{show(stages)} stages and {microbatches} microbatches make at least "
                f"{show(least)} operations; the most allowed is {MOST_OPERATIONS}",
                span,
            )
        )


class Issue:
    """The operations of one rank, in order, and which of them the counters will name next.

    ``F*(s)`` is the first microbatch of stage ``s`` whose forward this rank has not issued; ``B*``
    and ``I*`` count backwards alike, sharing one counter, and owe only what was forwarded. ``W*``
    is the weight gradient owed longest: of the I issued first that has no W yet.
    """

    def __init__(
        self, rank: int, stages: int, microbatches: int, held: tuple[int, ...], room: int
    ) -> None:
        self.rank = rank
        self.stages = stages
        self.microbatches = microbatches
        self.held = frozenset(held)
        self.stages_held = held
        self.room = room
        """Operations that may still be issued."""
        self.rows = array("i")
        """Four numbers an operation: the columns of :class:`schedc.ir.order.Order`."""
        self.pairs: list[int] = []
        """Rows that share a slot with the next one."""
        self._done = {
            Op.F: {stage: bytearray(microbatches) for stage in held},
            Op.I: {stage: bytearray(microbatches) for stage in held},
            Op.W: {stage: bytearray(microbatches) for stage in held},
        }
        self._next = {(op, stage): 0 for op in (Op.F, Op.I) for stage in held}
        self._owed: deque[tuple[int, int]] = deque()
        self._owed_by_stage: dict[int, deque[int]] = {stage: deque() for stage in held}

    # ---- explicit operations --------------------------------------------------------------

    def check(self, op: Op, stage: Value, microbatch: Value, span: Span) -> DiagnosticError:
        """The error for an operation that this rank cannot issue."""
        for what, value in (("stage", stage), ("microbatch", microbatch)):
            if type(value) is not int:
                return self.fault(
                    "E204",
                    f"the {what} of {op.name} is {kind(value)}, {show(value)}; "
                    "it must be a whole number",
                    span,
                )
        shown = f"{op.name}({show(stage)}, {show(microbatch)})"
        assert isinstance(stage, int)
        if not 0 <= stage < self.stages:
            return self.fault(
                "E207",
                f"{shown} names stage {show(stage)}, but the stages are 0..{self.stages}",
                span,
            )
        if stage not in self.held:
            return self.fault(
                "E303",
                f"{shown} stands on rank {self.rank}, which does not hold stage {stage}: "
                f"it holds {_listed(self.stages_held)}",
                span,
            )
        return self.fault(
            "E207",
            f"{shown} names microbatch {show(microbatch)}, but the microbatches are "
            f"0..{self.microbatches}",
            span,
        )

    def record(self, op: Op, stage: int, microbatch: int) -> None:
        """Tell the counters that an operation was issued."""
        if op is Op.F:
            self._done[Op.F][stage][microbatch] = 1
        elif op is Op.B:
            self._done[Op.I][stage][microbatch] = 1
        elif op is Op.I:
            self._done[Op.I][stage][microbatch] = 1
            self._owed.append((stage, microbatch))
            self._owed_by_stage[stage].append(microbatch)
        elif op is Op.W:
            self._done[Op.W][stage][microbatch] = 1

    # ---- counters -------------------------------------------------------------------------

    def next(self, op: Op, stage: Value | None, span: Span) -> tuple[int, int]:
        """The stage and microbatch that a counter names."""
        if stage is None:
            if op is Op.W:
                return self._oldest_weight_gradient(span)
            if len(self.stages_held) != 1:
                raise self.fault(
                    "E208",
                    f"`{op.name}*` does not say which stage: rank {self.rank} holds "
                    f"{_listed(self.stages_held)}",
                    span,
                    f"write `{op.name}*(stage)`",
                )
            stage = self.stages_held[0]
        if type(stage) is not int or stage not in self.held:
            raise self.check(op, stage, 0, span)
        if op is Op.W:
            return stage, self._oldest_of_stage(stage, span)
        return stage, self._next_microbatch(op, stage, span)

    def _next_microbatch(self, op: Op, stage: int, span: Span) -> int:
        counted = Op.F if op is Op.F else Op.I
        done = self._done[counted][stage]
        at = done.find(0, self._next[counted, stage])
        self._next[counted, stage] = at if at >= 0 else self.microbatches
        if at < 0:
            what = "forwards" if op is Op.F else "backwards"
            raise self.fault(
                "E208",
                f"`{op.name}*({stage})` on rank {self.rank}: all {self.microbatches} {what} of "
                f"stage {stage} are issued already",
                span,
            )
        if op is not Op.F and not self._done[Op.F][stage][at]:
            raise self.fault(
                "E208",
                f"`{op.name}*({stage})` on rank {self.rank}: the next backward of stage {stage} "
                f"is microbatch {at}, but F({stage}, {at}) is not issued yet",
                span,
            )
        return at

    def _oldest_weight_gradient(self, span: Span) -> tuple[int, int]:
        while self._owed:
            stage, microbatch = self._owed.popleft()
            if not self._done[Op.W][stage][microbatch]:
                return stage, microbatch
        raise self.fault("E208", f"`W*` on rank {self.rank}: no weight gradient is owed", span)

    def _oldest_of_stage(self, stage: int, span: Span) -> int:
        owed = self._owed_by_stage[stage]
        while owed:
            microbatch = owed.popleft()
            if not self._done[Op.W][stage][microbatch]:
                return microbatch
        raise self.fault(
            "E208",
            f"`W*({stage})` on rank {self.rank}: no weight gradient of stage {stage} is owed",
            span,
        )

    def fault(
        self, code: str, message: str, span: Span, help: str | None = None
    ) -> DiagnosticError:
        return DiagnosticError(Diagnostic(code, message, span, help=help))


def _listed(stages: tuple[int, ...]) -> str:
    if not stages:
        return "no stage"
    if len(stages) == 1:
        return f"stage {stages[0]}"
    shown = [str(stage) for stage in stages[:12]] + (["…"] if len(stages) > 12 else [])
    return f"stages {', '.join(shown)}"
