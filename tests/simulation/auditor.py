"""Runs a case under a seed and says what happened; asserts what must hold whatever happens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from schedc.ir.mesh import Mesh
from schedc.runtime.executor import Executor
from schedc.runtime.monitor import Monitor
from schedc.runtime.verdict import Describer, Report, Status, judge
from tests.simulation.cases import MACHINES, Case
from tests.simulation.symbolic import SymbolicMachine, Symbols
from tests.simulation.world import Network, Pace, SimulatedTransport, World


@dataclass
class Simulation:
    """All ranks of a case in one world."""

    case: Case
    world: World
    network: Network
    mesh: Mesh
    machines: list[SymbolicMachine]
    paces: list[Pace]

    @property
    def finished(self) -> bool:
        return all(pace.finished for pace in self.paces)


def simulation(case: Case, machine: str, seed: int) -> Simulation:
    world = World(seed)
    mesh = Mesh(dp=case.replicas, pp=len(case.programs))
    network = Network(world, Symbols(), MACHINES[machine])
    stages = sum(len(program.stages) for program in case.programs)
    units = sum(len(program.units) for program in case.programs)
    result = Simulation(case, world, network, mesh, [], [])
    for rank in range(mesh.size):
        at = mesh.coordinates(rank)
        program = case.programs[at["pp"]]
        transport = SimulatedTransport(network, mesh, rank)
        symbols = SymbolicMachine(program, transport, at["dp"], case.replicas, units, stages)
        executor: Executor[Any] = Executor(
            program, transport, symbols, Monitor(len(program.stream), lambda: world.now)
        )
        result.machines.append(symbols)
        result.paces.append(Pace(world, transport, executor))
    return result


def run(case: Case, machine: str, seed: int) -> Simulation:
    """To the end; where all finish, they did exactly one step."""
    simulated = simulation(case, machine, seed)
    simulated.world.run()
    if simulated.finished:
        for symbols in simulated.machines:
            symbols.check_end()
    return simulated


def run_with_death(case: Case, machine: str, seed: int) -> tuple[Simulation, int]:
    """A rank dies before a row that the seed picks. Returns it too.

    Every other rank ends, or stands at a wait that leads, wait by wait, to the dead one; and the
    runtime's judge names it.
    """
    simulated = simulation(case, machine, seed)
    random = simulated.world.random
    dead = random.randrange(simulated.mesh.size)
    pace = simulated.paces[dead]
    pace.stops_at = random.randrange(len(pace.executor.program.stream))
    simulated.world.run()
    assert not pace.finished
    for rank, other in enumerate(simulated.paces):
        if rank != dead and not other.finished:
            found = _waited_for(simulated, rank)
            assert dead in found, f"rank {rank} waits, but not for rank {dead}, which died"
            assert rank not in found, f"rank {rank} waits for itself"
    assert judge(*_reports(simulated)) == dead
    return simulated, dead


def _waited_for(simulated: Simulation, rank: int) -> set[int]:
    """The ranks that a rank waits for, directly or through others."""
    found: set[int] = set()
    todo = [rank]
    while todo:
        for other in _blockers(simulated, todo.pop()):
            if other not in found:
                found.add(other)
                todo.append(other)
    return found


def _blockers(simulated: Simulation, rank: int) -> set[int]:
    """The ranks that hold what stands at the heads of this rank's queues, or are lost with it."""
    network, pace = simulated.network, simulated.paces[rank]
    if pace.finished or rank in network.dead:
        return set()
    row = pace.executor.at
    standing = [j for j in network.joints.values() if pace.transport.wake in j.waiting]
    awaited = [j for j in standing if not j.done]
    assert len(awaited) == 1, f"rank {rank} stands at row {row} and waits for nothing"
    lane = network.lanes[rank, awaited[0].lane]
    head = lane[0]
    if head.begun:  # on its way when one of its ranks died
        return network.dead.intersection(head.members)
    ahead = {r for r in head.members if r not in head.posted}
    behind = {r for r in head.members if r in head.posted and r != rank}
    return (
        ahead
        | {r for r in behind if network.lanes[r, head.lane][0] is not head}
        | (network.dead.intersection(head.members))
    )


def _reports(simulated: Simulation) -> tuple[list[Report], Any]:
    """What the watchdogs of the living publish: the dead one's beat no longer changes."""
    reports: list[Report] = []
    for rank, pace in enumerate(simulated.paces):
        executor = pace.executor
        phase = "done" if pace.finished else "trains"
        age = float(simulated.world.now - max(executor.monitor.ends))
        status = Status("host", 0, "", 1, phase, 1, executor.at, age, "")
        reports.append(Report(rank, status, rank not in simulated.network.dead, "another host"))
    return reports, Describer(simulated.case.programs, simulated.mesh, {}).waits
