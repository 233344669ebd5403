"""What a user can do wrong or on purpose around a run. One rank, so that no torchrun is needed."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file as load_tensors

from schedc.driver.build import compile_plan
from schedc.model.config import PRESETS
from schedc.program.artifact import write_artifact
from schedc.runtime.launch import _ending_all
from schedc.sema.library import load_file
from tests.runtime.builds import Shape, artifact_of, write_data
from tests.runtime.launching import EXEC, Finished, launch

ONE = Shape("zb_h1", 1, 2)


@pytest.fixture
def build(tmp_path: Path) -> Path:
    write_artifact(artifact_of(ONE), tmp_path / "build")
    write_data(tmp_path / "data.safetensors", ONE.batch, 2)
    return tmp_path / "build"


def refused(done: Finished, *texts: str) -> None:
    assert done.code == 1
    assert "Traceback" not in done.ours
    for text in texts:
        assert done.ours.count(text) == 1, done.err


def test_every_mistake_in_the_options_is_told_at_once(build: Path, tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text('steps = 2\ndta = "x"\nlr = "high"\nshuffle = "maybe"\n')
    done = launch(1, build, "--config", config, "--clip", "-1")
    refused(done, "unknown key 'dta'", "did you mean 'data'?", "lr has to be a number")
    refused(done, "shuffle has to be on or off", "--clip has to be at least 0", "no data")
    assert done.ours.count("error[E904]") == 5


def test_a_world_of_another_size_is_refused_with_both_numbers(tmp_path: Path) -> None:
    write_artifact(artifact_of(Shape("zb_h1", 2, 2, dp=2)), tmp_path / "build")
    done = launch(1, tmp_path / "build", "--steps", "0")
    refused(done, "error[E904]", "(dp=2 pp=2 cp=1 tp=1) has 4 ranks, but 1 was started")


def test_a_transport_that_the_machine_has_not_is_refused(build: Path) -> None:
    done = launch(1, build, "--steps", "0", "--transport", "nccl")
    refused(done, "error[E904]", "--transport nccl needs GPUs", "--transport gloo runs on CPUs")


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee …"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
)
def test_out_of_memory_is_no_bug_of_ours(error: RuntimeError) -> None:
    told: list[tuple[str, int]] = []
    watchdog = SimpleNamespace(fail=lambda text, code=1: told.append((text, code)))
    with suppress(RuntimeError), _ending_all(watchdog):  # pyright: ignore[reportArgumentType]
        raise error
    assert told[0] == (f"out of memory: {str(error).splitlines()[0]}", 1)


@pytest.mark.gloo
def test_a_mistake_is_told_once_by_all_ranks_together(tmp_path: Path) -> None:
    write_artifact(artifact_of(Shape("zb_h1", 2, 2)), tmp_path / "build")
    done = launch(2, tmp_path / "build", "--data", tmp_path / "nothing")
    refused(done, "error[E902]", f"there is no data {tmp_path / 'nothing'}")


def test_an_output_that_cannot_be_written_is_told_before_the_first_step(
    build: Path, tmp_path: Path
) -> None:
    """Training first and losing the weights at the end would be the other way."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/config.json").write_text('{"theme": "dark"}')
    options = ("--data", tmp_path / "data.safetensors", "--steps", "1")
    done = launch(1, build, *options, "--export", tmp_path / "site")
    refused(done, "error[E903]", "is no model's configuration and would be overwritten")
    assert "step" not in done.out
    done = launch(1, build, *options, "--trace-out", tmp_path / "site/config.json/x")
    refused(done, "error[E904]", "cannot write")
    assert "step" not in done.out
    assert (tmp_path / "site/config.json").read_text() == '{"theme": "dark"}'


@pytest.mark.parametrize("export", ["/proc/self/export", "taken"])
def test_a_refused_export_leaves_the_other_outputs_as_they_were(
    export: str, build: Path, tmp_path: Path
) -> None:
    """Not writable, even by root; and a checkpoint's file that is a folder."""
    (tmp_path / "taken/model.safetensors").mkdir(parents=True)
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("of the run before")
    options = ("--data", tmp_path / "data.safetensors", "--steps", "1", "--metrics", metrics)
    done = launch(
        1, build, *options, "--trace-out", tmp_path / "new.json", "--export", tmp_path / export
    )
    refused(done, "cannot write")
    assert "step" not in done.out
    assert metrics.read_text() == "of the run before"
    assert not (tmp_path / "new.json").exists()
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["model.safetensors"]


def test_what_is_no_build_is_refused(tmp_path: Path) -> None:
    refused(launch(1, tmp_path / "no build", "--steps", "0"), "error[E901]")


@pytest.mark.gloo
def test_ranks_that_are_told_different_things_are_refused(tmp_path: Path) -> None:
    """Each rank gets its own number as the learning rate; paths may differ."""
    write_artifact(artifact_of(Shape("zb_h1", 2, 2)), tmp_path / "build")
    data = write_data(tmp_path / "data.safetensors", ONE.batch, 1)
    wrapper = tmp_path / "wrapper.py"
    wrapper.write_text(
        "import os, runpy, sys\n"
        "sys.argv += ['--lr', os.environ['RANK'], '--metrics', '/tmp/' + os.environ['RANK']]\n"
        f"runpy.run_path({str(EXEC)!r}, run_name='__main__')\n"
    )
    done = launch(2, tmp_path / "build", "--data", data, "--steps", "1", script=wrapper)
    refused(done, "--lr is not the same on all ranks: rank 0 differs from 1")
    assert "--metrics" not in done.ours


def test_usage(build: Path) -> None:
    done = launch(1, build, "--stepps", "3")
    assert done.code == 2
    assert "--steps" in done.err
    assert launch(1, "--help").out.count("Every option is also a key") == 1


def test_an_edited_program_is_verified_before_it_runs(build: Path, tmp_path: Path) -> None:
    program = build / "rank0.prog"
    lines = program.read_text().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if " W " in line)
    program.write_text("".join(lines[:at] + lines[at + 1 :]))
    done = launch(1, build, "--data", tmp_path / "data.safetensors", "--steps", "1")
    assert done.code == 1
    assert "error[E5" in done.ours
    assert "Traceback" not in done.ours


PLAN = """
plan mine {
    model "model"  sequence 16  batch 4 in microbatches of 2
    mesh pp = 1  schedule own  precision fp32  optimizer sgd
}
schedule own {
    place stage s on rank s
    order on rank r { for m in 0..M { F(r, m) B(r, m) } }
}
"""


def test_a_run_needs_nothing_but_the_build(tmp_path: Path) -> None:
    """The schedule and the model's configuration deleted, options in a file: the same bits."""
    source, model = tmp_path / "mine.sched", tmp_path / "model"
    source.write_text(PLAN)
    model.mkdir()
    (model / "config.json").write_text(json.dumps(PRESETS["llama-test"].to_hf()))
    plan = compile_plan(load_file(source), "mine", {})
    build = tmp_path / "build"
    write_artifact(plan.artifact, build)
    data = write_data(tmp_path / "data.safetensors", 4, 2)
    config = tmp_path / "run.toml"
    config.write_text(
        f'data = ["{data}"]\nsteps = 2\nlr = 0.1\n'
        f'metrics = "{tmp_path}/a.jsonl"\ndump-gradients = "{tmp_path}/a.safetensors"\n'
    )
    assert launch(1, build, "--config", config).code == 0
    source.unlink()
    shutil.rmtree(model)
    (tmp_path / "elsewhere").mkdir()
    moved = Path(shutil.move(build, tmp_path / "elsewhere" / "build"))
    done = launch(
        1, moved, "--data", data, "--steps", "2", "--lr", "0.1", "--metrics",
        tmp_path / "b.jsonl", "--dump-gradients", tmp_path / "b.safetensors",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert done.out.count("step ") == 2
    first, second = (
        [json.loads(line) for line in (tmp_path / name).read_text().splitlines()]
        for name in ("a.jsonl", "b.jsonl")
    )
    for a, b in zip(first, second, strict=True):
        assert (a["loss"], a["grad_norm"]) == (b["loss"], b["grad_norm"])
    one, other = (load_tensors(tmp_path / name) for name in ("a.safetensors", "b.safetensors"))
    assert all((one[name] == other[name]).all() for name in one)


def test_times_are_measured_without_data(tmp_path: Path) -> None:
    build, times = tmp_path / "build", tmp_path / "times.json"
    artifact = artifact_of(ONE)
    manifest = replace(artifact.manifest, hashes={"graphs": "0123abcd"})
    write_artifact(replace(artifact, manifest=manifest), build)
    done = launch(1, build, "--steps", "0", "--times-out", times)
    assert done.code == 0, done.err
    found = json.loads(times.read_text())
    assert found["schema"] == "schedc times 1"
    assert set(found["graphs"]) >= {f"layer.{op}" for op in "FIW"}
    assert all(seconds > 0 for seconds in found["graphs"].values())
    assert len(found["step"]) == 1
    assert found["message"] == 0.0
    assert found["mesh"] == "dp=1 pp=1 cp=1 tp=1"
    assert found["build"] == "0123abcd"
