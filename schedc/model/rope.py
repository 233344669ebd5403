"""Reading the rotary keys of a ``config.json``, in every spelling.

``rope_theta`` with ``rope_scaling`` and ``rope_parameters``, ``type`` and ``rope_type``. Spellings
that are there together must agree.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import cast

from schedc.model.config import LinearScaling, Llama3Scaling, RopeScaling, YarnScaling
from schedc.model.keys import ROPE

Refuse = Callable[[str, str], None]
"""Takes a key, and what is wrong with it."""

Entry = dict[str, object]

ORIGINAL = "original_max_position_embeddings"
COMMON = ("type", "rope_type", "rope_theta", "partial_rotary_factor")
NEEDED = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", ORIGINAL),
    "yarn": ("factor", ORIGINAL),
}
OPTIONAL = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")  # of yarn
DEFAULT_THETA = 10000.0


def read_rope(raw: Entry, context: int, refuse: Refuse) -> tuple[float, RopeScaling | None]:
    """Base and scaling; ``context`` is the configuration's max_position_embeddings."""
    found: list[tuple[str, object]] = []
    scalings: list[RopeScaling | None] = []
    if raw.get("rope_theta") is not None:
        found.append(("rope_theta", raw["rope_theta"]))
    for key in ROPE:
        given = raw.get(key)
        if given is None:
            continue
        if not isinstance(given, dict):
            refuse(key, f"{key} = {json.dumps(given)} is no object")
            continue
        entry = cast(Entry, given)
        if entry.get("rope_theta") is not None:
            found.append((f"{key}.rope_theta", entry["rope_theta"]))
        scalings.append(_scaling(key, entry, context, refuse))
    for name, theta in found:
        if not is_number(theta):
            refuse("rope_theta", f"{name} = {json.dumps(theta)} is not a positive number")
        elif theta != found[0][1]:
            refuse("rope_theta", f"{found[0][0]} = {found[0][1]} but {name} = {theta}")
    if len(scalings) == 2 and scalings[0] != scalings[1]:
        refuse("rope_scaling", "rope_scaling and rope_parameters contradict each other")
    theta = found[0][1] if found else DEFAULT_THETA
    return _number(theta) or DEFAULT_THETA, scalings[0] if scalings else None


def _scaling(key: str, entry: Entry, context: int, refuse: Refuse) -> RopeScaling | None:
    """One spelling's scaling: ``type`` or ``rope_type`` says which kind."""
    if entry.get("partial_rotary_factor") not in (None, 1.0):
        refuse("partial_rotary_factor", f"{key}.partial_rotary_factor must be 1.0")
    kind = entry.get("rope_type", entry.get("type", "default"))
    if not isinstance(kind, str) or kind not in NEEDED:
        supported = ", ".join(NEEDED)
        refuse(key, f"{key} of type {json.dumps(kind)} is not supported yet, only {supported}")
        return None
    values = _values(key, kind, entry, context, refuse)
    if values is None:
        return None
    match kind:
        case "linear":
            return LinearScaling(values["factor"])
        case "llama3":
            return _llama3(key, values, refuse)
        case "yarn":
            return _yarn(key, values, entry.get("truncate"), refuse)
        case _:
            return None


def _values(
    key: str, kind: str, entry: Entry, context: int, refuse: Refuse
) -> dict[str, float] | None:
    """The numbers of a scaling of this kind, its needed ones among them; None if any is wrong."""
    needed = NEEDED[kind]
    values: dict[str, float] = {}
    problems: list[tuple[str, str]] = []
    for name, value in entry.items():
        if value is None or name in COMMON or (name == "truncate" and kind == "yarn"):
            continue
        if name not in (*needed, *(OPTIONAL if kind == "yarn" else ())):
            problems.append((name, f"{key} of type {kind} has a key {name} that is not known"))
        elif name == ORIGINAL and not isinstance(value, int):
            problems.append((name, f"{key}.{name} = {json.dumps(value)} is no whole number"))
        elif not is_number(value):
            problems.append((name, f"{key}.{name} = {json.dumps(value)} is not a positive number"))
        else:
            values[name] = _number(value)
    if ORIGINAL in needed:  # left out, it is the whole context
        values.setdefault(ORIGINAL, context)
    absent = [name for name in needed if entry.get(name) is None and name not in values]
    problems += [(key, f"{key} of type {kind} lacks {name}") for name in absent]
    for name, problem in problems:
        refuse(name, problem)
    return None if problems else values


def _llama3(key: str, values: dict[str, float], refuse: Refuse) -> Llama3Scaling:
    low, high = values["low_freq_factor"], values["high_freq_factor"]
    if low >= high:
        refuse(key, f"{key}: low_freq_factor {low} is not below high_freq_factor {high}")
    original = int(values[ORIGINAL])
    return Llama3Scaling(values["factor"], low, high, original)


def _yarn(key: str, values: dict[str, float], truncate: object, refuse: Refuse) -> YarnScaling:
    """With the attention factor that transformers infers where the file leaves it out."""
    if not isinstance(truncate, bool | None):
        refuse("truncate", f"{key}.truncate = {json.dumps(truncate)} is not true or false")
    factor = values["factor"]

    def scale(by: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * by * math.log(factor) + 1.0

    inferred = scale(1.0)
    if "mscale" in values and "mscale_all_dim" in values:
        inferred = scale(values["mscale"]) / scale(values["mscale_all_dim"])
    return YarnScaling(
        factor=factor,
        original_max_position_embeddings=int(values[ORIGINAL]),
        attention_factor=values.get("attention_factor", inferred),
        beta_fast=values.get("beta_fast", 32.0),
        beta_slow=values.get("beta_slow", 1.0),
        truncate=truncate is not False,
    )


def is_number(value: object) -> bool:
    """Whether a value is a positive, finite number."""
    return (
        isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float("inf")
    )


def _number(value: object) -> float:
    """A positive number as a float; 0.0 for anything else."""
    return float(value) if isinstance(value, (int, float)) and is_number(value) else 0.0
