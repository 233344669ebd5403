"""A run on threads beside its oracle, and how both are compared."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from schedc.runtime.config import RunConfig
from schedc.runtime.local import RunResult, run_threads
from schedc.runtime.weights import initialise
from tests.runtime.builds import Oracle, Shape, artifact_of, run_oracle, write_data

STEPS, LR, SEED = 3, 0.1, 3
CLIP = 0.5


def trained(shape: Shape, folder: Path, clip: float = CLIP) -> tuple[RunResult, Oracle]:
    """Three SGD steps on threads, and of one process of transformers from the same values."""
    data = write_data(folder / "data.safetensors", shape.batch, STEPS)
    return trained_on(shape, (data,), load_file(data), STEPS, clip)


def trained_on(
    shape: Shape,
    files: tuple[Path, ...],
    rows: dict[str, Tensor],
    steps: int = STEPS,
    clip: float = CLIP,
) -> tuple[RunResult, Oracle]:
    """A run reads ``files``, the oracle ``rows``: what the run should have read, step by step."""
    artifact = artifact_of(shape)
    config = RunConfig(steps=steps, data=files, lr=LR, clip=clip, seed=SEED)
    result = run_threads(artifact, config)
    parameters = artifact.model.parameters
    oracle = run_oracle(
        artifact.manifest.config,
        initialise(parameters, SEED),
        rows,
        shape.batch,
        steps,
        LR,
        clip,
        frozen=frozenset(p.name for p in parameters if p.frozen),
    )
    return result, oracle


def assert_equal_to_oracle(result: RunResult, oracle: Oracle) -> None:
    """Losses, norms, gradients, parameters; and every rank says the same of every step."""

    def close(found: object, expected: object) -> None:
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)

    for steps in zip(*result.results, strict=True):
        assert len({(step.loss, step.norm, step.valid) for step in steps}) == 1
    assert len(result.records) == len(oracle.losses)
    close(torch.tensor(result.losses), torch.tensor(oracle.losses))
    close(torch.tensor(result.grad_norms), torch.tensor(oracle.norms))
    assert list(result.gradients) == list(oracle.gradients)
    assert list(result.parameters) == list(oracle.parameters)
    for name, expected in oracle.gradients.items():
        close(result.gradients[name], expected)
    for name, expected in oracle.parameters.items():
        close(result.parameters[name], expected)
