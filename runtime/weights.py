"""Parameters from random numbers, and from and to Hugging Face checkpoints (safetensors)."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from schedc.diagnostics import Diagnostic, DiagnosticError
from schedc.model.compare import differences
from schedc.model.load import load_config, parse_config
from schedc.program.signature import Parameter

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
SHARD_BYTES = 5_000_000_000
STAGING = ".schedc-export-"

DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
STORED = {"F64": "fp64", "F32": "fp32", "F16": "fp16", "BF16": "bf16"}
"""Our names of the dtypes in a safetensors header."""

EXACT = ("fp32", "bf16", "fp16")
"""Stored dtypes that fp32 masters hold without rounding."""

NO_PARAMETER = re.compile(r"(^|\.)rotary_emb\.inv_freq$")
"""Buffers that older checkpoints hold beside the parameters."""

TIED, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"

SHOWN = 8
"""So many names of a long list are printed."""


def initialise(parameters: Iterable[Parameter], seed: int) -> dict[str, Tensor]:
    """Freshly initialised parameters by name: masters, in fp32 whatever the model computes in.

    Each has a generator of its own, seeded by ``seed`` and its name: its values do not depend on
    which other parameters a rank holds.
    """
    return {parameter.name: _initial(parameter, seed) for parameter in parameters}


def _initial(parameter: Parameter, seed: int) -> Tensor:
    match parameter.init.split():
        case ["ones"]:
            return torch.ones(parameter.shape)
        case ["zeros"]:
            return torch.zeros(parameter.shape)
        case ["normal", std]:
            return _normal(parameter, float(std), seed)
        case ["normal", std, "zero-row", row]:
            table = _normal(parameter, float(std), seed)
            table[int(row)] = 0
            return table
        case _:
            raise _refusal(f"{parameter.name} has an unknown initialisation {parameter.init!r}")


def _normal(parameter: Parameter, std: float, seed: int) -> Tensor:
    digest = hashlib.sha256(f"{seed} {parameter.name}".encode()).digest()
    generator = torch.Generator()
    generator.manual_seed(int.from_bytes(digest[:8], "little", signed=True))
    return torch.empty(parameter.shape).normal_(0.0, std, generator=generator)


# Reading


def read_checkpoint(
    folder: Path,
    parameters: Sequence[Parameter],
    config: Mapping[str, object],
    wanted: Collection[str] | None = None,
) -> dict[str, Tensor]:
    """The parameters named in ``wanted`` (None: all) from a checkpoint folder: masters, in fp32.

    ``parameters`` are the whole model's: every rank checks the headers of all shards against them,
    so that all refuse alike, and then reads only what it wants. Narrower floating-point numbers are
    widened, which is exact; no master is rounded. Raises E903 for a folder that is no checkpoint,
    for missing or unexpected parameters, wrong shapes or dtypes, and numbers beyond the range of
    what the model computes in, all of them named at once. A tied model's ``lm_head.weight`` may be
    there if it equals the embedding.

    The folder's ``config.json``, where it has one, must mean the same numbers as the plan's
    ``config``, in whatever spelling: the same tensors under another ``rope_theta`` are another
    model. E903 names what differs; E805 is raised for a configuration that cannot be honoured.
    """
    _check_config(folder, config)
    expected = {parameter.name: parameter for parameter in parameters}
    files = _files(folder)
    headers: dict[str, tuple[Path, tuple[int, ...], str]] = {}
    for path in files:
        with _opened(path) as file:
            for name in file.keys():  # noqa: SIM118 (no dict)
                part = file.get_slice(name)
                if name in headers:
                    raise _refusal(f"{name} is in both {headers[name][0]} and {path}")
                headers[name] = (path, tuple(part.get_shape()), part.get_dtype())
    problems = _mismatches(folder, expected, headers)
    if problems:
        raise DiagnosticError(problems)
    if TIED in headers and TIED not in expected:
        _check_tied(headers)

    names = set(expected if wanted is None else wanted)
    assert names <= set(expected), f"no parameters: {sorted(names - set(expected))}"
    read: dict[str, Tensor] = {}
    for path in files:
        with _opened(path) as file:
            for name in sorted(name for name in names if headers[name][0] == path):
                # A copy: what safetensors returns is a mapping of the file.
                read[name] = file.get_tensor(name).to(torch.float32, copy=True)
    _check_range(folder, [expected[name] for name in read], read)
    return {name: read[name] for name in expected if name in names}


def _check_config(folder: Path, config: Mapping[str, object]) -> None:
    path = folder / "config.json"
    if not path.exists():
        return
    found = differences(load_config(str(path)), parse_config("the plan's configuration", config))
    if found:
        values = [f"{name} is {theirs}, the plan's {ours}" for name, theirs, ours in found]
        raise _refusal(
            f"{path} is of another model ({len(found)}): {_listed(values)}",
            help="compile the plan with this folder as its model",
        )


def _files(folder: Path) -> tuple[Path, ...]:
    """The checkpoint's safetensors files, a single one first, as transformers chooses."""
    if not folder.is_dir():
        raise _refusal(f"there is no checkpoint folder {folder}")
    if (folder / SINGLE).is_file():
        return (folder / SINGLE,)
    index = folder / INDEX
    if not index.is_file():
        pickled = sorted(path.name for path in folder.glob("pytorch_model*"))
        raise _refusal(
            f"{folder} holds neither {SINGLE} nor {INDEX}",
            help=f"{pickled[0]} is not read: save the model as safetensors" if pickled else None,
        )
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _refusal(f"cannot read {index}: {error!r}") from None
    missing = [
        str(name)
        for name in names
        if Path(str(name)).name != str(name) or not (folder / str(name)).is_file()
    ]
    if missing:
        raise _refusal(f"{index} names files that {folder} does not hold: {_listed(missing)}")
    return tuple(folder / name for name in names)


def _mismatches(
    folder: Path,
    expected: Mapping[str, Parameter],
    headers: Mapping[str, tuple[Path, tuple[int, ...], str]],
) -> list[Diagnostic]:
    missing = [name for name in expected if name not in headers]
    unexpected = sorted(
        name
        for name in headers
        if name not in expected and not NO_PARAMETER.search(name) and name != TIED
    )
    if TIED in headers and TIED not in expected and EMBEDDING not in expected:
        unexpected.append(TIED)
    shapes: list[str] = []
    dtypes: list[str] = []
    for name, parameter in expected.items():
        if name not in headers:
            continue
        _, shape, stored = headers[name]
        if shape != parameter.shape:
            shapes.append(f"{name} is {list(shape)}, the plan's {list(parameter.shape)}")
        dtype = STORED.get(stored, stored)
        if dtype not in EXACT:
            dtypes.append(f"{name} is {dtype}, masters are fp32")
    tied = "the checkpoint seems to be tied: compile with tie_word_embeddings true"
    found = (
        ("missing parameters", missing, tied if missing == [TIED] else None),
        ("parameters that the model has not", unexpected, None),
        ("parameters of another shape", shapes, None),
        ("parameters of a dtype that would be rounded", dtypes, None),
    )
    return [
        Diagnostic(
            "E903", f"checkpoint {folder}: {what} ({len(names)}): {_listed(names)}", help=help
        )
        for what, names, help in found
        if names
    ]


def _check_range(
    folder: Path, parameters: Sequence[Parameter], masters: Mapping[str, Tensor]
) -> None:
    """Refuse finite masters that the model would compute with as infinite."""
    beyond: list[str] = []
    for parameter in parameters:
        largest = torch.finfo(DTYPES[parameter.dtype]).max
        sizes = masters[parameter.name].abs()
        if parameter.dtype != "fp32" and ((sizes > largest) & sizes.isfinite()).any():
            beyond.append(parameter.name)
    if beyond:
        (dtype,) = {parameter.dtype for parameter in parameters}
        raise _refusal(
            f"checkpoint {folder}: parameters beyond the range of {dtype} ({len(beyond)}): "
            f"{_listed(beyond)}",
            help="compile the plan with `precision bf16` or `precision fp32`",
        )


def _check_tied(headers: Mapping[str, tuple[Path, tuple[int, ...], str]]) -> None:
    """A head beside tied embeddings is a second copy of them, or else a mistake."""

    def tensor(name: str) -> Tensor:
        with _opened(headers[name][0]) as file:
            return file.get_tensor(name)

    if not torch.equal(tensor(TIED), tensor(EMBEDDING)):
        raise _refusal(
            f"{headers[TIED][0]}: {TIED} differs from {EMBEDDING}, but the model ties them",
            help="compile with tie_word_embeddings false",
        )


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except SafetensorError as error:
        raise _refusal(f"{path} is no valid safetensors file: {error}") from None
    except OSError as error:
        raise _refusal(f"cannot read {path}: {error.strerror or error}") from None


# Writing


def write_checkpoint(
    folder: Path,
    tensors: Mapping[str, Tensor],
    config: Mapping[str, object],
    *,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write parameters and configuration as a checkpoint folder that transformers loads.

    One ``model.safetensors``, or shards of at most ``shard_bytes`` with an index. The config's
    ``dtype`` becomes that of the tensors, for transformers rounds to it. All files are
    written and synced under temporary names first, then renamed, the one that makes the checkpoint
    last: whenever it is interrupted, the folder holds the old checkpoint, the new one, or none that
    loads, never a mixture. Other files of the folder stay; E903 refuses a ``config.json`` of
    something else, and reports whatever goes wrong.
    """
    try:
        refuse_foreign(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f"{STAGING}*"):  # by an export that was killed
            shutil.rmtree(left)
        staging = Path(tempfile.mkdtemp(prefix=STAGING, dir=folder))
        try:
            names = _stage(staging, tensors, config, shard_bytes)
            _publish(staging, folder, names)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        raise _refusal(f"cannot write checkpoint {folder}: {error}") from None


def refuse_foreign(folder: Path) -> None:
    """Refuse to write over a ``config.json`` that is no model's, or over folders and files."""
    if folder.exists() and not folder.is_dir():
        raise _refusal(f"cannot write checkpoint {folder}: it is a file")
    for name in ("config.json", SINGLE, INDEX):
        if (folder / name).is_dir():
            raise _refusal(f"cannot write checkpoint {folder}: its {name} is a folder")
    path = folder / "config.json"
    if not path.exists():
        return
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        config = None
    if not isinstance(config, dict) or "model_type" not in config:
        raise _refusal(
            f"{path} is no model's configuration and would be overwritten",
            help="export to another folder",
        )


def _stage(
    staging: Path, tensors: Mapping[str, Tensor], config: Mapping[str, object], shard_bytes: int
) -> list[str]:
    """Write all files into ``staging``; their names in the order of their publication."""
    written = dict(config)
    dtypes = {str(t.dtype).removeprefix("torch.") for t in tensors.values()}
    if len(dtypes) == 1:
        written.pop("torch_dtype", None)
        written["dtype"] = dtypes.pop()
    _write_json(staging / "config.json", written)

    shards = _shards(tensors, shard_bytes)
    count = len(shards)
    names = [f"model-{n:05}-of-{count:05}.safetensors" for n in range(1, count + 1)]
    if count == 1:
        names = [SINGLE]
    for name, shard in zip(names, shards, strict=True):
        # Copies on the CPU: views, tied tensors and tensors of inference mode become plain ones.
        # Cloning one shard at a time bounds the memory.
        with torch.inference_mode(False), torch.no_grad():
            copies = {
                key: tensors[key].detach().to("cpu").clone(memory_format=torch.contiguous_format)
                for key in shard
            }
        save_file(copies, staging / name, metadata={"format": "pt"})
        shutil.copymode(staging / "config.json", staging / name)  # safetensors makes private files
        _sync(staging / name)

    if count == 1:
        return ["config.json", SINGLE]
    total = sum(t.numel() * t.element_size() for t in tensors.values())
    where = {key: name for name, shard in zip(names, shards, strict=True) for key in shard}
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(where.items()))}
    _write_json(staging / INDEX, index)
    return [*names, "config.json", INDEX]


def _shards(tensors: Mapping[str, Tensor], shard_bytes: int) -> list[list[str]]:
    """Names in the given order, cut into runs of at most ``shard_bytes`` (a larger one alone)."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        if shards[-1] and filled + size > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    return shards


def _publish(staging: Path, folder: Path, names: list[str]) -> None:
    """Rename staged files into the folder, the last of ``names`` being the one that counts."""
    old = {path.name for path in folder.iterdir() if SHARD.fullmatch(path.name)}
    old |= {name for name in (SINGLE, INDEX) if (folder / name).exists()}
    if old and (old != {SINGLE} or names[-1] != SINGLE):
        # Several files cannot be replaced at once: without these two none of the others is read.
        for name in (SINGLE, INDEX):
            (folder / name).unlink(missing_ok=True)
        _sync(folder)
    for name in names:
        os.replace(staging / name, folder / name)
    for name in sorted(old - set(names)):
        (folder / name).unlink(missing_ok=True)
    _sync(folder)


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refusal(message: str, help: str | None = None) -> DiagnosticError:
    """The error for a checkpoint that cannot be read or written (E903)."""
    return DiagnosticError(Diagnostic("E903", message, help=help))


def _listed(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")
