"""Whether the messages that a CSV writes out are those its order needs, in orders that meet.

PyTorch's runtime posts what a row says and lets the peers' posts meet first come, first served. It
accepts a file whose receives are swapped, and trains on wrong gradients, and one whose waits go
round in a circle, and hangs.
"""

from __future__ import annotations

from collections.abc import Iterator

from schedc.diagnostics import Diagnostic, DiagnosticError, Label
from schedc.exchange.torch_csv import Message, TorchSchedule
from schedc.ir.dependencies import dependencies_of
from schedc.ir.order import Op

Edge = tuple[str, int, int]
"""A message: F or B, the stage that sends it, the microbatch."""


def verify_torch_messages(schedule: TorchSchedule) -> None:
    """Raise what is wrong with the messages of ``schedule`` (E509, E503).

    *Contract.* The order is verified. Each result that another rank needs is sent once, after it is
    there, and received once, before it is read; nothing else is. Between two ranks both ends
    post the same messages in the same order; and with that no circle of waits is left.
    """
    needed = {edge: (a, b) for edge, a, b in _edges(schedule)}
    ends: dict[str, dict[Edge, Message]] = {"SEND": {}, "RECV": {}}
    mistakes: list[Diagnostic] = []
    for message in (m for row in schedule.messages for m in row):
        kind, edge = _edge_of(message)
        rank = needed.get(edge, (-1, -1))[kind == "RECV"]
        if rank != message.rank:
            why = "no other rank needs that" if rank < 0 else f"that is up to rank {rank}"
            mistakes.append(
                Diagnostic("E509", f"rank {message.rank}: {message}: {why}", message.span)
            )
        elif edge in ends[kind]:
            mistakes.append(
                Diagnostic(
                    "E509",
                    f"rank {rank}: {message} stands twice",
                    message.span,
                    (Label(ends[kind][edge].span, "first here"),),
                )
            )
        else:
            ends[kind][edge] = message
    for kind, found in ends.items():
        for edge in (edge for edge in needed if edge not in found):
            rank = needed[edge][kind == "RECV"]
            mistakes.append(Diagnostic("E509", f"rank {rank} never has {_name(kind, edge)}", None))
    if not mistakes:
        mistakes += _out_of_place(schedule, ends)
    if not mistakes:
        mistakes += _unequal_orders(schedule)
    if not mistakes:
        mistakes += _deadlock(schedule)
    if mistakes:
        raise DiagnosticError(mistakes)


def _edges(schedule: TorchSchedule) -> Iterator[tuple[Edge, int, int]]:
    """What crosses from rank to rank: the message, its sender, its receiver."""
    dependencies = dependencies_of(schedule.order)
    for node in dependencies.crosses.nonzero()[0].tolist():
        source = int(dependencies.neighbour[node])
        task = dependencies.task(source)
        kind = "F" if task.op is Op.F else "B"
        ranks = int(dependencies.rank[source]), int(dependencies.rank[node])
        yield (kind, task.stage, task.microbatch), *ranks


def _edge_of(message: Message) -> tuple[str, Edge]:
    """SEND or RECV, and the message: a receive names the stage that reads it."""
    kind, letter = message.word.split("_")
    shift = 0 if kind == "SEND" else (-1 if letter == "F" else 1)
    return kind, (letter, message.stage + shift, message.microbatch)


def _name(kind: str, edge: Edge) -> str:
    letter, stage, microbatch = edge
    reader = stage if kind == "SEND" else stage + (1 if letter == "F" else -1)
    return f"{reader}{kind}_{letter}{microbatch}"


def _out_of_place(
    schedule: TorchSchedule, ends: dict[str, dict[Edge, Message]]
) -> Iterator[Diagnostic]:
    """Sends before their result is there, receives after their reader."""
    for rank, row in enumerate(schedule.messages):
        at = {
            (("F" if task.op is Op.F else "B"), task.stage, task.microbatch): index
            for index, task in enumerate(schedule.order.tasks(rank))
            if task.op is not Op.W
        }
        for message in row:
            kind, letter = message.word.split("_")
            index = at[letter, message.stage, message.microbatch]
            if kind == "SEND" and message.after <= index:
                words = "stands before the operation whose result it sends"
            elif kind == "RECV" and message.after > index:
                words = "stands behind the operation that needs it"
            else:
                continue
            yield Diagnostic("E509", f"rank {rank}: {message} {words}", message.span)


def _unequal_orders(schedule: TorchSchedule) -> Iterator[Diagnostic]:
    """Pairs of ranks whose posts to one another are in different orders: the first of each."""
    posts: dict[tuple[int, int], list[tuple[Edge, Message]]] = {}
    sides = {edge: (a, b) for edge, a, b in _edges(schedule)}
    for row in schedule.messages:
        for message in row:
            _, edge = _edge_of(message)
            here, there = message.rank, sum(sides[edge]) - message.rank
            posts.setdefault((here, there), []).append((edge, message))
    for (here, there), mine in sorted(posts.items()):
        if here > there:
            continue
        for (edge, message), (other, its) in zip(mine, posts[there, here], strict=True):
            if edge == other:
                continue
            same_way = message.word[:4] != its.word[:4]
            yield Diagnostic(
                "E509" if same_way else "E503",
                f"rank {here} comes to {message} where rank {there} comes to {its}: "
                + (
                    "messages meet in the order they are posted, so each would get the other's"
                    if same_way
                    else "each waits for the other to take the first step"
                ),
                message.span,
                (Label(its.span, f"rank {there}"),),
                help="post the messages between two ranks in one order on both",
            )
            break


def _deadlock(schedule: TorchSchedule) -> Iterator[Diagnostic]:
    """A circle of ranks that each wait for a message which the next one sends too late.

    Where two ranks post to one another in one order, a message is there as soon as both ends have
    posted it. So it is enough to let every rank run until it waits.
    """
    order = schedule.order
    senders = {edge: (a, b) for edge, a, b in _edges(schedule)}
    waits = [_waits(schedule, rank) for rank in range(order.ranks)]
    reached, posted = [0] * order.ranks, set[Edge]()
    cursor = [0] * order.ranks
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(schedule.messages):
            while reached[rank] <= len(order.tables[rank]):
                while cursor[rank] < len(row) and row[cursor[rank]].after <= reached[rank]:
                    kind, edge = _edge_of(row[cursor[rank]])
                    if kind == "SEND":
                        posted.add(edge)
                    cursor[rank], moved = cursor[rank] + 1, True
                edge = waits[rank].get(reached[rank])
                if edge is not None and edge not in posted:
                    break
                reached[rank], moved = reached[rank] + 1, True
    stuck = [rank for rank in range(order.ranks) if reached[rank] <= len(order.tables[rank])]
    if not stuck:
        return
    walk = [stuck[0]]
    while walk.count(walk[-1]) < 2:
        walk.append(senders[waits[walk[-1]][reached[walk[-1]]]][0])
    circle = walk[walk.index(walk[-1]) : -1]
    labels: list[Label] = []
    for rank in circle:
        edge = waits[rank][reached[rank]]
        span = order.span(rank, reached[rank])
        assert span is not None
        source = senders[edge][0]
        words = f"rank {rank} waits here for {_name('SEND', edge)}, which rank {source} posts later"
        labels.append(Label(span, words))
    yield Diagnostic(
        "E503",
        f"the messages deadlock: {len(circle)} ranks wait for one another",
        labels[0].span,
        tuple(labels),
        help="send a result right behind the operation that makes it",
    )


def _waits(schedule: TorchSchedule, rank: int) -> dict[int, Edge]:
    """The message that each operation of a rank waits for, by its place."""
    dependencies = dependencies_of(schedule.order)
    first, last = (int(dependencies.first[rank + shift]) for shift in (0, 1))
    crosses = dependencies.crosses
    found: dict[int, Edge] = {}
    for node in range(first, last):
        if crosses[node]:
            task = dependencies.task(int(dependencies.neighbour[node]))
            kind = "F" if task.op is Op.F else "B"
            found[node - first] = kind, task.stage, task.microbatch
    return found
