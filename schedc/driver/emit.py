"""The compiler's levels as text: each printed form parses back."""

from __future__ import annotations

from collections.abc import Mapping

from schedc.diagnostics import Diagnostic, DiagnosticError
from schedc.driver.check import abstract_programs, evaluate_schedule
from schedc.driver.target import Target
from schedc.ir.cost import Costs
from schedc.ir.text import print_order
from schedc.ir.verify import verify_order
from schedc.program.program import Programs
from schedc.program.text import print_program
from schedc.sema.plan import plan_and_instance
from schedc.sema.plan_text import print_plan
from schedc.simulate.order import simulate_order
from schedc.syntax import ast
from schedc.syntax.printer import print_file


def require_plan(target: Target) -> Target:
    """Raises DiagnosticError where ``target`` is a bare schedule: it cannot be run."""
    if target.is_plan:
        return target
    raise DiagnosticError(
        Diagnostic(
            "E813",
            f"`{target.name}` is a bare schedule: without a model and a mesh there is nothing to "
            "run",
            help=f"write a plan that uses it: plan NAME {{ … schedule {target.name} }}",
        )
    )


def emit_level(
    target: Target, level: str, settings: Mapping[str, str], costs: Costs | None = None
) -> str:
    """``target`` at ``level``: source, ast, plan, order, program, graph or timeline.

    ``costs`` price a bare schedule.
    """
    library, name = target.library, target.name
    if level in ("source", "ast"):
        node = library.plan(name) if target.is_plan else library.schedule(name)
        return (
            node.span.source.text if level == "source" else print_file(ast.File((node,), node.span))
        )
    if level in ("plan", "graph", "timeline"):
        require_plan(target)
    if level == "plan":
        return print_plan(*plan_and_instance(library, name, settings))
    if target.is_plan:
        return _emit_plan(target, level, settings)
    costs = costs or Costs()
    order = evaluate_schedule(library, name, settings, costs).order
    verify_order(order)
    if level == "order":
        return print_order(order)
    stage_costs = costs.of_stages(order.ranks, order.stages)
    return _print_programs(abstract_programs(simulate_order(order, stage_costs)))


def _emit_plan(target: Target, level: str, settings: Mapping[str, str]) -> str:
    if level == "order":
        plan, instance = plan_and_instance(target.library, target.name, settings)
        if not instance.by_costs:
            verify_order(plan.order)
            return print_order(plan.order)
    from schedc.driver.build import compile_plan

    build = compile_plan(target.library, target.name, settings)
    if level == "order":
        return print_order(build.plan.order)
    if level == "program":
        return _print_programs(build.programs)
    if level == "timeline":
        return build.trace.to_json()
    return "\n\n".join(source for _, source in sorted(build.model.sources.items()))


def _print_programs(programs: Programs) -> str:
    """The programs of all ranks, one after another; each begins with its header line."""
    return "\n".join(print_program(program) for program in programs)
