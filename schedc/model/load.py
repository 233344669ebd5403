"""Reading a configuration: a preset by name, or Hugging Face's ``config.json``.

Every key is honoured, known to be of no consequence for training, or refused by name.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

from schedc.diagnostics import Diagnostic, DiagnosticError, Label, Source, Span
from schedc.model.config import ARCHITECTURES, PRESETS, LlamaConfig, ModelType
from schedc.model.keys import FAMILIES, FLAGS, KNOWN, NUMBERS, ONLY, REQUIRED, SIZES, TOKENS
from schedc.model.rope import is_number, read_rope

FULL, SLIDING = "full_attention", "sliding_attention"
MAX_WINDOW_LAYERS = 28  # where a Qwen leaves it out


def load_config(model: str, span: Span | None = None) -> LlamaConfig:
    """The configuration that ``model`` names: a preset, a folder, or a ``config.json``.

    Raises :class:`DiagnosticError`, pointing at ``span``: E806 where there is no such model, E805
    for each key that cannot be read or honoured.
    """
    if model in PRESETS:
        return PRESETS[model]
    path = Path(model)
    if path.is_dir():
        path = path / "config.json"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DiagnosticError(_missing(model, path, error, span)) from None
    return read_config(Source(str(path), text), span)


def _missing(model: str, path: Path, error: Exception, span: Span | None) -> Diagnostic:
    presets = ", ".join(sorted(PRESETS))
    if path.exists() or len(Path(model).parts) > 1:
        reason = getattr(error, "strerror", None) or str(error)
        return Diagnostic("E806", f"cannot read the model's configuration {path}: {reason}", span)
    close = difflib.get_close_matches(model, PRESETS, n=1)
    return Diagnostic(
        "E806",
        f'there is no model "{model}": neither a preset nor a folder or config.json',
        span,
        notes=(f"presets: {presets}",),
        help=f'did you mean "{close[0]}"?' if close else None,
    )


def read_config(source: Source, span: Span | None = None) -> LlamaConfig:
    """The configuration in a ``config.json``'s text; raises E805 for all that is wrong with it."""
    try:
        raw = json.loads(source.text)
    except json.JSONDecodeError as error:
        at = Span(source, error.lineno, error.colno, error.lineno, error.colno + 1)
        raise DiagnosticError(
            Diagnostic("E805", f"{source.name} is no JSON: {error.msg}", at, _plan(span))
        ) from None
    if not isinstance(raw, dict):
        raise DiagnosticError(Diagnostic("E805", f"{source.name} holds no JSON object", span))
    reader = _Reader(source, cast("dict[str, object]", raw), span)
    config = reader.read()
    if reader.problems or config is None:
        raise DiagnosticError(reader.problems)
    return config


def parse_config(name: str, config: Mapping[str, object]) -> LlamaConfig:
    """The configuration in what :meth:`LlamaConfig.to_hf` gave; messages call it ``name``."""
    return read_config(Source(name, json.dumps(dict(config), indent=1)))


def _plan(span: Span | None) -> tuple[Label, ...]:
    return (Label(span, "the model is named here"),) if span is not None else ()


class _Reader:
    """Takes a configuration apart and collects what is wrong with it."""

    def __init__(self, source: Source, raw: dict[str, object], span: Span | None) -> None:
        self.source, self.raw, self.span = source, raw, span
        self.problems: list[Diagnostic] = []
        kind = raw.get("model_type", "llama")
        self.kind: ModelType = kind if kind in ARCHITECTURES else "llama"
        self.family = FAMILIES[self.kind]

    def refuse(self, key: str, message: str, help: str | None = None) -> None:
        match = re.search(rf'"{re.escape(key)}"\s*:', self.source.text)
        place = Span(self.source, 1, 1, 1, 2)
        if match is not None:
            before = self.source.text[: match.start()]
            line, column = before.count("\n") + 1, match.start() - before.rfind("\n")
            place = Span(self.source, line, column, line, column + len(key) + 2)
        labels = _plan(self.span)
        self.problems.append(Diagnostic("E805", message, place, labels, help=help))

    def read(self) -> LlamaConfig | None:
        self._known()
        values: dict[str, object] = {}
        for key in SIZES:
            values[key] = self._take(key, _is_size, "a positive integer")
        for key in NUMBERS:
            values[key] = self._take(key, is_number, "a positive number")
        for key in FLAGS:
            values[key] = self._take(key, lambda value: isinstance(value, bool), "true or false")
        for key in TOKENS:
            values[key] = self._take(key, _is_token, "a token's number")
        if missing := [key for key in REQUIRED if self.raw.get(key) is None]:
            self.refuse(missing[0], f"the configuration lacks {', '.join(missing)}")
        context = self._size("max_position_embeddings", self.family.max_position_embeddings)
        values["max_position_embeddings"] = context
        values["rope_theta"], values["rope_scaling"] = read_rope(self.raw, context, self.refuse)
        if not self.problems:
            values |= {"model_type": self.kind, **self._heads(), **self._window()}
            self._check_pad(values["pad_token_id"])
        if self.problems:
            return None
        eos = values["eos_token_id"]
        values["eos_token_id"] = tuple(cast("list[int]", eos)) if isinstance(eos, list) else eos
        del values["use_sliding_window"]
        given = {key: value for key, value in values.items() if value is not None}
        return LlamaConfig(**given)  # type: ignore[arg-type]

    def _known(self) -> None:
        kind = self.raw.get("model_type", "llama")
        if kind not in ARCHITECTURES:
            names = ", ".join(ARCHITECTURES)
            self.refuse("model_type", f"model_type {kind!r} cannot be compiled: only {names} can")
        for key, value in self.raw.items():
            allowed = self.family.ignored.get(key) or ONLY.get(key)
            if key not in KNOWN:
                close = difflib.get_close_matches(key, KNOWN, n=1)
                hint = f"did you mean {close[0]}?" if close else "remove it if it has no effect"
                self.refuse(key, f"unknown key {key} in the configuration", hint)
            elif allowed is not None and value not in allowed:
                of = f" of a {self.kind} model" if key in self.family.ignored else ""
                only = json.dumps(allowed[0])
                message = f"{key} = {json.dumps(value)}{of} is not supported: only {only} is"
                self.refuse(key, message)

    def _take(self, key: str, fits: Callable[[object], bool], what: str) -> object:
        value = self.raw.get(key)
        if value is not None and not fits(value):
            self.refuse(key, f"{key} = {json.dumps(value)} is not {what}")
            return None
        return value

    def _heads(self) -> dict[str, object]:
        """Numbers of heads and their size, filled in as transformers does, and checked."""
        hidden, heads = self._size("hidden_size"), self._size("num_attention_heads")
        absent = self.family.num_key_value_heads if "num_key_value_heads" not in self.raw else None
        kv_heads = self._size("num_key_value_heads", absent or heads)
        given = self.raw.get("head_dim") or self.family.head_dim
        if given is None and hidden % heads:
            message = f"hidden_size {hidden} is no multiple of num_attention_heads {heads}"
            self.refuse("hidden_size", message, "give head_dim")
        head_dim = self._size("head_dim", self.family.head_dim or hidden // heads)
        if heads % kv_heads:
            message = f"num_attention_heads {heads} is no multiple of num_key_value_heads"
            self.refuse("num_key_value_heads", f"{message} {kv_heads}")
        if head_dim % 2:
            self.refuse("head_dim", f"head_dim {head_dim} is odd: rotary embeddings need pairs")
        return {"num_key_value_heads": kv_heads, "head_dim": head_dim}

    def _window(self) -> dict[str, object]:
        """The sliding window that is in use, and the layers that have it."""
        absent = self.family.sliding_window if "sliding_window" not in self.raw else None
        window = self._size("sliding_window", absent or 0) or None
        layers = self._size("num_hidden_layers")
        given = self.raw.get("layer_types")
        types = cast("list[object]", given) if isinstance(given, list) else None
        if given is not None and (
            types is None or len(types) != layers or not {FULL, SLIDING}.issuperset(map(str, types))
        ):
            self.refuse("layer_types", f"layer_types must name {FULL} or {SLIDING} for each layer")
        if not self.kind.startswith("qwen"):
            return {"sliding_window": window}
        if self.raw.get("use_sliding_window") is not True:
            window = None
        if types is None:
            first = self.raw.get("max_window_layers", MAX_WINDOW_LAYERS)
            if not isinstance(first, int):
                self.refuse("max_window_layers", f"max_window_layers = {json.dumps(first)}")
                first = layers
            types = [FULL if i < first or window is None else SLIDING for i in range(layers)]
        if SLIDING not in types:
            return {"sliding_window": None}
        if window is None:
            self.refuse("layer_types", f"layer_types names {SLIDING}, but there is no window")
        mixed = tuple(map(str, types)) if FULL in types else None
        return {"sliding_window": window, "layer_types": mixed}

    def _check_pad(self, pad: object) -> None:
        vocabulary = self._size("vocab_size")
        if isinstance(pad, list):
            self.refuse("pad_token_id", f"pad_token_id = {json.dumps(pad)} is not one token")
        elif isinstance(pad, int) and pad >= vocabulary:
            self.refuse("pad_token_id", f"pad_token_id {pad} is not below vocab_size {vocabulary}")

    def _size(self, key: str, default: int = 0) -> int:
        value = self.raw.get(key)
        return value if isinstance(value, int) else default


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_token(value: object) -> bool:
    tokens = cast("list[object]", value) if isinstance(value, list) else [value]
    return all(isinstance(t, int) and not isinstance(t, bool) and t >= 0 for t in tokens)
