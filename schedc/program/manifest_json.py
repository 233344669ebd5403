"""The manifest and the signatures as JSON: deterministic to write, strict to read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import TypeVar, cast, get_args

from schedc.ir.mesh import AXES, Mesh
from schedc.ir.precision import FORMATS, Precision
from schedc.program.manifest import SCHEMA, Manifest
from schedc.program.signature import (
    DTYPE_BYTES,
    Parameter,
    Role,
    Signature,
    Unit,
    UnitKind,
    Value,
)

T = TypeVar("T")
Object = dict[str, object]

SEAL = "manifest.json"
"""The key, among ``hashes``, of the manifest's own."""


def dumps(value: object) -> str:
    """JSON of one form: keys sorted, one blank of indentation, UTF-8 kept, a last newline.

    Texts that are no Unicode (names of files may be so) are escaped.
    """
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)
    if any("\ud800" <= character <= "\udfff" for character in text):
        text = json.dumps(value, indent=1, sort_keys=True)
    return text + "\n"


def signature_to_json(signature: Signature) -> str:
    return dumps(asdict(signature))


def signature_from_json(text: str) -> Signature:
    """Raises ValueError where ``text`` is no signature."""
    fields = _object(json.loads(text), "a signature")
    return Signature(
        name=_get(fields, "name", str),
        digest=_get(fields, "digest", str),
        inputs=tuple(map(_value, _list(fields, "inputs"))),
        outputs=tuple(map(_value, _list(fields, "outputs"))),
        flops=_get(fields, "flops", int),
        moved=_get(fields, "moved", int),
        peak=_get(fields, "peak", int),
        peak_beside=_get(fields, "peak_beside", int),
    )


def manifest_to_json(manifest: Manifest) -> str:
    """All of the manifest but the signatures, which lie beside the graphs; with a seal.

    The seal is one more of ``hashes``, over everything else: unlike programs, a manifest is not to
    be edited, since graphs and programs were compiled for just what it says.
    """
    fields: Object = {
        "schema": SCHEMA,
        "name": manifest.name,
        "schedule": manifest.schedule,
        "mesh": asdict(manifest.mesh),
        "sequence": manifest.sequence,
        "batch": manifest.batch,
        "microbatch": manifest.microbatch,
        "microbatches": manifest.microbatches,
        "precision": asdict(manifest.precision),
        "optimizer": manifest.optimizer,
        "evaluation": manifest.evaluation,
        "rank_of": manifest.rank_of,
        "stages": manifest.stages,
        "units": [_unit_fields(unit) for unit in manifest.units],
        "graphs": sorted(manifest.signatures),
        "config": manifest.config,
        "sources": {
            source: [[number, lines[number]] for number in sorted(lines)]
            for source, lines in manifest.sources.items()
        },
        "hashes": manifest.hashes,
    }
    return dumps(fields | {"hashes": manifest.hashes | {SEAL: _seal(fields)}})


def _seal(fields: Object) -> str:
    return hashlib.sha256(dumps(fields).encode()).hexdigest()


def manifest_from_json(text: str, signature: Callable[[str], Signature]) -> Manifest:
    """The manifest; ``signature`` finds the signature of a graph by its name.

    Raises ValueError where ``text`` is no manifest of this schema.
    """
    fields = _object(json.loads(text), "a manifest")
    schema = fields.get("schema")
    if schema != SCHEMA:
        raise ValueError(f"the schema is {schema!r}, and this schedc reads {SCHEMA!r}")
    mesh = _object(fields.get("mesh"), "`mesh`")
    sources = _object(fields.get("sources"), "`sources`")
    hashes = _object(fields.get("hashes"), "`hashes`")
    stages = _list(fields, "stages")
    seal = hashes.pop(SEAL, None)  # out of `fields` too, of which it is the hash
    manifest = Manifest(
        name=_get(fields, "name", str),
        schedule=_get(fields, "schedule", str),
        mesh=Mesh(**{axis: _get(mesh, axis, int) for axis in AXES}),
        sequence=_get(fields, "sequence", int),
        batch=_get(fields, "batch", int),
        microbatch=_get(fields, "microbatch", int),
        microbatches=_get(fields, "microbatches", int),
        precision=_precision(_object(fields.get("precision"), "`precision`")),
        optimizer=_get(fields, "optimizer", str),
        evaluation=_get(fields, "evaluation", int),
        rank_of=_all(_list(fields, "rank_of"), int, "`rank_of`"),
        stages=tuple(_all(_items(stage, "`stages`"), str, "`stages`") for stage in stages),
        units=tuple(map(_unit, _list(fields, "units"))),
        signatures={
            name: signature(name) for name in _all(_list(fields, "graphs"), str, "`graphs`")
        },
        config=_object(fields.get("config"), "`config`"),
        sources={source: _source_lines(lines) for source, lines in sources.items()},
        hashes={name: _get(hashes, name, str) for name in hashes},
    )
    if seal != _seal(fields):
        raise ValueError("it was changed after it was compiled")
    return manifest


def is_manifest(text: str) -> bool:
    """Whether ``text`` is a manifest of any version of ours."""
    try:
        fields: object = json.loads(text)
    except ValueError:
        return False
    schema = cast(Object, fields).get("schema") if isinstance(fields, dict) else None
    return isinstance(schema, str) and schema.startswith("schedc build ")


def _precision(fields: Object) -> Precision:
    return Precision(
        model=_choice(_get(fields, "model", str), FORMATS),
        reduce=_choice(_get(fields, "reduce", str), FORMATS),
        scale=_get(fields, "scale", int),
    )


def _unit_fields(unit: Unit) -> Object:
    parameters = [{"local": local, **asdict(parameter)} for local, parameter in unit.parameters]
    return {"name": unit.name, "kind": unit.kind, "graphs": unit.graphs, "parameters": parameters}


def _unit(value: object) -> Unit:
    fields = _object(value, "a unit")
    parameters = [_object(item, "a parameter") for item in _list(fields, "parameters")]
    return Unit(
        name=_get(fields, "name", str),
        kind=_choice(_get(fields, "kind", str), cast("tuple[UnitKind, ...]", get_args(UnitKind))),
        graphs=_get(fields, "graphs", str),
        parameters=tuple((_get(item, "local", str), _parameter(item)) for item in parameters),
    )


def _parameter(fields: Object) -> Parameter:
    return Parameter(
        name=_get(fields, "name", str),
        shape=_all(_list(fields, "shape"), int, "`shape`"),
        dtype=_choice(_get(fields, "dtype", str), tuple(DTYPE_BYTES)),
        init=_get(fields, "init", str),
        frozen=_get(fields, "frozen", bool),
        tied=_get(fields, "tied", bool),
    )


def _value(value: object) -> Value:
    fields = _object(value, "an input or output")
    alias = fields.get("alias")
    return Value(
        role=_choice(_get(fields, "role", str), cast("tuple[Role, ...]", get_args(Role))),
        name=_get(fields, "name", str),
        shape=_all(_list(fields, "shape"), int, "`shape`"),
        dtype=_choice(_get(fields, "dtype", str), tuple(DTYPE_BYTES)),
        stride=_all(_list(fields, "stride"), int, "`stride`"),
        alias=None if alias is None else _get(fields, "alias", str),
    )


def _source_lines(value: object) -> dict[int, str]:
    lines: dict[int, str] = {}
    for pair in _items(value, "`sources`"):
        number, line = _items(pair, "`sources`")
        lines[_is(number, int, "`sources`")] = _is(line, str, "`sources`")
    return lines


def _object(value: object, what: str) -> Object:
    if not isinstance(value, dict):
        raise ValueError(f"{what} must be an object")
    return cast(Object, value)


def _items(value: object, what: str) -> list[object]:
    if not isinstance(value, list):
        raise ValueError(f"{what} must hold lists")
    return cast("list[object]", value)


def _list(fields: Object, name: str) -> list[object]:
    return _items(fields.get(name), f"`{name}`")


def _get(fields: Object, name: str, kind: type[T]) -> T:
    if name not in fields:
        raise ValueError(f"`{name}` is missing")
    return _is(fields[name], kind, f"`{name}`")


def _is(value: object, kind: type[T], what: str) -> T:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        name = "a text" if kind is str else "true or false" if kind is bool else "a whole number"
        raise ValueError(f"{what} must be {name}")
    return value


def _all(values: Iterable[object], kind: type[T], what: str) -> tuple[T, ...]:
    return tuple(_is(value, kind, what) for value in values)


def _choice(value: str, choices: tuple[T, ...]) -> T:
    for choice in choices:
        if choice == value:
            return choice
    raise ValueError(f"{value!r} is none of {' '.join(map(str, choices))}")
