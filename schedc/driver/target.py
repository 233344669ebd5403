"""What a user names on the command line: a file, ``file:name``, or a bundled name."""

from __future__ import annotations

from dataclasses import dataclass

from schedc.diagnostics import Diagnostic, DiagnosticError
from schedc.sema.library import Library, open_library


@dataclass(frozen=True, slots=True)
class Target:
    """A schedule or a plan, and the library it stands in."""

    library: Library
    name: str

    @property
    def is_plan(self) -> bool:
        return self.name in self.library.plans or (
            self.name not in self.library.schedules and self._bundled_plan()
        )

    def _bundled_plan(self) -> bool:
        from schedc.sema.library import bundled

        return self.name in bundled().plans


def choose_target(text: str) -> Target:
    """The one thing that ``text`` names: a file's only plan, else its only schedule.

    Raises DiagnosticError where a file holds several, saying which names there are.
    """
    library, name = open_library(text)
    if name is not None:
        return Target(library, name)
    for names, what in ((library.local_plans, "plans"), (library.local_schedules, "schedules")):
        if len(names) == 1:
            return Target(library, names[0])
        if names:
            listed = ", ".join(f"`{found}`" for found in names)
            raise DiagnosticError(
                Diagnostic(
                    "E221",
                    f"{text} holds several {what}: {listed}",
                    help=f"choose one: {text}:{names[0]}",
                )
            )
    raise DiagnosticError(Diagnostic("E221", f"{text} defines no schedule and no plan"))


def all_targets(text: str) -> tuple[Target, ...]:
    """Everything that ``text`` names: all that a file defines, in order, or the one thing chosen.

    Raises DiagnosticError with every mistake of form and names in the file.
    """
    library, name = open_library(text)
    if name is not None:
        return (Target(library, name),)
    library.check()
    targets = tuple(Target(library, found) for found in library.local)
    if not targets:
        raise DiagnosticError(Diagnostic("E221", f"{text} defines no schedule and no plan"))
    return targets
