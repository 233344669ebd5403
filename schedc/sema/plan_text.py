"""A plan as a ``plan`` block with every key written out: what ``--emit plan`` prints."""

from __future__ import annotations

from schedc.ir.plan import Plan
from schedc.sema.schedule import Instance
from schedc.syntax.text import escape


def print_plan(plan: Plan, instance: Instance) -> str:
    """A plan block that means ``plan`` again: settings applied, defaults spelled out."""
    mesh = plan.mesh
    layers = plan.layers if plan.layers in ("balanced", "even") else escape(plan.layers)
    rows = {
        "model": escape(plan.model),
        "sequence": str(plan.sequence),
        "batch": f"{plan.batch} in microbatches of {plan.microbatch}",
        "mesh": f"dp = {mesh.dp}, pp = {mesh.pp}, cp = {mesh.cp}, tp = {mesh.tp}",
        "schedule": instance.title,
        "layers": layers,
        "precision": str(plan.precision),
        "zero": "0",
        "recompute": "none",
        "optimizer": plan.optimizer,
        "evaluation": str(plan.evaluation),
    }
    if plan.freeze:
        rows["freeze"] = ", ".join(escape(pattern) for pattern in plan.freeze)
    lines = [f"    {key:<10} {value}" for key, value in rows.items()]
    return "\n".join([f"plan {plan.name} {{", *lines, "}"]) + "\n"
