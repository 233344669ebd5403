"""Setting up: where a rank may find mistakes of the user, which all ranks tell as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch

from schedc.diagnostics import Diagnostic, DiagnosticError
from schedc.ops.flash import use_newest_flash
from schedc.program.artifact import Artifact, artifact_digest, load_artifact
from schedc.program.verify import verify_programs
from schedc.runtime.config import RunConfig
from schedc.runtime.connect import choose_device
from schedc.runtime.environment import Agreement, Environment
from schedc.runtime.evaluation import Evaluator
from schedc.runtime.outputs import prepare_outputs
from schedc.runtime.rank import Rank, load_states, make_rank, open_batches, open_evaluation
from schedc.runtime.transports.interface import Endpoint


@dataclass(slots=True)
class Preparation:
    """What a rank loads; each part ends in an agreement of all ranks."""

    environment: Environment
    agreement: Agreement

    def load(
        self, build: Path, config: RunConfig, problem: DiagnosticError | None
    ) -> tuple[Artifact, torch.device]:
        """The programs, verified; like the options the same on all ranks, as many as planned.

        The device is this rank's own; on all ranks it is of one type.
        """
        artifact, digest = None, ""
        device = torch.device("cpu")
        try:
            if problem is not None:
                raise problem
            device = choose_device(config.transport, self.environment)
            artifact = load_artifact(build)
            digest = artifact_digest(build)
            self._check_world(artifact)
            mesh = artifact.manifest.mesh
            verify_programs(artifact.programs, artifact.model, mesh.dp)
            verify_programs(artifact.evaluation, artifact.model, mesh.dp)
        except DiagnosticError as error:
            problem = error
        found = self.agreement.settle([digest, device.type, config.shared()], problem)
        assert artifact is not None
        digests, devices, options = zip(*found, strict=True)
        self._same(digests, f"{build} is not the same on all ranks")
        self._same(devices, "some ranks have GPUs and some have not")
        for option in config.shared():
            values = [of_rank[option] for of_rank in options]
            self._same(values, f"--{option.replace('_', '-')} is not the same on all ranks")
        return artifact, device

    def make_rank(
        self, artifact: Artifact, transport: Endpoint, config: RunConfig
    ) -> tuple[Rank, Evaluator | None, TextIO | None]:
        """The rank with its data and parameters, and on rank 0 the open metrics file."""
        problem: DiagnosticError | None = None
        rank, evaluator, metrics, fingerprint = None, None, None, ""
        units = artifact.programs[self._pp(artifact)].units
        try:
            batches = open_batches(artifact.manifest, config) if config.data else None
            fingerprint = batches.fingerprint if batches is not None else ""
            states = load_states(artifact.manifest, units, config, transport.device)
            rank = make_rank(artifact, transport.rank, transport, config, states, batches)
            if config.eval_data:
                evaluator = Evaluator(rank, open_evaluation(artifact.manifest, config))
                fingerprint += evaluator.batches.fingerprint
            if transport.rank == 0:
                metrics = prepare_outputs(config)
                if batches is not None and config.steps:
                    print(f"{artifact.manifest.name}: {batches.summary}", flush=True)
                if evaluator is not None:
                    print(f"evaluation: {evaluator.batches.summary}", flush=True)
        except DiagnosticError as error:
            problem = error
        fingerprints = self.agreement.settle(fingerprint, problem)
        assert rank is not None
        self._same(fingerprints, "the data is not the same on all ranks")
        return rank, evaluator, metrics

    def _pp(self, artifact: Artifact) -> int:
        return artifact.manifest.mesh.coordinates(self.environment.rank)["pp"]

    def _check_world(self, artifact: Artifact) -> None:
        mesh, world = artifact.manifest.mesh, self.environment.world
        if mesh.size != world:
            message = f"the plan's mesh ({mesh}) has {mesh.size} ranks, but {world} "
            raise DiagnosticError(
                Diagnostic(
                    "E904",
                    message + ("was started" if world == 1 else "were started"),
                    help=f"torchrun --nproc-per-node {mesh.size} runtime/exec.py …",
                )
            )

    def _same(self, values: Sequence[Any], what: str) -> None:
        """Every rank sees all values, so all refuse alike."""
        other = [str(rank) for rank, value in enumerate(values) if value != values[0]]
        if other:
            message = f"{what}: rank 0 differs from {', '.join(other)}"
            self.agreement.settle(None, DiagnosticError(Diagnostic("E904", message)))


def prepare_attention(artifact: Artifact, transport: Endpoint) -> None:
    """On a GPU: the newest flash-attention that works here; rank 0 tells which."""
    names = ("num_attention_heads", "num_key_value_heads", "head_dim")
    heads, kv_heads, size = (artifact.manifest.config[name] for name in names)
    assert isinstance(heads, int)
    assert isinstance(kv_heads, int)
    assert isinstance(size, int)
    used = use_newest_flash(transport.device, heads, kv_heads, size)
    if transport.rank == 0:
        print(f"attention in fp16 and bf16: {used}", flush=True)
