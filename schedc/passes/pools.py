"""Buffer pools of a rank: what kinds of buffers it has, and what one slot of each holds."""

from __future__ import annotations

from schedc.program.kept import kept_by_F, kept_by_I
from schedc.program.program import Buffer, BufferKind
from schedc.program.signature import Model, Value


def make_pools(
    model: Model, units_of: dict[int, tuple[str, ...]], split: bool
) -> tuple[Buffer, ...]:
    """The pools of a rank that holds the stages ``units_of`` (stage → units), still without slots.

    ``saved<s>`` and ``owed<s>`` belong to one stage; all others serve every stage of the rank.
    ``split`` says whether the rank's order has I and W (else nothing is owed between them).
    """
    pools: dict[str, Buffer] = {}

    def add(name: str, kind: BufferKind, value: Value) -> None:
        pools[name] = Buffer(name, kind, value.shape, value.dtype, value.bytes, 0)

    for stage, names in units_of.items():
        units = tuple(model.unit(name) for name in names)
        first, last = (model.graphs[f"{unit.graphs}.F"] for unit in (units[0], units[-1]))
        for value in (*first.inputs, *last.inputs, *last.outputs):
            if value.role == "tokens" or value.role == "labels" or value.role == "loss":
                add(value.role, value.role, value)
            elif value.role == "x" and units[0].kind != "embedding":
                add("x", "x", value)
                add("dx", "dx", value)
            elif value.role == "y":
                add("y", "y", value)
                add("dy", "dy", value)
        saved, owed = kept_by_F(model, units), kept_by_I(model, units)
        pools[f"saved{stage}"] = Buffer(f"saved{stage}", "saved", (), "", saved, 0)
        if split:
            pools[f"owed{stage}"] = Buffer(f"owed{stage}", "owed", (), "", owed, 0)
    return tuple(pools.values())
