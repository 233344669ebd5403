"""Weight gradients into the holes that forwards and backwards leave."""

from __future__ import annotations

from schedc.solve.problem import FINE, FORWARD, Lists, Problem


def fill_holes(problem: Problem, skeleton: Lists, threshold: int) -> Lists | None:
    """Lists with the weight gradients put into ``skeleton``, lists of forwards and backwards.

    A weight gradient, those owed longest first, goes where the rank would idle for at least
    ``threshold`` tenths of what it takes, or where the next forward would not fit into memory
    otherwise; those left over come last. None where not even that makes room, or the skeleton
    deadlocks. (Delaying weight gradients until they fill bubbles: 2401.10241, section 3.)
    """
    size = problem.stages * problem.microbatches
    source, lag, duration = problem.source, problem.lag, problem.duration
    end = [-1] * len(problem)
    lines = [_Line(problem, rank) for rank in range(problem.ranks)]
    cursor, waiting = [0] * problem.ranks, dict[int, int]()
    runnable = list(range(problem.ranks))
    while runnable:
        rank = runnable.pop()
        line, wanted, at = lines[rank], skeleton[rank], cursor[rank]
        while at < len(wanted):
            operation = wanted[at]
            needed, there = source[operation], 0
            if needed >= 0:
                if end[needed] < 0:
                    waiting[needed] = rank
                    break
                there = end[needed] + lag[operation]
            if operation < size and not line.make_room(operation):
                return None
            line.fill_until(there, threshold)
            line.clock = max(line.clock, there) + duration[operation]
            end[operation] = line.clock
            line.run(operation)
            if operation in waiting:
                runnable.append(waiting.pop(operation))
            at += 1
        cursor[rank] = at
    if waiting:
        return None
    return [line.done + line.owed[line.paid :] for line in lines]


class _Line:
    """What one rank has run: its operations, its clock, its memory, the weight gradients owed."""

    def __init__(self, problem: Problem, rank: int) -> None:
        self.change, self.duration = problem.change, problem.duration
        self.size = problem.stages * problem.microbatches
        self.limit = problem.limits[rank] if problem.limits is not None else None
        self.done: list[int] = []
        self.owed: list[int] = []
        self.paid = 0
        self.clock = self.kept = 0

    def run(self, operation: int) -> None:
        self.done.append(operation)
        self.kept += self.change[operation]
        if self.size * (FORWARD + 1) <= operation < 2 * self.size:
            self.owed.append(operation + self.size)

    def pay(self) -> None:
        """Run the weight gradient owed longest."""
        operation = self.owed[self.paid]
        self.paid += 1
        self.clock += self.duration[operation]
        self.run(operation)

    def make_room(self, forward: int) -> bool:
        """Run weight gradients until ``forward`` fits; False where it never does."""
        if self.limit is None:
            return True
        while self.kept + self.change[forward] > self.limit:
            if self.paid == len(self.owed):
                return False
            self.pay()
        return True

    def fill_until(self, there: int, threshold: int) -> None:
        """Run weight gradients in the hole between now and ``there``."""
        while self.paid < len(self.owed) and there > self.clock:
            if FINE * (there - self.clock) < threshold * self.duration[self.owed[self.paid]]:
                break
            self.pay()
