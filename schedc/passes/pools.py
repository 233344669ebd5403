"""Buffer pools of a rank: what kinds of buffers it has, and what one slot of each holds."""

from __future__ import annotations

from schedc.program.program import Buffer, BufferKind
from schedc.program.signature import Model, Unit, Value


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
        saved, owed = _kept_by_F(model, units), _kept_by_I(model, units)
        pools[f"saved{stage}"] = Buffer(f"saved{stage}", "saved", (), "", saved, 0)
        if split:
            pools[f"owed{stage}"] = Buffer(f"owed{stage}", "owed", (), "", owed, 0)
    return tuple(pools.values())


def _kept_by_F(model: Model, units: tuple[Unit, ...]) -> int:
    """Bytes of a stage's saved tensors that no other buffer and no parameter owns."""
    total = 0
    for j, unit in enumerate(units):
        graph = model.graphs[f"{unit.graphs}.F"]
        saved = graph.outputs_of("saved")
        total += sum(value.bytes for value in saved if value.alias is None)
        if j > 0 and any(value.alias == "x" for value in saved):
            total += graph.inputs_of("x")[0].bytes  # the hidden states between two units
    return total


def _kept_by_I(model: Model, units: tuple[Unit, ...]) -> int:
    """Bytes of what a stage owes to W that no other buffer and no parameter owns."""
    total = 0
    for j, unit in enumerate(units):
        forward, backward = (model.graphs[f"{unit.graphs}.{op}"] for op in "FI")
        alias_of = {value.name: value.alias for value in forward.outputs_of("saved")}
        counted: set[str | None] = set()
        for value in backward.outputs_of("owed"):
            source = value.alias
            if source is not None and source in alias_of:
                # A saved tensor is the stage's own unless it is F's input in turn.
                source = alias_of[source] or f"saved {source}"
            between = (source == "x" and j > 0) or (source == "dy" and j < len(units) - 1)
            own = source is None or source.startswith("saved ") or between
            if own and (source is None or source not in counted):
                total += value.bytes
            counted.add(source)
    return total
