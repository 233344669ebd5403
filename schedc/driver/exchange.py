"""Schedules from and for others: PyTorch's CSV in and out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from schedc.diagnostics import Diagnostic, DiagnosticError
from schedc.driver.check import abstract_programs, evaluate_schedule
from schedc.exchange.sched_text import sched_text
from schedc.exchange.torch_csv import TorchSchedule, read_torch_csv, write_torch_csv
from schedc.exchange.torch_messages import verify_torch_messages
from schedc.ir.cost import Costs
from schedc.ir.order import Order
from schedc.ir.text import order_digest
from schedc.ir.verify import verify_order
from schedc.sema.library import Library, load_text, read_text
from schedc.sema.schedule import instantiate
from schedc.simulate.order import simulate_order
from schedc.syntax.format import format_source
from schedc.syntax.parse import make_source


def schedule_name(path: Path) -> str:
    """A name for the schedule in ``path``: its stem, made of letters, digits and ``_``."""
    name = re.sub(r"\W+", "_", path.name.split(".")[0], flags=re.ASCII).strip("_")
    return name if re.match(r"[A-Za-z_]\w", name) else f"imported_{name}".rstrip("_")


def read_verified_csv(path: Path) -> TorchSchedule:
    """The schedule of a CSV file, its order and its messages verified."""
    schedule = read_torch_csv(read_text(path, str(path)), str(path), schedule_name(path))
    verify_order(schedule.order)
    if schedule.communicates:
        verify_torch_messages(schedule)
    return schedule


def import_torch_csv(path: Path) -> tuple[str, TorchSchedule]:
    """The text of a schedule with the order of a CSV file, and what the file said."""
    schedule = read_verified_csv(path)
    order = schedule.order
    comment = f"Imported from {path.name}, a schedule of torch.distributed.pipelining."
    text = sched_text(order, comment)
    text = format_source(make_source(f"{order.name}.sched", text))
    back = instantiate(
        load_text(f"{order.name}.sched", text), order.name, order.ranks, order.microbatches, {}
    )
    assert order_digest(back.order) == order_digest(order), "the text does not say the order"
    return text, schedule


def export_torch_csv(
    library: Library, name: str, settings: Mapping[str, str], costs: Costs, messages: bool
) -> tuple[str, Order]:
    """A schedule as PyTorch's CSV, with its messages if asked for; and its order."""
    order = evaluate_schedule(library, name, settings, costs).order
    verify_order(order)
    if order.evaluates:
        raise DiagnosticError(Diagnostic("E310", f"`{name}` has no backward"))
    if not messages:
        return write_torch_csv(order), order
    timeline = simulate_order(order, costs.of_stages(order.ranks, order.stages))
    return write_torch_csv(order, abstract_programs(timeline)), order
