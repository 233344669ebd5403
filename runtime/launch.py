"""The command of a run: options, setting up, training, what is written at the end."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import click
import torch
import torch.distributed as dist

from schedc.diagnostics import DiagnosticError, render
from schedc.runtime.config import RunConfig, make_config
from schedc.runtime.connect import connect, lost_peer
from schedc.runtime.environment import Agreement, Environment
from schedc.runtime.evaluation import EvaluationRecord, Evaluator
from schedc.runtime.preparation import Preparation, prepare_attention
from schedc.runtime.progress import Progress
from schedc.runtime.rank import Rank
from schedc.runtime.reports import Reports
from schedc.runtime.training import MetricsFile, Observer, export, save_gradients, train
from schedc.runtime.transports.interface import Endpoint
from schedc.runtime.verdict import EVALUATES, Describer
from schedc.runtime.watchdog import Watchdog

EPILOG = (
    "Every option is also a key of the --config file. torchrun --nproc-per-node N … starts N ranks."
)


@click.command(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("build")
@click.option("--config", metavar="FILE", help="TOML file with these options as keys.")
@click.option("--steps", type=int, help="Steps to train (default 100).")
@click.option(
    "--data", multiple=True, metavar="PATH", help="Text, .bin or .safetensors; repeatable."
)
@click.option("--eval-data", multiple=True, metavar="PATH", help="Data to evaluate on, likewise.")
@click.option(
    "--eval-every",
    type=int,
    metavar="N",
    help="Evaluate after every N steps, not only at the ends.",
)
@click.option("--tokenizer", metavar="PATH", help="tokenizer.json for text; bytes without.")
@click.option("--token-type", metavar="TYPE", help="Width of a raw .bin: uint16 or uint32.")
@click.option("--shuffle", metavar="on|off", help="Shuffle texts and token files (default on).")
@click.option("--seed", type=int, help="Of the parameters and the shuffling (default 0).")
@click.option("--init", metavar="DIR", help="Start from a Hugging Face checkpoint folder.")
@click.option("--export", metavar="DIR", help="Write a Hugging Face checkpoint folder at the end.")
@click.option(
    "--export-dtype", metavar="TYPE", help="fp32, bf16 or fp16 (default: the plan's precision)."
)
@click.option("--dump-gradients", metavar="FILE", help="Write the first step's gradients.")
@click.option("--metrics", metavar="FILE", help="Write a JSON line a step.")
@click.option(
    "--times-out", metavar="FILE", help="Time graphs and messages first, write the times."
)
@click.option("--trace-out", metavar="FILE", help="Write the last step's measured timeline.")
@click.option("--memory-out", metavar="FILE", help="Write what one step keeps in memory.")
@click.option(
    "--transport",
    metavar="KIND",
    help="nccl (GPUs), gloo (CPUs), or auto: what there is (default).",
)
@click.option("--lr", type=float, help="Peak learning rate (default 1e-3).")
@click.option("--lr-schedule", metavar="KIND", help="constant (default) or cosine.")
@click.option("--min-lr", type=float, help="Where cosine ends (default 0).")
@click.option("--warmup", type=int, help="Steps over which the learning rate rises (default 0).")
@click.option("--weight-decay", type=float, help="Default 0.")
@click.option("--betas", type=float, nargs=2, help="Of AdamW (default 0.9 0.95).")
@click.option("--momentum", type=float, help="Of SGD (default 0).")
@click.option("--clip", type=float, help="Largest gradient norm; 0 is none (default 1).")
@click.option(
    "--timeout",
    type=float,
    help="Seconds without progress that end a run (default 300). Ranks have 60 at least to come "
    "up, and half an hour to read data and to write results.",
)
@click.option("--log-every", type=int, help="Steps from one line to the next (default 1).")
def command(
    build: str, config: str | None, **options: Any
) -> tuple[Path, str | None, dict[str, Any]]:
    """Train the compiled plan in folder BUILD."""
    for name in ("data", "eval_data"):
        options[name] = options[name] or None
    return Path(build), config, options


def main() -> None:
    """Run one rank; ends the process. Status 0: done, 1: refused or ended, 2: usage."""
    environment = Environment.read(os.environ)
    try:
        parsed = command.main(standalone_mode=False, prog_name="runtime/exec.py")
    except click.ClickException as error:
        if environment.rank == 0:
            error.show()
        sys.exit(error.exit_code)
    if not isinstance(parsed, tuple):  # --help was shown
        sys.exit(0)
    sys.exit(run(environment, *parsed))


def run(environment: Environment, build: Path, file: str | None, options: dict[str, Any]) -> int:
    """Set up together with the other ranks, then train."""
    config, problem = _configure(options, file)
    try:
        store = environment.connect()
    except DiagnosticError as error:
        print(render(error.diagnostics), file=sys.stderr)
        return 1
    watchdog = Watchdog(
        environment.prefixed(environment.connect_again(store), "watchdog"),
        environment.identity,
        config.timeout,
    )
    watchdog.start()
    with _ending_all(watchdog):
        agreement = Agreement(environment, environment.prefixed(store, "setup"), watchdog.waiting)
        setup = Preparation(environment, agreement)
        watchdog.enter("reads the programs")
        artifact, device = setup.load(build, config, problem)
        manifest = artifact.manifest
        watchdog.describer = Describer(
            artifact.programs, manifest.mesh, manifest.sources, artifact.evaluation
        )
        watchdog.enter("connects")
        transport = connect(environment, store, artifact, device, config.timeout)
        if device.type == "cuda":
            prepare_attention(artifact, transport)
        watchdog.enter("reads data and parameters")
        rank, evaluator, metrics = setup.make_rank(artifact, transport, config)
        _work(rank, transport, config, watchdog, evaluator, metrics)
        transport.barrier()
    watchdog.stop()
    dist.destroy_process_group()
    return 0


def _configure(
    options: dict[str, Any], file: str | None
) -> tuple[RunConfig, DiagnosticError | None]:
    """The configuration, or the defaults and what is wrong: which the ranks are to tell once."""
    try:
        return make_config(options, Path(file) if file else None), None
    except DiagnosticError as error:
        return RunConfig(), error


def _work(
    rank: Rank,
    transport: Endpoint,
    config: RunConfig,
    watchdog: Watchdog,
    evaluator: Evaluator | None,
    metrics: TextIO | None,
) -> None:
    reports = Reports(rank, transport, config)
    watchdog.enter("times its graphs")
    reports.before()
    observers: list[Observer] = [reports]
    if transport.rank == 0:
        observers.append(Progress(config.steps, config.log_every))
        observers += [MetricsFile(metrics)] if metrics is not None else []
    wanted = config.dump_gradients is not None
    rank.monitor.position = watchdog.shared.view

    def evaluate(step: int) -> EvaluationRecord:
        assert evaluator is not None
        watchdog.enter(EVALUATES, steps=True)
        record = evaluator.evaluate(step)
        watchdog.enter("trains", steps=True)
        return record

    watchdog.enter("trains", steps=True)
    gradients = train(rank, config, tuple(observers), wanted, evaluate if evaluator else None)
    watchdog.enter("writes results")
    if wanted and config.steps:
        save_gradients(rank, transport, config, gradients)
    reports.after()
    if config.export is not None:
        export(rank, transport, config)
    if metrics is not None:
        metrics.close()


@contextmanager
def _ending_all(watchdog: Watchdog) -> Iterator[None]:
    """Whatever ends this rank ends all of them, with one explanation."""
    try:
        yield
    except SystemExit:
        watchdog.stop()
        raise
    except DiagnosticError as error:
        watchdog.fail(render(error.diagnostics))
    except RuntimeError as error:
        if lost_peer(error):
            watchdog.fail("")
        if isinstance(error, torch.OutOfMemoryError) or "allocate memory" in str(error):
            watchdog.fail(f"out of memory: {str(error).splitlines()[0]}")
        _fail(watchdog, error)
    except Exception as error:
        _fail(watchdog, error)


def _fail(watchdog: Watchdog, error: Exception) -> None:
    """A bug of ours: with its traceback, once, from the rank that has it."""
    traceback.print_exc()
    watchdog.fail(f"{type(error).__name__}: {error}\nthis is a bug of schedc", code=3)
