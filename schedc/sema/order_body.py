"""``order on rank r { … }``: the operations of each rank as they are written."""

from __future__ import annotations

import numpy as np

from schedc.diagnostics import DiagnosticError
from schedc.ir.order import Table
from schedc.sema.body import Arranged, Body, Mistake, Placed, raise_shared
from schedc.sema.issue import MOST_OPERATIONS, Issue
from schedc.sema.scope import Scope
from schedc.sema.statements import compile_block, uses_counters
from schedc.sema.values import Frame
from schedc.syntax import ast


def compile_order(node: ast.OrderBody, scope: Scope) -> Body:
    """The body of an ``order``; it does not depend on costs."""
    inner = scope.inner()
    slot = inner.bind(node.variable, node.span)
    run = compile_block(node.body, inner, uses_counters(node.body))

    def arrange(frame: Frame, placed: Placed) -> Arranged:
        tables: list[Table] = []
        pairs: list[tuple[int, ...]] = []
        mistakes: list[Mistake] = []
        room = 4 * MOST_OPERATIONS
        for rank, held in enumerate(placed.stages_of):
            issue = Issue(rank, len(placed.rank_of), placed.microbatches, held, room)
            frame[slot] = rank
            try:
                run(frame, issue)
            except DiagnosticError as error:
                mistakes += [(rank, mistake) for mistake in error.diagnostics]
                if any(mistake.code == "E209" for mistake in error.diagnostics):
                    break
                continue
            room -= len(issue.rows)
            tables.append(np.frombuffer(issue.rows, dtype=np.int32).reshape(-1, 4))
            pairs.append(tuple(issue.pairs))
        raise_shared(mistakes, placed.at)
        return Arranged(tuple(tables), tuple(pairs) if any(pairs) else ())

    return Body(arrange, by_costs=False)
