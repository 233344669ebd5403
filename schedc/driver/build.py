"""Compiling a plan: a schedule and a Llama become a folder of programs that torchrun can run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

from schedc.cost.estimate import Times, durations, nominal_times, stage_costs
from schedc.diagnostics import DiagnosticError, Source, Span
from schedc.driver.freeze import frozen_parameters
from schedc.graph.build import build_model
from schedc.graph.partition import partition
from schedc.ir.cost import StageCosts
from schedc.ir.order import Order
from schedc.ir.plan import Plan
from schedc.ir.timeline import Timeline
from schedc.ir.trace import Trace
from schedc.ir.verify import verify_order
from schedc.model.config import PRESETS
from schedc.model.load import load_config
from schedc.passes.drop_idle import drop_idle
from schedc.passes.pipeline import compile_programs
from schedc.program.artifact import Artifact
from schedc.program.manifest import Manifest
from schedc.program.program import Programs
from schedc.program.signature import Model
from schedc.sema.claims import ClaimResult, claims_to_diagnostics, evaluate_claims
from schedc.sema.library import Library
from schedc.sema.plan import plan_and_instance
from schedc.sema.schedule import Instance
from schedc.simulate.figures import figures
from schedc.simulate.order import simulate_order
from schedc.simulate.program import simulate_programs
from schedc.simulate.program_memory import memory_of
from schedc.simulate.program_trace import trace_of_programs

MESSAGE = Fraction(1, 16)
"""Of the longest forward: what a message is taken to last where posts and waits are placed, and
where a policy or pattern makes an order."""


@dataclass(frozen=True, eq=False)
class Build:
    """A compiled plan: every level that can be printed, and the artifact."""

    plan: Plan
    instance: Instance
    model: Model
    stages: tuple[tuple[str, ...], ...]
    timeline: Timeline
    claims: tuple[ClaimResult, ...]
    programs: Programs
    trace: Trace
    artifact: Artifact


def compile_plan(library: Library, name: str, settings: Mapping[str, str]) -> Build:
    """Compile the plan ``name``; nothing is written.

    Raises DiagnosticError, also where a claim of its schedule is false.
    """
    plan, instance = plan_and_instance(library, name, settings)
    if not instance.by_costs:
        verify_order(plan.order)
    config = load_config(_model_path(plan), plan.spans.get("model"))
    span = _span(plan, "sequence", "model")
    frozen = frozen_parameters(plan, config)
    model = build_model(
        config,
        plan.microbatch,
        plan.sequence,
        plan.precision.model,
        tail=plan.tail,
        frozen=frozen,
        span=span,
    )
    stages = partition(model, plan.order.stages, plan.layers, _span(plan, "layers", "schedule"))
    times = nominal_times(model)
    costs = stage_costs(times, model, stages, plan.mesh.pp)
    if instance.by_costs:
        instance = instance.for_costs(_with_latency(costs))
        plan = replace(plan, order=instance.order)
        verify_order(plan.order)
    order = _portable(plan.order)
    claims = evaluate_claims(instance, figures(simulate_order(order, costs), costs), costs)
    if false := claims_to_diagnostics(claims):
        raise DiagnosticError(false)
    timeline = simulate_order(drop_idle(order, model, stages), costs)
    forwards = simulate_order(_portable(plan.evaluation_order), costs)
    replicas, reduce = plan.mesh.dp, plan.precision.reduce
    programs, evaluation = (
        compile_programs(_with_messages(each, costs), model, stages, replicas, reduce)
        for each in (timeline, forwards)
    )
    manifest = _manifest(plan, instance, model, timeline, stages, costs)
    trace = predict(manifest, programs, times)
    artifact = Artifact(manifest, programs, evaluation, model.sources, trace.to_json())
    return Build(plan, instance, model, stages, timeline, claims, programs, trace, artifact)


def _with_latency(costs: StageCosts) -> StageCosts:
    return replace(costs, comm=MESSAGE * max(costs.F))


def _with_messages(timeline: Timeline, costs: StageCosts) -> Timeline:
    """The timeline for lowering: what a message takes is not known yet, but it is not nothing.

    Posts and waits that were placed as if messages came at once would stall once they do not.
    """
    return simulate_order(timeline.order.one_by_one(), _with_latency(costs))


def predict(manifest: Manifest, programs: Programs, times: Times) -> Trace:
    """The predicted timeline of a compiled plan's step, with its memory."""
    timeline = simulate_programs(programs, durations(times, manifest.mesh.pp, manifest.units))
    memory = memory_of(programs, manifest.signatures, manifest.units, manifest.optimizer)
    title = f"{manifest.name}: {manifest.schedule}, {manifest.mesh}"
    notes = (times.note,) if times.note else ()
    return trace_of_programs(timeline, memory, title=title, unit="s", notes=notes)


def _model_path(plan: Plan) -> str:
    """A preset's name, or a path: as written, it stands relative to the plan's file."""
    span = plan.spans.get("model")
    if plan.model in PRESETS or span is None or Path(plan.model).is_absolute():
        return plan.model
    beside = Path(span.source.name).parent / plan.model
    return str(beside) if beside.exists() else plan.model


def _portable(order: Order) -> Order:
    """``order`` with places that name files without their folders.

    What is compiled says nothing of this machine, and is the same from wherever a file is named.
    """
    short = {
        source: Source(Path(source.name).name, source.text)
        for source in {span.source for span in order.spans}
    }
    return replace(order, spans=tuple(replace(s, source=short[s.source]) for s in order.spans))


def _span(plan: Plan, *keys: str) -> Span | None:
    """The place of the first of ``keys`` that the plan wrote."""
    return next((plan.spans[key] for key in keys if key in plan.spans), None)


def _manifest(
    plan: Plan,
    instance: Instance,
    model: Model,
    timeline: Timeline,
    stages: tuple[tuple[str, ...], ...],
    costs: StageCosts,
) -> Manifest:
    sources = {span.source for span in (*plan.order.spans, *plan.spans.values())}
    graphs = {name: signature.digest for name, signature in model.graphs.items()}
    times = {
        "F": [str(cost) for cost in costs.F],
        "I": [str(cost) for cost in costs.I],
        "W": [str(cost) for cost in costs.W],
        "comm": str(costs.comm),
    }
    return Manifest(
        name=plan.name,
        schedule=instance.title,
        mesh=plan.mesh,
        sequence=plan.sequence,
        batch=plan.batch,
        microbatch=plan.microbatch,
        microbatches=plan.microbatches,
        precision=plan.precision,
        optimizer=plan.optimizer,
        evaluation=plan.evaluation,
        rank_of=plan.order.rank_of,
        stages=stages,
        units=model.units,
        signatures=model.graphs,
        config=model.config,
        sources=_lines(timeline.order.spans),
        hashes={
            "source": _hash(sorted({_with_line_feeds(source.text) for source in sources})),
            "model": _hash(model.config),
            "costs": _hash(times),
            "graphs": _hash(graphs),
        },
    )


def _with_line_feeds(text: str) -> str:
    """``text`` as it is checked out anywhere: lines that end in a line feed, the last one too."""
    return text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n") + "\n"


def _lines(spans: Iterable[Span]) -> dict[str, dict[int, str]]:
    """The source lines that operations were written on."""
    lines: dict[str, dict[int, str]] = {}
    for span in spans:
        lines.setdefault(span.source.name, {})[span.line] = span.source.line(span.line)
    return {name: dict(sorted(found.items())) for name, found in sorted(lines.items())}


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
