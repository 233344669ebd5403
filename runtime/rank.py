"""Everything of one rank, put together: state, machine, executor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from schedc.ops.generated import Graph, load_graph
from schedc.program.artifact import Artifact
from schedc.program.body import Call
from schedc.program.manifest import Manifest
from schedc.program.program import RankProgram
from schedc.program.work import owned_parameters, shared_names, tied_parameter
from schedc.runtime.config import RunConfig
from schedc.runtime.data import Batches, microbatch_rows, open_data
from schedc.runtime.device_monitor import DeviceMonitor
from schedc.runtime.executor import Executor
from schedc.runtime.first_fault import Inspector
from schedc.runtime.loss_scale import LossScale
from schedc.runtime.machine import TensorMachine
from schedc.runtime.monitor import Monitor
from schedc.runtime.optimizer import Optimizer, OptimizerSettings
from schedc.runtime.share import Share
from schedc.runtime.transports.interface import Endpoint
from schedc.runtime.unit_state import CPU, UnitState
from schedc.runtime.weights import initialise, read_checkpoint


@dataclass(frozen=True, eq=False)
class Rank:
    """One rank, ready to run steps."""

    artifact: Artifact
    config: RunConfig
    number: int  # the global rank
    program: RankProgram
    graphs: Mapping[str, Graph]
    states: Mapping[str, UnitState]
    rotary: tuple[Tensor, Tensor] | None
    transport: Endpoint
    optimizer: Optimizer
    machine: TensorMachine
    executor: Executor[Tensor]

    @property
    def manifest(self) -> Manifest:
        return self.artifact.manifest

    @property
    def device(self) -> torch.device:
        return self.transport.device

    @property
    def monitor(self) -> Monitor:
        return self.executor.monitor

    def parameters(self) -> dict[str, Tensor]:
        """The rank's parameters under Hugging Face's names: the masters, fp32."""
        return {
            name: state.masters[inner]
            for state in self.states.values()
            for name, inner in state.names.items()
        }

    def gradients(self) -> dict[str, Tensor]:
        """The gradients of the rank's parameters, likewise; of frozen ones there are none."""
        return {
            name: state.gradients[inner]
            for state in self.states.values()
            for name, inner in state.names.items()
            if inner in state.gradients
        }

    def persistent(self) -> dict[str, list[Tensor]]:
        """What lives as long as the run, by kind; masters count as the optimizer's."""
        masters = [state.flat_masters for state in self.states.values() if state.mixed]
        return {
            "parameters": [
                flat
                for state in self.states.values()
                for flat in (state.flat_parameters, state.flat_frozen)
            ],
            "gradients": [state.flat_gradients for state in self.states.values()],
            "optimizer": masters + self.optimizer.state(),
            "receive buffers": self.machine.receive_buffers,
            "rotary tables": list(self.rotary or ()),
        }


def open_batches(manifest: Manifest, config: RunConfig) -> Batches:
    """The data of a run. Raises E902."""
    return _open(manifest, config, config.data, manifest.batch, config.shuffle, once=False)


def open_evaluation(manifest: Manifest, config: RunConfig) -> Batches:
    """The data of a run's evaluations, read in order and once each time. Raises E902."""
    return _open(manifest, config, config.eval_data, manifest.evaluation, False, once=True)


def _open(
    manifest: Manifest,
    config: RunConfig,
    paths: tuple[Path, ...],
    batch: int,
    shuffle: bool | None,
    once: bool,
) -> Batches:
    vocabulary = manifest.config["vocab_size"]
    assert isinstance(vocabulary, int)
    return open_data(
        paths,
        sequence=manifest.sequence,
        vocabulary=vocabulary,
        batch=batch,
        seed=config.seed,
        shuffle=shuffle,
        tokenizer=config.tokenizer,
        dtype=config.token_type,
        once=once,
    )


def load_graphs(artifact: Artifact, program: RankProgram) -> dict[str, Graph]:
    """The graphs that a rank's bodies call, and the rotary tables' graph."""
    called = {s.graph for body in program.bodies for s in body.steps if isinstance(s, Call)}
    names = sorted(called | ({"rotary"} & set(artifact.graphs)))
    return {name: load_graph(artifact.graphs[name], name) for name in names}


def load_states(
    manifest: Manifest, units: tuple[str, ...], config: RunConfig, device: torch.device = CPU
) -> dict[str, UnitState]:
    """A rank's units with fresh parameters, or with those of ``--init``. Raises E903.

    Parameters are made or read on the CPU, so that they are the same for every device.
    """
    mine = [unit for unit in manifest.units if unit.name in units]
    shared = shared_names(mine)
    owned = {unit.name: [p for _, p in owned_parameters(unit, shared)] for unit in mine}
    values: dict[str, Tensor] = {}
    if config.init is not None:
        everything = [parameter for unit in manifest.units for _, parameter in unit.parameters]
        wanted = {parameter.name for parameters in owned.values() for parameter in parameters}
        values = read_checkpoint(config.init, everything, manifest.config, wanted)
    states: dict[str, UnitState] = {}
    for unit in mine:
        if config.init is None:
            given = initialise(owned[unit.name], config.seed)
        else:
            # Each value is dropped once it is copied, so that they are not all there twice.
            given = {parameter.name: values.pop(parameter.name) for parameter in owned[unit.name]}
        states[unit.name] = UnitState(unit, given, tuple(states.values()), device)
    return states


def optimizer_settings(manifest: Manifest, config: RunConfig) -> OptimizerSettings:
    return OptimizerSettings(
        kind=manifest.optimizer,
        weight_decay=config.weight_decay,
        betas=config.betas,
        momentum=config.momentum,
        clip=config.clip,
    )


def make_rank(
    artifact: Artifact,
    number: int,
    transport: Endpoint,
    config: RunConfig,
    states: Mapping[str, UnitState],
    batches: Batches | None,
) -> Rank:
    """Global rank ``number`` of a compiled plan; its program is that of its pp coordinate.

    ``states`` are on the transport's device, as is all that a step computes.
    """
    manifest = artifact.manifest
    at = manifest.mesh.coordinates(number)
    program = artifact.programs[at["pp"]]
    graphs = load_graphs(artifact, program)
    device = transport.device
    rotary = _rotary_tables(graphs, manifest.sequence, device)
    optimizer = Optimizer(tuple(states.values()), optimizer_settings(manifest, config))
    tie = tied_parameter(manifest.units)
    rows = tuple(microbatch_rows(manifest, at["dp"], m) for m in range(manifest.microbatches))
    machine = TensorMachine(
        program,
        manifest.signatures,
        graphs,
        states,
        rotary,
        transport,
        optimizer,
        Share(batches, rows, device),
        tie.places if tie is not None else {},
        LossScale(manifest.precision.scale),
        Inspector(manifest, at["dp"], states),
    )
    executor = Executor(program, transport, machine, make_monitor(program, device))
    return Rank(
        artifact,
        config,
        number,
        program,
        graphs,
        states,
        rotary,
        transport,
        optimizer,
        machine,
        executor,
    )


def make_monitor(program: RankProgram, device: torch.device) -> Monitor:
    """A clock for a program's instructions: the device's, where they run on one."""
    return Monitor(len(program.stream)) if device.type == "cpu" else DeviceMonitor(program.stream)


def _rotary_tables(
    graphs: Mapping[str, Graph], sequence: int, device: torch.device
) -> tuple[Tensor, Tensor] | None:
    """cos and sin, made once on each rank."""
    if "rotary" not in graphs:
        return None
    with torch.inference_mode():
        cos, sin = graphs["rotary"]([torch.arange(sequence, device=device)])
    return cos, sin
