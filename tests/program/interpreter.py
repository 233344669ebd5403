"""A reference interpreter: what programs really do, written without a look at the verifier.

One process executes all ranks over symbolic values. Transfers and ties are rendezvous. When data
moves is not fixed by the programs, so both extremes are tried: as soon as both ends have posted;
and as late as can be, out of the sender's slot at the first wait of either end, into the receiver's
at its own. Whatever a slot holds while a receive into it is under way is garbage.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from schedc.ir.order import Op
from schedc.program.body import REDUCE_DTYPES, Reduce
from schedc.program.instructions import (
    Count,
    Instruction,
    Load,
    Norm,
    Operand,
    Recv,
    Report,
    Run,
    Send,
    Step,
    Tie,
    WaitCount,
    WaitMessage,
    WaitNorm,
    WaitReduce,
    WaitReport,
    WaitTie,
)
from schedc.program.program import Programs, RankProgram
from schedc.program.signature import Model

Value = tuple[object, ...]
GARBAGE: Value = ("garbage",)


class Wrong(Exception):
    """The programs compute something else than one step, or touch what they must not."""


class Hang(Exception):
    """The programs wait for ever."""


@dataclass
class Transfer:
    """A message, from the first of its posts on; ends are (rank, row)."""

    send: tuple[int, int] | None = None
    recv: tuple[int, int] | None = None
    value: Value | None = None
    delivered: bool = False


@dataclass
class Rank:
    program: RankProgram
    instructions: list[Instruction]
    pc: int = 0
    numbers: dict[int, int] = field(default_factory=dict)  # messages posted, by queue
    slots: dict[tuple[str, int], Value] = field(default_factory=dict)
    posts: dict[int, tuple[str, Transfer]] = field(default_factory=dict)
    queue: list[object] = field(default_factory=list)  # of all communication, in order
    posted: set[str] = field(default_factory=set)
    waited: set[object] = field(default_factory=set)
    gradients: dict[str, set[tuple[str, int]]] = field(default_factory=dict)  # by owner: of whom
    reduced: dict[str, frozenset[tuple[str, int]]] = field(default_factory=dict)
    collectives: list[str] = field(default_factory=list)
    losses: list[int] = field(default_factory=list)
    stepped: bool = False


class Interpreter:
    def __init__(
        self,
        programs: Programs,
        instructions: list[list[Instruction]],
        replicas: int,
        moving: Literal["early", "late"],
        one_queue: bool,
        rules: Rules,
    ) -> None:
        self.rules = rules
        self.ranks = [Rank(p, i) for p, i in zip(programs, instructions, strict=True)]
        self.stages = sum(len(program.stages) for program in programs)
        self.has_tail = any(body.tail for program in programs for body in program.bodies)
        self.microbatches = programs[0].microbatches
        self.replicas, self.moving, self.one_queue = replicas, moving, one_queue
        self.transfers: dict[tuple[object, ...], Transfer] = {}

    def run(self) -> None:
        """Execute; raises Wrong or Hang."""
        while any(rank.pc < len(rank.instructions) for rank in self.ranks):
            moved = False
            for number, rank in enumerate(self.ranks):
                while rank.pc < len(rank.instructions) and self.step(number, rank):
                    rank.pc += 1
                    moved = True
            if not moved:
                raise Hang
        for rank in self.ranks:
            self.check_end(rank)

    def check_end(self, rank: Rank) -> None:
        trains = not rank.program.evaluates
        if rank.stepped != trains or any(value is not None for value in rank.slots.values()):
            raise Wrong("no step, or something is left in a slot")
        collectives = {"count", "norm", "report"} if trains else {"count", "report"}
        shared = [[c for c in r.collectives if c != "tie"] for r in (rank, self.ranks[0])]
        if shared[0] != shared[1] or set(shared[0]) != collectives:
            raise Wrong("collectives")
        if len({tuple(self.ranks[r].collectives) for r in self.rules.ties}) > 1:
            raise Wrong("collectives of the tied ranks")
        if any(row not in rank.waited for row in rank.posts):
            raise Wrong("a message was not waited for")
        if collectives - rank.waited:
            raise Wrong("a collective was not waited for")
        holds_loss = any(stage == self.stages - 1 for stage, _ in rank.program.stages)
        if sorted(rank.losses) != (list(range(self.microbatches)) if holds_loss else []):
            raise Wrong("losses")

    def step(self, number: int, rank: Rank) -> bool:
        """Execute the instruction at which a rank stands; False where it has to wait."""
        instruction = rank.instructions[rank.pc]
        match instruction:
            case Run():
                self.compute(rank, instruction)
            case Load(microbatch=m, write=write):
                kind = rank.program.buffer(write.buffer).kind
                self.write(rank, write, (kind, m))
            case Send() | Recv():
                self.post(number, rank, instruction)
            case Count():
                self.collective(rank, "count")
            case Tie(unit=unit, peer=peer):
                self.tie(rank, unit, peer)
            case Norm():
                self.norm(rank)
            case Step():
                if not {"count", "norm", "report"} <= rank.waited or rank.stepped:
                    raise Wrong("a step that does not know whether to update, and how far")
                rank.stepped = True
            case Report(reads=reads):
                for value in self.read(rank, reads):
                    if value[0] != "loss":
                        raise Wrong("the report reads no loss")
                    rank.losses.append(value[2])  # type: ignore[arg-type]
                self.collective(rank, "report")
            case WaitMessage(of=of, operand=operand):
                return self.wait_message(rank, of, operand)
            case WaitReduce(unit=unit):
                if unit not in rank.reduced or unit in rank.waited:
                    raise Wrong(f"no reduction of {unit} to wait for")
                return self.passed(rank, unit)
            case WaitCount():
                return self.wait_collective(rank, "count", alone=True)
            case WaitTie():
                return self.wait_collective(rank, "tie", members=tuple(self.rules.ties))
            case WaitNorm():
                return self.wait_collective(rank, "norm")
            case WaitReport():
                return self.wait_collective(rank, "report")
        return True

    def read(self, rank: Rank, operands: tuple[Operand, ...]) -> list[Value]:
        values: list[Value] = []
        for operand in operands:
            value = rank.slots.get(operand[:2])
            if value is None or value is GARBAGE:
                raise Wrong(f"{operand} is empty or not there yet")
            values.append(value)
            if operand.last:
                if any(
                    post == (operand.buffer, operand.slot) and row not in rank.waited
                    for row, post in self.busy(rank)
                ):
                    raise Wrong(f"{operand} is freed while it is sent")
                rank.slots[operand[:2]] = None  # type: ignore[assignment]
        return values

    def busy(self, rank: Rank) -> list[tuple[int, tuple[str, int]]]:
        """The slots of posted sends, by row."""
        sends = [
            (row, rank.instructions[row]) for row, (kind, _) in rank.posts.items() if kind == "send"
        ]
        return [(row, (s.read.buffer, s.read.slot)) for row, s in sends if isinstance(s, Send)]

    def write(self, rank: Rank, operand: Operand, value: Value) -> None:
        slots = rank.program.buffer(operand.buffer).slots
        if rank.slots.get(operand[:2]) is not None or operand.last or operand.slot >= slots:
            raise Wrong(f"{operand} is overwritten")
        rank.slots[operand[:2]] = value

    def compute(self, rank: Rank, run: Run) -> None:
        body = rank.program.bodies[run.body]
        (op, stage, m) = run.task.op, run.task.stage, run.task.microbatch
        if (body.op, body.stage) != (op, stage) or stage not in dict(rank.program.stages):
            raise Wrong("a body of another task")
        if rank.program.evaluates and op is not Op.F:
            raise Wrong("a backward in an evaluation")
        if body.tail != (self.has_tail and m == rank.program.microbatches - 1):
            raise Wrong("a body of another size")
        if len(body.reads) != len(run.reads) or len(body.writes) != len(run.writes):
            raise Wrong("operands")
        before = dict(rank.slots)
        for name, value in zip(body.reads, self.read(rank, run.reads), strict=True):
            wanted: dict[str, Value] = {
                "x": ("act", stage - 1, m),
                "dy": ("grad", stage + 1, m),
                "tokens": ("tokens", m),
                "labels": ("labels", m),
            }
            if value != wanted.get(name, (name, stage, m)):
                raise Wrong(f"{run.task} reads {value} as {name}")
        if op in (Op.I, Op.B) and stage == self.stages - 1 and "count" not in rank.waited:
            raise Wrong("the count is not there")
        if rank.stepped or ("norm" in rank.posted and op is not Op.F):
            raise Wrong("too late")
        kinds = {"y": "act", "dx": "grad"}
        for name, operand in zip(body.writes, run.writes, strict=True):
            if before.get(operand[:2]) is not None:
                raise Wrong(f"{operand} is written while it is read")
            self.write(rank, operand, (kinds.get(name, name), stage, m))
        units = dict(rank.program.stages)[stage]
        if op in (Op.W, Op.B):
            for unit in units:
                for owner in self.rules.owners(rank.program, unit):
                    done = rank.gradients.setdefault(owner, set())
                    if (unit, m) in done:
                        raise Wrong("a gradient twice")
                    if "tie" in rank.posted and owner == self.rules.ties[run_rank(rank)]:
                        raise Wrong("a gradient after the tie")
                    done.add((unit, m))
        for step in body.steps:
            if isinstance(step, Reduce):
                if step.unit in rank.reduced:
                    raise Wrong("a reduction twice")
                if step.dtype not in REDUCE_DTYPES:
                    raise Wrong("a sum of gradients in a dtype that they do not have")
                if step.unit not in rank.gradients:
                    raise Wrong("a reduction of nothing")
                rank.reduced[step.unit] = frozenset(rank.gradients[step.unit])
                rank.queue.append(step.unit)

    def post(self, number: int, rank: Rank, message: Send | Recv) -> None:
        queue = rank.program.queues[message.queue]
        sending = isinstance(message, Send)
        ends = (number, message.peer) if sending else (message.peer, number)
        if (queue.source, queue.target) != ends or not 0 <= message.peer < len(self.ranks):
            raise Wrong("a message in the wrong queue")
        number_in_queue = rank.numbers.setdefault(message.queue, 0)
        if message.sequence != number_in_queue:
            raise Wrong("a message out of turn")
        rank.numbers[message.queue] += 1
        transfer = self.transfers.setdefault((str(queue), message.sequence), Transfer())
        if sending:
            self.read(rank, (message.read,))
            transfer.send = (number, rank.pc)
        else:
            self.write(rank, message.write, GARBAGE)
            transfer.recv = (number, rank.pc)
        rank.posts[rank.pc] = ("send" if sending else "recv", transfer)
        rank.queue.append(transfer)
        if self.moving == "early" and transfer.send and transfer.recv and not self.one_queue:
            self.move(transfer)

    def move(self, transfer: Transfer, deliver: bool = True) -> None:
        """Take the data of a transfer that both ends have posted, and put it where it goes."""
        assert transfer.send is not None
        assert transfer.recv is not None
        (source, send_row), (target, recv_row) = transfer.send, transfer.recv
        sender, receiver = self.ranks[source], self.ranks[target]
        send, recv = sender.instructions[send_row], receiver.instructions[recv_row]
        assert isinstance(send, Send)
        assert isinstance(recv, Recv)
        if transfer.value is None:
            ends = (
                sender.program.buffer(send.read.buffer),
                receiver.program.buffer(recv.write.buffer),
            )
            if len({(buffer.shape, buffer.dtype) for buffer in ends}) != 1:
                raise Wrong("shapes differ")
            if send.task != recv.task or send.task.op not in (Op.F, Op.B, Op.I):
                raise Wrong("the ends mean different tasks")
            transfer.value = sender.slots.get(send.read[:2])
            if transfer.value is None:
                raise Wrong("an empty slot is sent")
        if deliver and not transfer.delivered:
            transfer.delivered = True
            if receiver.slots.get(recv.write[:2]) is not GARBAGE:
                raise Wrong("the data arrives in a slot that is in other use")
            receiver.slots[recv.write[:2]] = transfer.value

    def passed(self, rank: Rank, what: object) -> bool:
        """In one queue: all before ``what`` are done. Marks it as waited for."""
        if self.one_queue and not self.done(rank, what):
            return False
        rank.waited.add(what)
        return True

    def done(self, rank: Rank, what: object) -> bool:
        """Whether an item of a rank's only queue is done: it is at the head wherever it is."""
        for other in self.ranks:
            self.advance(other)
        return all(item is not what for item in rank.queue)

    def advance(self, rank: Rank) -> None:
        while rank.queue:
            head = rank.queue[0]
            if isinstance(head, Transfer):
                if head.send is None or head.recv is None:
                    return
                ends = (self.ranks[head.send[0]], self.ranks[head.recv[0]])
                if any(not end.queue or end.queue[0] is not head for end in ends):
                    return
                if self.moving == "early":
                    self.move(head)
            elif head in ("norm", "report", "tie"):
                tied = tuple(self.ranks[r] for r in self.rules.ties)
                ends = tied if head == "tie" else tuple(self.ranks)
                if any(not end.queue or end.queue[0] != head for end in ends):
                    return
            else:
                ends = (rank,)
            for end in ends:
                end.queue.pop(0)
            for end in ends:
                if end is not rank:
                    self.advance(end)

    def wait_message(self, rank: Rank, of: int, operand: Operand) -> bool:
        if of not in rank.posts:
            raise Hang  # nothing was posted that could ever arrive
        if of in rank.waited:
            raise Wrong("a second wait")
        kind, transfer = rank.posts[of]
        post = rank.instructions[of]
        slot = post.read if isinstance(post, Send) else post.write  # type: ignore[union-attr]
        if slot[:2] != operand[:2]:
            raise Wrong("a wait for another slot")
        if transfer.send is None or transfer.recv is None:
            return False
        if self.one_queue and not self.done(rank, transfer):
            return False
        self.move(transfer, deliver=kind == "recv")
        rank.waited.add(of)
        self.read(rank, (operand,))
        return True

    def collective(self, rank: Rank, name: str) -> None:
        if name in rank.posted:
            raise Wrong(f"{name} twice")
        rank.posted.add(name)
        rank.collectives.append(name)
        rank.queue.append(name)

    def norm(self, rank: Rank) -> None:
        for owner in self.rules.wanted(rank.program, self.microbatches):
            self.complete(rank, owner)
        if run_rank(rank) in self.rules.ties and "tie" not in rank.waited:
            raise Wrong("the norm of gradients that are not tied")
        self.collective(rank, "norm")

    def tie(self, rank: Rank, unit: str, peer: int) -> None:
        ties = self.rules.ties
        if unit != ties.get(run_rank(rank)) or {run_rank(rank), peer} != set(ties):
            raise Wrong("a tie of what is not tied")
        self.complete(rank, unit)
        self.collective(rank, "tie")

    def complete(self, rank: Rank, owner: str) -> None:
        whole = self.rules.wanted(rank.program, self.microbatches)[owner]
        if rank.gradients.get(owner) != whole:
            raise Wrong(f"the gradients of {owner} are not complete")
        if self.replicas > 1 and (rank.reduced.get(owner) != whole or owner not in rank.waited):
            raise Wrong(f"the gradients of {owner} are not summed over dp")

    def wait_collective(
        self, rank: Rank, name: str, alone: bool = False, members: tuple[int, ...] | None = None
    ) -> bool:
        if name not in rank.posted or name in rank.waited:
            raise Wrong(f"no {name} to wait for")
        others = self.ranks if members is None else [self.ranks[r] for r in members]
        if not alone and any(name not in other.posted for other in others):
            return False
        return self.passed(rank, name)


def run_rank(rank: Rank) -> int:
    return rank.program.rank


class Rules:
    """What a model asks of gradients: who has some, who shares, who ties. All have, without one."""

    def __init__(self, programs: Programs, model: Model | None) -> None:
        self.frozen: set[str] = set()
        self.ties: dict[int, str] = {}  # unit by rank
        self.shares: dict[str, str] = {}  # a unit whose gradient is also another's
        if model is None:
            return
        self.frozen = {u.name for u in model.units if not model.graphs[f"{u.graphs}.W"].inputs}
        tied = [u.name for u in model.units if any(p.tied for _, p in u.parameters)]
        if tied and tied[0] not in self.frozen:
            first, last = model.units[0].name, tied[0]
            rank_of = {unit: p.rank for p in programs for unit in p.units}
            if rank_of[first] == rank_of[last]:
                self.shares[last] = first
            else:
                self.ties = {rank_of[first]: first, rank_of[last]: last}

    def owners(self, program: RankProgram, unit: str) -> list[str]:
        """Whose gradients ``unit`` adds to."""
        if unit in self.frozen:
            return []
        return [unit, *([self.shares[unit]] if unit in self.shares else [])]

    def wanted(self, program: RankProgram, microbatches: int) -> dict[str, set[tuple[str, int]]]:
        """By owner, the contributions that make its gradients whole."""
        found: dict[str, set[tuple[str, int]]] = {}
        for unit in program.units:
            for owner in self.owners(program, unit):
                found.setdefault(owner, set()).update((unit, m) for m in range(microbatches))
        return found


def outcome(programs: Programs, replicas: int, model: Model | None = None) -> str:
    """``right``, ``hangs`` or what is wrong, over all ways to move data."""
    rules = Rules(programs, model)
    instructions = [list(program.stream) for program in programs]
    for moving in ("early", "late"):
        for one_queue in (False, True):
            try:
                Interpreter(programs, instructions, replicas, moving, one_queue, rules).run()
            except Hang:
                return "hangs"
            except Wrong as wrong:
                return f"wrong: {wrong}"
    return "right"
