"""Names: which variable of the frame a name stands for, and what may be named where."""

from __future__ import annotations

from dataclasses import dataclass, field

from schedc.diagnostics import Diagnostic, DiagnosticError, Span
from schedc.syntax.hints import did_you_mean

GIVEN = ("P", "M", "S", "true", "false")
"""Names that every schedule knows and none may bind."""

P, M, S, TRUE, FALSE = range(1, 6)
"""Their slots of the frame; slot 0 counts steps."""

FIGURES = (
    *("makespan", "longest_stage", "lower_bound", "bubble", "bubble_rate"),
    *("bubble_rate_longest_stage", "messages", "uniform"),
)
"""Figures of a schedule that a ``check`` may name."""

RANK_FIGURES = ("peak_activations", "busy", "bubble")
"""Figures of a rank: ``busy(r)``."""

STAGE_COSTS = ("F", "B", "I", "W")
"""Costs of a stage: ``T.F(s)``, or ``T.F`` where all stages are alike."""

FUNCTIONS = ("min", "max", "sum", "abs", "ceil", "floor", "len")


def not_available_yet(name: str) -> bool:
    """A figure that later versions know."""
    return name == "peak_bytes" or name.startswith("step_")


@dataclass(slots=True)
class Layout:
    """The frame of one schedule while it is being laid out, and the mistakes found on the way."""

    size: int = len(GIVEN) + 1
    figures: dict[str, int] = field(default_factory=dict[str, int])
    diagnostics: list[Diagnostic] = field(default_factory=list[Diagnostic])
    stages_known: bool = True
    span_indices: dict[Span, int] = field(default_factory=dict[Span, int])

    def slot(self) -> int:
        self.size += 1
        return self.size - 1

    def figure(self, name: str) -> int:
        """The slot that will hold a figure when checks are evaluated."""
        if name not in self.figures:
            self.figures[name] = self.slot()
        return self.figures[name]

    def raise_mistakes(self) -> None:
        """Raise what was reported, each mistake once: parts of a claim are compiled twice."""
        if self.diagnostics:
            raise DiagnosticError(dict.fromkeys(self.diagnostics))

    def report(self, code: str, message: str, span: Span, help: str | None = None) -> None:
        self.diagnostics.append(Diagnostic(code, message, span, help=help))


class Scope:
    """The names visible at one place; inner scopes see outer ones, later lets hide earlier ones."""

    def __init__(self, layout: Layout, outer: Scope | None = None) -> None:
        self.layout = layout
        self.outer = outer
        self.names: dict[str, int] = {}
        self.checks: Scope | None = outer.checks if outer is not None else None
        """The scope of the ``check`` this one is in, if any."""
        self.rank = 0
        """In the scope of a check: the slot of the free rank ``r``, and whether it is named."""
        self.rank_used = False
        if outer is None:
            self.names.update((name, slot) for slot, name in enumerate(GIVEN, 1))

    def inner(self) -> Scope:
        return Scope(self.layout, self)

    def for_checks(self) -> Scope:
        """An inner scope that also knows figures, costs and the free rank ``r``."""
        scope = self.inner()
        scope.checks = scope
        return scope

    def bind(self, name: str, span: Span) -> int:
        """A new variable; hides an earlier one of its name."""
        if name in GIVEN:
            self.layout.report(
                "E218",
                f"`{name}` is given and cannot be bound",
                span,
                "choose another name",
            )
        self.names[name] = self.layout.slot()
        return self.names[name]

    def find(self, name: str) -> int | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        return None

    def visible(self) -> set[str]:
        found: set[str] = set()
        scope: Scope | None = self
        while scope is not None:
            found |= scope.names.keys()
            scope = scope.outer
        return found | set(FIGURES) if self.checks is not None else found

    def slot_of(self, name: str, span: Span) -> int | None:
        """The slot of a variable or figure; None (reported) where there is none."""
        slot = self.find(name)
        if slot is not None:
            if slot == S and not self.layout.stages_known:
                self.layout.report(
                    "E201",
                    "`S` is not known before `stages`",
                    span,
                    "move this below the `stages` line, or use P",
                )
            return slot
        if self.checks is not None and name == "r":
            self.checks.rank_used = True
            return self.checks.rank
        if self.checks is not None and name in FIGURES:
            return self.layout.figure(name)
        self._report_unknown(name, span)
        return None

    def _report_unknown(self, name: str, span: Span) -> None:
        report = self.layout.report
        if not_available_yet(name):
            report("E110", f"`{name}` is not available yet: it needs a plan's program", span)
        elif name in (*FIGURES, *RANK_FIGURES) and self.checks is None:
            report("E201", f"`{name}` is a figure: only `check` may name it", span)
        elif name in RANK_FIGURES:
            report("E203", f"`{name}` needs a rank", span, f"write `{name}(r)`")
        elif name in FUNCTIONS:
            report("E203", f"`{name}` is a function", span, f"write `{name}(…)`")
        elif name == "T":
            report("E203", "`T` alone is no value", span, "write `T.F`, `T.B`, `T.I` or `T.W`")
        else:
            help = did_you_mean(name, self.visible())
            report("E201", f"unknown name `{name}`", span, help)
