"""Short ways to write a schedule and to read the order it makes."""

from schedc.diagnostics import DiagnosticError, render
from schedc.ir.order import Op
from schedc.sema.library import load_text
from schedc.sema.schedule import Instance, instantiate


def schedule_of(body: str, before: str = "", stages: str = "", place: str = "s") -> str:
    """The text of a schedule `s` whose order is ``body``."""
    return (
        f"schedule s {{ {stages} place stage s on rank {place} {before}\n"
        f"order on rank r {{ {body} }} }}"
    )


def run(text: str, P: int = 1, M: int = 4, **arguments: object) -> Instance:
    """The first schedule of ``text``, instantiated."""
    library = load_text("test.sched", text)
    return instantiate(library, library.local_schedules[0], P, M, arguments)


def tasks(instance: Instance, rank: int = 0) -> str:
    """The order of a rank as ``F0.1 B0.1``: letter, stage, microbatch."""
    return " ".join(
        f"{task.op.name}{task.stage}.{task.microbatch}" for task in instance.order.tasks(rank)
    )


def value_of(expression: str, P: int = 4, M: int = 8) -> str:
    """The value of an expression as a note prints it."""
    text = 'schedule s { place stage s on rank s let x = %s note "{x}" order on rank r { } }'
    return run(text % expression, P, M).notes[0]


def codes_of(text: str, P: int = 2, M: int = 4) -> list[str]:
    """The codes of everything that is wrong with ``text``; checks that each has a place."""
    try:
        run(text, P, M)
    except DiagnosticError as error:
        found = error.diagnostics
    else:
        return []
    assert all(diagnostic.span is not None for diagnostic in found)
    assert render(found)
    return [diagnostic.code for diagnostic in found]


def microbatches(instance: Instance, op: Op, rank: int = 0) -> list[int]:
    """The microbatches of one operation, in the order of a rank."""
    return [task.microbatch for task in instance.order.tasks(rank) if task.op is op]
