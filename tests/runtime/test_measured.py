"""What a run measures of itself: bubbles, messages, memory, times of graphs; and at what cost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from schedc.program.artifact import Artifact
from schedc.program.instructions import Code, StreamBuilder
from schedc.program.program import RankProgram
from schedc.runtime import graph_times
from schedc.runtime.config import RunConfig
from schedc.runtime.executor import Executor
from schedc.runtime.local import run_in_threads, run_threads
from schedc.runtime.measured import RankTimes, measured_trace
from schedc.runtime.memory import MemoryTracker
from schedc.runtime.monitor import Monitor
from schedc.runtime.rank import load_states, make_rank
from schedc.runtime.transports.threads import Hub, ThreadsTransport
from tests.runtime.builds import Shape, artifact_of, write_data


def sleeping(artifact: Artifact, seconds: dict[str, float]) -> Artifact:
    """The plan with a sleep at the start of some graphs."""
    graphs = dict(artifact.graphs)
    for name, duration in seconds.items():
        source = graphs[name].replace("import torch\n", "import time\n\nimport torch\n", 1)
        pause = f"    args.clear()\n    time.sleep({duration})\n"
        graphs[name] = source.replace("    args.clear()\n", pause, 1)
    return replace(artifact, graphs=graphs)


def test_the_measured_bubble_of_1f1b_is_a_quarter(tmp_path: Path) -> None:
    """A44: P = 2, M = 3, F = 0.05 s and B = 0.1 s on both ranks: (P-1) / (M+P-1) = 0.25."""
    shape = Shape("one_f_one_b", 2, 3, layers=2)
    pauses = {"layer.F": 0.05, "layer.I": 0.05, "layer.W": 0.05}
    artifact = sleeping(artifact_of(shape), pauses)
    data = write_data(tmp_path / "data.safetensors", shape.batch, 2)
    result = run_threads(artifact, RunConfig(steps=2, data=(data,)))
    times = [RankTimes(r.monitor.began, r.monitor.ends) for r in result.ranks]
    trace = measured_trace(artifact.programs, times, "sleeping", {}, ())
    assert trace.figures["bubble_rate"] == pytest.approx(0.25, abs=0.03)
    assert trace.figures["makespan"] >= 0.6
    assert trace.figures["messages"] == len(trace.messages) == 6
    ends = {(t.op, t.stage, t.microbatch): t.end for t in trace.tasks}
    for message in trace.messages:
        op = "F" if message.kind == "F" else "B"
        assert message.start >= ends[op, message.stage, message.microbatch]
    first = trace.messages[0]  # rank 1 waits for it
    assert (first.kind, first.source, first.target, first.microbatch) == ("F", 0, 1, 0)


def test_the_tracker_counts_storages_while_they_live() -> None:
    weight = torch.zeros(256, 256)
    tracker = MemoryTracker([weight])
    size = 256 * 256 * 4
    with torch.inference_mode(), tracker:
        x = torch.zeros(256, 256)
        assert tracker.live == size
        view = (x @ weight).view(-1)
        assert tracker.live == 2 * size
        del view
        assert tracker.live == size
        y = (x @ weight) + (x @ weight)
        assert tracker.live == 2 * size
        assert tracker.take_peak() == 4 * size
        assert tracker.take_peak() == 2 * size
        del x, y
    assert tracker.live == 0


def test_the_tracker_counts_one_device() -> None:
    """What is on its way to a GPU is the host's."""
    tracker = MemoryTracker([], torch.device("meta"))
    with torch.inference_mode(), tracker:
        batch = torch.zeros(256, 256)
        assert tracker.live == 0
        x = batch.to("meta")
        assert tracker.live == 256 * 256 * 4
        del x
        assert tracker.live == 0


def test_graphs_are_timed_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_times, "SECONDS", 0.01)
    artifact = artifact_of(Shape("zb_h1", 2, 2, dp=2))
    hub, mesh = Hub(4), artifact.manifest.mesh
    found: list[graph_times.Times] = [{}] * 4

    def run(number: int) -> None:
        transport = ThreadsTransport(hub, mesh, number)
        units = artifact.programs[mesh.coordinates(number)["pp"]].units
        states = load_states(artifact.manifest, units, RunConfig())
        before = {name: state.flat_parameters.clone() for name, state in states.items()}
        rank = make_rank(artifact, number, transport, RunConfig(), states, None)
        found[number] = graph_times.measure(rank, transport, clip=1.0)
        for name, state in states.items():
            assert torch.equal(state.flat_parameters, before[name])

    run_in_threads(hub, 4, run)
    times = found[0]
    assert found[1:] == [{}] * 3
    kinds = ("embedding", "layer", "head")
    assert set(times["graphs"]) == {f"{kind}.{op}" for kind in kinds for op in "FIW"}
    assert set(times["reduce"]) == {unit.name for unit in artifact.manifest.units}
    assert len(times["step"]) == 2
    assert min(times["message"], times["norm"], times["count"], times["report"]) > 0


@pytest.mark.parametrize(
    ("shape", "idle", "unreduced"),
    [
        (Shape("zb_h1", 2, 2, dp=2, tied=True), set(), set()),
        (
            Shape("zb_h1", 2, 2, dp=2, freeze=("model.embed_tokens.*", "model.layers.[01].*")),
            {"embedding.I", "embedding.W", "layer.I", "layer.W"},
            {"embedding", "layers.0", "layers.1"},
        ),
    ],
    ids=["tied", "frozen"],
)
def test_what_is_not_called_is_not_timed(
    shape: Shape, idle: set[str], unreduced: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_times, "SECONDS", 0.01)
    artifact = artifact_of(shape)
    manifest = artifact.manifest
    hub, found = Hub(4), [dict[str, Any]()] * 4

    def run(number: int) -> None:
        transport = ThreadsTransport(hub, manifest.mesh, number)
        units = artifact.programs[manifest.mesh.coordinates(number)["pp"]].units
        states = load_states(manifest, units, RunConfig())
        rank = make_rank(artifact, number, transport, RunConfig(), states, None)
        found[number] = graph_times.measure(rank, transport, clip=1.0)

    run_in_threads(hub, 4, run)
    times = found[0]
    assert set(times["graphs"]) == set(manifest.signatures) - {"rotary"} - idle
    assert set(times["reduce"]) == {unit.name for unit in manifest.units} - unreduced
    assert (times["tie"] > 0) == shape.tied


class _Nothing:
    """A transport and machine of which only the step is used."""

    def __getattr__(self, name: str) -> object:
        return lambda *_: True


def test_the_monitor_times_every_instruction_once() -> None:
    builder = StreamBuilder(())
    for _ in range(1000):
        builder.add(Code.STEP)
    program = RankProgram(0, 1, 1, "empty", (), (), (), builder.build(), ())
    monitor = Monitor(len(program.stream))
    executor = Executor(program, _Nothing(), _Nothing(), monitor)  # pyright: ignore
    executor.begin()
    assert executor.advance()
    assert len(monitor.ends) == 1000
    assert 0 < monitor.ends[0] <= monitor.ends[-1]
    assert monitor.ends == sorted(monitor.ends)
