"""Buffer pools of a rank: what kinds of buffers it has, and what one slot of each holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from schedc.program.kept import kept_by_F, kept_by_I
from schedc.program.program import Buffer, BufferKind
from schedc.program.signature import TAIL, Model, Value


def make_pools(
    model: Model, units_of: dict[int, tuple[str, ...]], split: bool
) -> tuple[Buffer, ...]:
    """The pools of a rank that holds the stages ``units_of`` (stage → units), still without slots.

    ``saved<s>`` and ``owed<s>`` belong to one stage; all others serve every stage of the rank. A
    tail has pools of its own, but for the loss. ``split`` says whether the rank's order has I and W
    (else nothing is owed between them).
    """
    pools: dict[str, Buffer] = {}
    for tail in model.tails:
        for stage, names in units_of.items():
            for buffer in _pools_of_stage(model.of(tail), stage, names, split):
                name = pool_name(buffer.name, tail)
                pools[name] = replace(buffer, name=name)
    return tuple(pools.values())


def pool_name(name: str, tail: bool) -> str:
    """The pool for values ``name`` (``x``, ``saved3``) of the tail, or of the others."""
    return f"{name}_{TAIL}" if tail and name != "loss" else name


def _pools_of_stage(
    model: Model, stage: int, names: tuple[str, ...], split: bool
) -> Iterator[Buffer]:
    units = tuple(model.unit(name) for name in names)
    first, last = (model.graphs[f"{unit.graphs}.F"] for unit in (units[0], units[-1]))
    for value in (*first.inputs, *last.inputs, *last.outputs):
        if value.role == "tokens" or value.role == "labels" or value.role == "loss":
            yield _pool_of(value.role, value)
        elif value.role == "x" and units[0].kind != "embedding":
            yield _pool_of("x", value)
            yield _pool_of("dx", value)
        elif value.role == "y":
            yield _pool_of("y", value)
            yield _pool_of("dy", value)
    yield Buffer(f"saved{stage}", "saved", (), "", kept_by_F(model, units), 0)
    if split:
        yield Buffer(f"owed{stage}", "owed", (), "", kept_by_I(model, units), 0)


def _pool_of(kind: BufferKind, value: Value) -> Buffer:
    return Buffer(kind, kind, value.shape, value.dtype, value.bytes, 0)
