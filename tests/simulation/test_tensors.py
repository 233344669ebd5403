"""Real tensors under seeded timings: bit for bit what the threads transport computes.

That in turn is compared with one process of transformers by the parity tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from schedc.program.artifact import Artifact
from schedc.runtime.config import RunConfig
from schedc.runtime.local import run_threads
from schedc.runtime.rank import Rank, load_states, make_rank, open_batches
from tests.runtime.builds import Shape, artifact_of, write_data
from tests.simulation.cases import MACHINES
from tests.simulation.world import Network, Pace, SimulatedTransport, World

SHAPES = [
    Shape("zb_h1", 2, 3, dp=2),
    Shape("interleaved", 2, 4, tail=1),
    Shape("one_f_one_b", 4, 3, tied=True),
]


class Tensors:
    """How tensors travel: exactly as on the threads transport, sums in the order of ranks."""

    def move(self, source: Tensor, target: Tensor) -> None:
        target.copy_(source)

    def add(self, values: Sequence[Tensor]) -> None:
        total = values[0].clone()
        for value in values[1:]:
            total += value
        for value in values:
            value.copy_(total)


def simulated_step(
    artifact: Artifact, config: RunConfig, machine: str, seed: int
) -> tuple[dict[str, Tensor], list[float]]:
    """All parameters after one step, and each rank's loss."""
    manifest = artifact.manifest
    world = World(seed)
    network = Network(world, Tensors(), MACHINES[machine])
    ranks: list[Rank] = []
    paces: list[Pace] = []
    for number in range(manifest.mesh.size):
        transport = SimulatedTransport(network, manifest.mesh, number)
        units = artifact.programs[manifest.mesh.coordinates(number)["pp"]].units
        states = load_states(manifest, units, config)
        batches = open_batches(manifest, config)
        rank = make_rank(artifact, number, transport, config, states, batches)
        rank.machine.begin(0, config.lr)
        ranks.append(rank)
        paces.append(Pace(world, transport, rank.executor))
    with torch.inference_mode():
        world.run()
    assert all(pace.finished for pace in paces)
    parameters = {name: p for rank in ranks for name, p in rank.parameters().items()}
    return parameters, [rank.machine.result().loss for rank in ranks]


def check(shape: Shape, seeds: range, folder: Path) -> None:
    artifact = artifact_of(shape)
    data = write_data(folder / "data.safetensors", shape.batch, 1)
    config = RunConfig(steps=1, data=(data,), lr=0.1, seed=3)
    expected = run_threads(artifact, config)
    for seed in seeds:
        for machine in MACHINES:
            parameters, losses = simulated_step(artifact, config, machine, seed)
            assert losses == [expected.losses[0]] * len(losses), f"seed {seed} on {machine}"
            assert parameters.keys() == expected.parameters.keys()
            for name, value in expected.parameters.items():
                assert torch.equal(parameters[name], value), f"seed {seed} on {machine}: {name}"


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.schedule)
def test_a_step_equals_the_threads_bit_for_bit(shape: Shape, tmp_path: Path) -> None:
    check(shape, range(2), tmp_path)


@pytest.mark.sweep
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.schedule)
def test_a_step_under_many_timings(shape: Shape, tmp_path: Path) -> None:
    check(shape, range(2, 40), tmp_path)
