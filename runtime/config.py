"""The configuration of a run: options of the command line and keys of ``run.toml``, typed."""

from __future__ import annotations

import difflib
import json
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from schedc.diagnostics import Diagnostic, DiagnosticError
from schedc.runtime.datasets.tokens import TokenType
from schedc.runtime.learning_rate import Schedule

ExportType = Literal["fp32", "bf16", "fp16"]


@dataclass(frozen=True, slots=True)
class RunConfig:
    """What a run is told beside the compiled plan. Times in seconds; a ``clip`` of 0 is none.

    ``shuffle`` None: texts and token files are shuffled, sequences are not. ``export_dtype`` None:
    the plan's precision. With ``eval_data`` there is an evaluation before the first step, after
    every ``eval_every`` (0: none between) and after the last.
    """

    steps: int = 100
    data: tuple[Path, ...] = ()
    tokenizer: Path | None = None
    token_type: TokenType | None = None
    shuffle: bool | None = None
    seed: int = 0
    init: Path | None = None
    export: Path | None = None
    export_dtype: ExportType | None = None
    dump_gradients: Path | None = None
    metrics: Path | None = None
    times_out: Path | None = None
    trace_out: Path | None = None
    memory_out: Path | None = None
    transport: Literal["auto", "gloo", "nccl"] = "auto"
    lr: float = 1e-3
    lr_schedule: Schedule = "constant"
    min_lr: float = 0.0
    warmup: int = 0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    momentum: float = 0.0
    clip: float = 1.0
    timeout: float = 300.0
    log_every: int = 1
    eval_data: tuple[Path, ...] = ()
    eval_every: int = 0

    def shared(self) -> dict[str, Any]:
        """What has to be the same on all ranks, as JSON has it.

        Paths may differ, as hosts do; whether there is one may not.
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, check in CHECKS.items():
            if check in (_path, _paths):
                values[name] = bool(values[name])
        return json.loads(json.dumps(values))


KEYS = tuple(field.name for field in fields(RunConfig))


def make_config(options: Mapping[str, Any], file: Path | None) -> RunConfig:
    """Defaults, then the keys of ``file``, then ``options`` that are not None.

    Keys may be written with ``-`` or ``_``. Raises E904 with every mistake found.
    """
    values: dict[str, Any] = {}
    problems: list[Diagnostic] = []
    for source, given in ((file, _read(file) if file else {}), (None, options)):
        for written, value in given.items():
            key = written.replace("-", "_")
            if value is None:
                continue
            if key not in KEYS:
                problems.append(_unknown(written, source))
                continue
            try:
                values[key] = CHECKS[key](value)
            except ValueError as error:
                problems.append(_bad(key, value, str(error), source))
    if values.get("data") == () or ("data" not in values and values.get("steps", 100) > 0):
        problems.append(
            Diagnostic("E904", "no data to train on is given", help="--data FILE_OR_FOLDER")
        )
    if "eval_every" in values and "eval_data" not in values:
        message = "--eval-every is given, but no data to evaluate on"
        problems.append(Diagnostic("E904", message, help="--eval-data FILE_OR_FOLDER"))
    if problems:
        raise DiagnosticError(problems)
    return RunConfig(**values)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _refused(f"cannot read {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise _refused(f"{path} is no TOML: {error}") from None


def _refused(message: str) -> DiagnosticError:
    return DiagnosticError(Diagnostic("E904", message))


def _unknown(key: str, source: Path | None) -> Diagnostic:
    names = [name.replace("_", "-") for name in KEYS]
    close = difflib.get_close_matches(key.replace("_", "-"), names, n=1)
    return Diagnostic(
        "E904",
        f"unknown key {key!r}" + (f" in {source}" if source else ""),
        help=f"did you mean {close[0]!r}?" if close else f"the keys are {', '.join(names)}",
    )


def _bad(key: str, value: object, why: str, source: Path | None) -> Diagnostic:
    where = f"{source}: " if source else ""
    option = key.replace("_", "-") if source else f"--{key.replace('_', '-')}"
    return Diagnostic("E904", f"{where}{option} {why}, it is {value!r}")


def _integer(low: int) -> Callable[[Any], int]:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError("has to be a whole number")
        if value < low:
            raise ValueError(f"has to be at least {low}")
        return value

    return check


def _number(
    low: float, below: float = math.inf, *, above_low: bool = False
) -> Callable[[Any], float]:
    def check(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError("has to be a number")
        value = float(value)
        if not low <= value < below or (above_low and value == low):
            least = f"above {low:g}" if above_low else f"at least {low:g}"
            raise ValueError(f"has to be {least}" + (f" and below {below:g}" * (below < math.inf)))
        return value

    return check


def _path(value: Any) -> Path:
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError("has to be a path")
    return Path(value)


def _paths(value: Any) -> tuple[Path, ...]:
    if isinstance(value, str | Path):
        value = (value,)
    if not isinstance(value, Sequence):
        raise ValueError("has to be a path or a list of paths")
    return tuple(_path(item) for item in value)


def _choice(*choices: str) -> Callable[[Any], Any]:
    def check(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"has to be one of {', '.join(choices)}")
        return value

    return check


def _switch(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if value not in ("on", "off"):
        raise ValueError("has to be on or off")
    return value == "on"


def _betas(value: Any) -> tuple[float, float]:
    check = _number(0.0, 1.0)
    if isinstance(value, str) or not isinstance(value, Sequence) or len(value) != 2:
        raise ValueError("has to be two numbers")
    return check(value[0]), check(value[1])


CHECKS: dict[str, Callable[[Any], Any]] = {
    "steps": _integer(0),
    "data": _paths,
    "tokenizer": _path,
    "token_type": _choice(*get_args(TokenType)),
    "shuffle": _switch,
    "seed": _integer(0),
    "init": _path,
    "export": _path,
    "export_dtype": _choice(*get_args(ExportType)),
    "dump_gradients": _path,
    "metrics": _path,
    "times_out": _path,
    "trace_out": _path,
    "memory_out": _path,
    "transport": _choice("auto", "gloo", "nccl"),
    "lr": _number(0.0),
    "lr_schedule": _choice(*get_args(Schedule)),
    "min_lr": _number(0.0),
    "warmup": _integer(0),
    "weight_decay": _number(0.0),
    "betas": _betas,
    "momentum": _number(0.0),
    "clip": _number(0.0),
    "timeout": _number(1.0),
    "log_every": _integer(1),
    "eval_data": _paths,
    "eval_every": _integer(1),
}
"""How a value of each key is checked; raises ValueError with what it has to be."""
