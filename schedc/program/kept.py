"""What a stage keeps between its operations: the bytes of a slot of saved and owed buffers."""

from __future__ import annotations

from schedc.program.signature import Model, Unit


def kept_by_F(model: Model, units: tuple[Unit, ...]) -> int:
    """Bytes of a stage's saved tensors that no other buffer and no parameter owns."""
    total = 0
    for j, unit in enumerate(units):
        graph = model.graphs[f"{unit.graphs}.F"]
        saved = graph.outputs_of("saved")
        total += sum(value.bytes for value in saved if value.alias is None)
        if j > 0 and any(value.alias == "x" for value in saved):
            total += graph.inputs_of("x")[0].bytes  # the hidden states between two units
    return total


def kept_by_I(model: Model, units: tuple[Unit, ...]) -> int:
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
