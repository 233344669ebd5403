"""The command of a run: options, setting up, training, what is written at the end."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

import click
import torch.distributed as dist
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from schedc.diagnostics import Diagnostic, DiagnosticError, render
from schedc.program.artifact import Artifact, artifact_digest, load_artifact
from schedc.program.program import tied_ranks
from schedc.program.verify import verify_programs
from schedc.runtime.config import RunConfig, make_config
from schedc.runtime.environment import PATIENCE, Agreement, Environment
from schedc.runtime.progress import Progress
from schedc.runtime.rank import Rank, load_states, make_rank, open_batches
from schedc.runtime.reports import Reports
from schedc.runtime.training import MetricsFile, Observer, export, save_gradients, train
from schedc.runtime.transports.gloo import GlooTransport, lost_peer
from schedc.runtime.verdict import Describer
from schedc.runtime.watchdog import Watchdog
from schedc.runtime.weights import STAGING, refuse_foreign

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
@click.option("--lr", type=float, help="Peak learning rate (default 1e-3).")
@click.option("--lr-schedule", metavar="KIND", help="constant (default) or cosine.")
@click.option("--min-lr", type=float, help="Where cosine ends (default 0).")
@click.option("--warmup", type=int, help="Steps over which the learning rate rises (default 0).")
@click.option("--weight-decay", type=float, help="Default 0.")
@click.option("--betas", type=float, nargs=2, help="Of AdamW (default 0.9 0.95).")
@click.option("--momentum", type=float, help="Of SGD (default 0).")
@click.option("--clip", type=float, help="Largest gradient norm; 0 is none (default 1).")
@click.option(
    "--timeout", type=float, help="Seconds without progress that end a run (default 300)."
)
@click.option("--log-every", type=int, help="Steps from one line to the next (default 1).")
def command(
    build: str, config: str | None, **options: Any
) -> tuple[Path, str | None, dict[str, Any]]:
    """Train the compiled plan in folder BUILD."""
    options["data"] = options["data"] or None
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
    store = environment.connect()
    agreement = Agreement(environment, environment.prefixed(store, "setup"))
    setup = _Setup(environment, agreement)
    config, artifact = setup.load(build, file, options)
    describer = Describer(artifact.programs, artifact.manifest.mesh, artifact.manifest.sources)
    watchdog = Watchdog(
        environment.prefixed(environment.connect_again(store), "watchdog"),
        environment.identity,
        config.timeout,
        describer,
    )
    watchdog.start()
    with _ending_all(watchdog):
        watchdog.enter("connects")
        transport = _connect(environment, store, artifact, config)
        watchdog.enter("reads data and parameters")
        rank, metrics = setup.make_rank(artifact, transport, config)
        _work(rank, transport, config, watchdog, metrics)
        transport.barrier()
    watchdog.stop()
    dist.destroy_process_group()
    return 0


@dataclass(slots=True)
class _Setup:
    """The parts of setting up in which a rank may find mistakes of the user."""

    environment: Environment
    agreement: Agreement

    def load(
        self, build: Path, file: str | None, options: dict[str, Any]
    ) -> tuple[RunConfig, Artifact]:
        """Options and programs, verified; the same on all ranks, and as many ranks as planned."""
        problem: DiagnosticError | None = None
        config, artifact, digest = RunConfig(), None, ""
        try:
            config = make_config(options, Path(file) if file else None)
            artifact = load_artifact(build)
            digest = artifact_digest(build)
            self._check_world(artifact)
            mesh = artifact.manifest.mesh
            verify_programs(artifact.programs, artifact.model, mesh.dp)
        except DiagnosticError as error:
            problem = error
        digests = self.agreement.settle(digest, problem)
        assert artifact is not None
        self._same(digests, f"{build} is not the same on all ranks")
        return config, artifact

    def make_rank(
        self, artifact: Artifact, transport: GlooTransport, config: RunConfig
    ) -> tuple[Rank, TextIO | None]:
        """The rank with its data and parameters, and on rank 0 the open metrics file."""
        problem: DiagnosticError | None = None
        rank, metrics, fingerprint = None, None, ""
        units = artifact.programs[self._pp(artifact)].units
        try:
            batches = open_batches(artifact.manifest, config) if config.data else None
            fingerprint = batches.fingerprint if batches is not None else ""
            states = load_states(artifact.manifest, units, config)
            rank = make_rank(artifact, transport.rank, transport, config, states, batches)
            if transport.rank == 0:
                metrics = _prepare_outputs(config)
                if batches is not None and config.steps:
                    print(f"{artifact.manifest.name}: {batches.summary}", flush=True)
        except DiagnosticError as error:
            problem = error
        fingerprints = self.agreement.settle(fingerprint, problem)
        assert rank is not None
        self._same(fingerprints, "the data is not the same on all ranks")
        return rank, metrics

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

    def _same(self, values: list[Any], what: str) -> None:
        """Every rank sees all values, so all refuse alike."""
        other = [str(rank) for rank, value in enumerate(values) if value != values[0]]
        error = None
        if other:
            message = f"{what}: rank 0 differs from {', '.join(other)}"
            error = DiagnosticError(Diagnostic("E904", message))
        self.agreement.settle(None, error)


def _connect(
    environment: Environment, store: TCPStore, artifact: Artifact, config: RunConfig
) -> GlooTransport:
    """Join the others. gloo's own timeout is longer than the watchdog's, which says more."""
    environment.prefer_loopback()
    patience = timedelta(seconds=2 * config.timeout + 60)
    try:
        dist.init_process_group(
            "gloo",
            store=environment.prefixed(store, "groups"),
            rank=environment.rank,
            world_size=environment.world,
            timeout=max(patience, PATIENCE),
        )
        return GlooTransport(artifact.manifest.mesh, patience, tied_ranks(artifact.programs))
    except RuntimeError as error:
        if lost_peer(error):
            raise
        message = f"rank {environment.rank} cannot connect to the others: {error}"
        raise DiagnosticError(
            Diagnostic("E904", message, help="GLOO_SOCKET_IFNAME names the network device to use")
        ) from error


def _prepare_outputs(config: RunConfig) -> TextIO | None:
    """Make the folders of what will be written, so that a mistake shows before the work."""
    written = (
        config.metrics,
        config.dump_gradients,
        config.times_out,
        config.trace_out,
        config.memory_out,
    )
    for path in (*written, config.export):
        if path is None:
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if path in written and path.is_dir():
                raise IsADirectoryError(21, "it is a folder")
        except OSError as error:
            raise _unwritable(path, error) from None
    for path in written:
        if path is not None:
            _probe(path)
    if config.export is not None:
        _probe_folder(config.export)
    if config.metrics is None:
        return None
    try:
        return config.metrics.open("w", encoding="utf-8")
    except OSError as error:
        raise _unwritable(config.metrics, error) from None


def _probe(path: Path) -> None:
    """Raises E904 where ``path`` cannot be written; what is in it stays."""
    existed = path.exists()
    try:
        path.open("a").close()
    except OSError as error:
        raise _unwritable(path, error) from None
    if not existed:
        path.resolve().unlink()  # not a link to what did not exist


def _probe_folder(path: Path) -> None:
    """Raises E903 or E904 where no checkpoint can be written to ``path``; nothing changes."""
    try:
        refuse_foreign(path)
        where = path if path.exists() else path.parent
        tempfile.TemporaryDirectory(prefix=STAGING, dir=where).cleanup()
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> DiagnosticError:
    why = error.strerror or str(error)
    return DiagnosticError(Diagnostic("E904", f"cannot write {path}: {why}"))


def _work(
    rank: Rank,
    transport: GlooTransport,
    config: RunConfig,
    watchdog: Watchdog,
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
    watchdog.enter("trains", steps=True)
    gradients = train(rank, config, tuple(observers), keep_gradients=wanted)
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
        if "allocate memory" in str(error):
            watchdog.fail(f"out of memory: {str(error).splitlines()[0]}")
        _fail(watchdog, error)
    except Exception as error:
        _fail(watchdog, error)


def _fail(watchdog: Watchdog, error: Exception) -> None:
    """A bug of ours: with its traceback, once, from the rank that has it."""
    traceback.print_exc()
    watchdog.fail(f"{type(error).__name__}: {error}\nthis is a bug of schedc", code=3)
