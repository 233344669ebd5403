"""A whole training run in one process: every rank a thread. For tests and small experiments."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from schedc.program.artifact import Artifact
from schedc.program.verify import verify_programs
from schedc.runtime.assemble import assemble
from schedc.runtime.config import RunConfig
from schedc.runtime.machine import StepResult
from schedc.runtime.rank import Rank, load_states, make_rank, open_batches
from schedc.runtime.training import History, StepRecord, train
from schedc.runtime.transports.threads import Hub, ThreadsTransport


@dataclass(frozen=True, eq=False)
class RunResult:
    """A finished run. ``gradients`` (first step, before clipping) and ``parameters`` are whole.

    ``results[r]`` are the steps of global rank ``r``, ``ranks[r]`` the rank itself.
    """

    records: tuple[StepRecord, ...]
    results: tuple[tuple[StepResult, ...], ...]
    gradients: dict[str, Tensor]
    parameters: dict[str, Tensor]
    ranks: tuple[Rank, ...]

    @property
    def losses(self) -> list[float]:
        return [record.loss for record in self.records]

    @property
    def grad_norms(self) -> list[float]:
        return [record.grad_norm for record in self.records]


def run_threads(artifact: Artifact, config: RunConfig, *, verify: bool = True) -> RunResult:
    """Train as ``config`` says. Writes no files; rank 0's result is returned.

    Raises what ended a rank: Hang where no rank can move. ``verify`` False runs programs that the
    verifier was not asked about.
    """
    manifest = artifact.manifest
    if verify:
        verify_programs(artifact.programs, artifact.model, manifest.mesh.dp)
    world = manifest.mesh.size
    hub = Hub(world)
    ranks: list[Rank | None] = [None] * world
    histories = [History() for _ in range(world)]
    whole: list[dict[str, Tensor]] = [{}, {}]

    def run(number: int) -> None:
        transport = ThreadsTransport(hub, manifest.mesh, number)
        units = artifact.programs[manifest.mesh.coordinates(number)["pp"]].units
        states = load_states(manifest, units, config)
        batches = open_batches(manifest, config)
        rank = make_rank(artifact, number, transport, config, states, batches)
        ranks[number] = rank
        gradients = train(rank, config, (histories[number],), keep_gradients=True)
        if config.steps:
            whole[0].update(assemble(transport, manifest, gradients, gradients=True))
        whole[1].update(assemble(transport, manifest, rank.parameters()))

    run_in_threads(hub, world, run)
    return RunResult(
        records=tuple(histories[0].records),
        results=tuple(tuple(history.results) for history in histories),
        gradients=whole[0],
        parameters=whole[1],
        ranks=tuple(rank for rank in ranks if rank is not None),
    )


def run_in_threads(hub: Hub, world: int, run: Callable[[int], None]) -> None:
    """Call ``run`` for every rank in a thread of its own; raises the first failure."""

    def guarded(number: int) -> None:
        try:
            run(number)
        except BaseException as error:
            hub.leave(number, error)
        else:
            hub.leave(number)

    threads = [threading.Thread(target=guarded, args=(n,), name=f"rank {n}") for n in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if hub.failure is not None:
        raise hub.failure
