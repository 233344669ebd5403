"""Programs that the verifier accepts compute the same, whatever their order: run, not argued."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from schedc.runtime.config import RunConfig
from schedc.runtime.local import run_threads
from tests.program.mutations import accepted_swaps
from tests.runtime.builds import Shape, artifact_of, write_data

MOST = 60


@pytest.mark.parametrize(
    "shape", [Shape("zb_h1", 2, 2, dp=2), Shape("interleaved", 2, 2), Shape("one_f_one_b", 3, 2)],
    ids=lambda s: s.schedule,
)  # fmt: skip
def test_accepted_swaps_give_the_same_gradients(shape: Shape, tmp_path: Path) -> None:
    """A step's sums may be taken in another order, so gradients agree to rounding."""
    artifact = artifact_of(shape)
    data = write_data(tmp_path / "data.safetensors", shape.batch, 1)
    config = RunConfig(steps=1, data=(data,), lr=0.1, seed=3)
    expected = run_threads(artifact, config)
    mutations = accepted_swaps(artifact.programs, artifact.model, shape.dp, far=40, seed=1)
    step = -(-len(mutations) // MOST)
    chosen = mutations[::step]
    for mutation in chosen:
        found = run_threads(replace(artifact, programs=mutation.programs), config)
        assert found.losses == pytest.approx(expected.losses, rel=1e-6), mutation.what
        for name, gradient in expected.gradients.items():
            torch.testing.assert_close(
                found.gradients[name], gradient, rtol=1e-5, atol=1e-7, msg=mutation.what
            )
    print(
        f"{shape.schedule}: {len(mutations)} swaps accepted, {len(chosen)} of them run, all right"
    )
    assert chosen
