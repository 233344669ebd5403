"""Orders, costs and models that the passes are tested on, and views of the programs they make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property

from schedc.graph.build import build_model
from schedc.ir.cost import Costs, StageCosts
from schedc.ir.order import Op, Order, Task
from schedc.ir.timeline import Timeline
from schedc.model.config import PRESETS
from schedc.passes.lower import lower
from schedc.program.abstract import abstract_model
from schedc.program.instructions import Recv, Run, Send
from schedc.program.program import Programs, RankProgram
from schedc.program.signature import Model
from schedc.sema.library import bundled
from schedc.sema.schedule import instantiate
from schedc.simulate.order import simulate_order
from tests.simulate.orders import order_of, random_order, rows_of


def schedule(name: str, P: int, M: int, **arguments: object) -> Order:
    """The order of a bundled schedule."""
    return instantiate(bundled(), name, P, M, arguments).order


def legal_order(seed: int, P: int, M: int, S: int) -> Order:
    """A random legal order and placement of F and B, or I and W: R has no body yet."""
    order = random_order(seed, P, M, S)
    rows = [[row for row in rank if row[0] is not Op.R] for rank in rows_of(order)]
    return order_of(rows, order.rank_of, M, order.name)


def of_unequal_stages(order: Order) -> StageCosts:
    """Stage s takes (1 + s mod 3) times as long as the first; messages take a while."""
    factors = [Fraction(1 + s % 3) for s in range(order.stages)]
    return StageCosts(
        F=tuple(factors),
        I=tuple(Fraction(7, 5) * f for f in factors),
        W=tuple(Fraction(2, 3) * f for f in reversed(factors)),
        comm=Fraction(1, 2),
        units=(Fraction(order.ranks, order.stages),) * order.stages,
    )


def _alike(costs: Costs) -> Callable[[Order], StageCosts]:
    return lambda order: costs.of_stages(order.ranks, order.stages)


COSTS: dict[str, Callable[[Order], StageCosts]] = {
    "equal": _alike(Costs()),
    "latency": _alike(Costs(F=Fraction(2), comm=Fraction(1, 3))),
    "slow-links": _alike(Costs(W=Fraction(1, 4), comm=Fraction(5))),
    "unequal": of_unequal_stages,
}


@dataclass(frozen=True, eq=False)
class Case:
    """An order, simulated under some costs."""

    label: str
    timeline: Timeline

    @property
    def order(self) -> Order:
        return self.timeline.order

    @cached_property
    def lowered(self) -> Programs:
        """Its programs over a model of one layer a stage, each value in a slot of its own."""
        model, partition = abstract_model(self.order.stages)
        return lower(self.timeline, model, partition, self.order.name)

    @property
    def model(self) -> Model:
        return abstract_model(self.order.stages)[0]


SHAPES = ((1, 1), (1, 3), (2, 1), (2, 4), (3, 2), (4, 8), (4, 5))


def _orders() -> list[tuple[str, Order]]:
    found: list[tuple[str, Order]] = []
    for P, M in SHAPES:
        for name in ("gpipe", "one_f_one_b", "zb_h1"):
            found.append((f"{name}-{P}-{M}", schedule(name, P, M)))
        for V in (2, 3):
            found.append((f"interleaved{V}-{P}-{M}", schedule("interleaved", P, M, V=V)))
    for seed in range(16):
        P, M, S = 1 + seed % 4, 1 + seed % 3, 1 + (seed * 5) % 7
        found.append((f"random{seed}-{P}-{M}-{S}", legal_order(seed, P, M, S)))
    return found


@cache
def cases() -> list[Case]:
    return [
        Case(f"{label}-{name}", simulate_order(order, costs(order)))
        for label, order in _orders()
        for name, costs in COSTS.items()
        if order.ranks > 1 or name == "equal"
    ]


def runs(program: RankProgram) -> list[tuple[int, Run]]:
    """The operations of a stream, each with its row."""
    return [(row, i) for row, i in enumerate(program.stream) if isinstance(i, Run)]


def position_of(program: RankProgram) -> dict[Task, int]:
    """Which operation of its rank each task is."""
    return {run.task: i for i, (_, run) in enumerate(runs(program))}


@dataclass(frozen=True)
class Post:
    """A send or receive: its row, and how many operations of its rank stand before it."""

    row: int
    after: int
    instruction: Send | Recv

    @property
    def is_send(self) -> bool:
        return isinstance(self.instruction, Send)


def posts_of(program: RankProgram) -> list[Post]:
    """The sends and receives of a stream, in order."""
    found: list[Post] = []
    operations = 0
    for row, instruction in enumerate(program.stream):
        if isinstance(instruction, Send | Recv):
            found.append(Post(row, operations, instruction))
        operations += isinstance(instruction, Run)
    return found


def transfer_of(program: RankProgram, post: Post) -> tuple[str, int]:
    """What both ends of a message have in common: the queue's name and the number in it."""
    return str(program.queues[post.instruction.queue]), post.instruction.sequence


def consumer_of(order: Order, task: Task) -> tuple[bool, int]:
    """Who reads what ``task`` sends: (is it a forward?, its stage)."""
    return (True, task.stage + 1) if task.op is Op.F else (False, task.stage - 1)


def reader_position(program: RankProgram, order: Order, task: Task) -> int:
    """Which operation of ``program`` reads the message that ``task`` produced."""
    forward, stage = consumer_of(order, task)
    ops = (Op.F,) if forward else (Op.B, Op.I)
    found = position_of(program)
    return next(found[t] for op in ops if (t := Task(op, stage, task.microbatch)) in found)


@cache
def llama(layers: int) -> Model:
    """A real model: hidden 64, microbatches of 2 sequences of 16 tokens."""
    return build_model(replace(PRESETS["llama-test"], num_hidden_layers=layers), 2, 16)


def llama_programs(order: Order, partition: tuple[tuple[str, ...], ...]) -> Programs:
    """Lowered programs of a Llama, each value in a slot of its own."""
    layers = sum(name.startswith("layers") for names in partition for name in names)
    timeline = simulate_order(order, COSTS["equal"](order))
    return lower(timeline, llama(layers), partition, order.name)
