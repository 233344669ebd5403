"""Reading a configuration: a preset by name, or Hugging Face's ``config.json``.

Every key is honoured, known to be of no consequence for training, or refused by name.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable
from pathlib import Path

from schedc.diagnostics import Diagnostic, DiagnosticError, Label, Source, Span
from schedc.graph.config import PRESETS, Llama3Scaling, LlamaConfig

# Keys that say nothing about training's numbers: provenance, generation, serving, storage.
INERT = (
    "_name_or_path",
    "architectures",
    "dtype",
    "is_llama_config",
    "model_type",
    "output_attentions",
    "output_hidden_states",
    "return_dict",
    "torch_dtype",
    "transformers_version",
    "use_cache",
)
# Keys that only one value of can be honoured, and that value.
ONLY = {
    "attention_dropout": (0.0, None),
    "hidden_act": ("silu",),
    "partial_rotary_factor": (1.0, None),
    "pretraining_tp": (1, None),
    "quantization_config": (None,),
    "rope_interleaved": (False, None),
    "sliding_window": (None,),
    "tie_word_embeddings": (False,),
}
REQUIRED = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
)
SIZES = (*REQUIRED, "num_key_value_heads", "head_dim", "max_position_embeddings")
NUMBERS = ("rms_norm_eps", "initializer_range", "rope_theta")
FLAGS = ("attention_bias", "mlp_bias")
TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
ROPE = ("rope_scaling", "rope_parameters")
KNOWN = frozenset((*INERT, *ONLY, *SIZES, *NUMBERS, *FLAGS, *TOKENS, *ROPE))

LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
SCALING = frozenset((*LLAMA3, "type", "rope_type", "rope_theta", "partial_rotary_factor"))


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
    """The configuration in a ``config.json``'s text."""
    try:
        raw = json.loads(source.text)
    except json.JSONDecodeError as error:
        at = Span(source, error.lineno, error.colno, error.lineno, error.colno + 1)
        raise DiagnosticError(
            Diagnostic("E805", f"{source.name} is no JSON: {error.msg}", at, _plan(span))
        ) from None
    if not isinstance(raw, dict):
        raise DiagnosticError(Diagnostic("E805", f"{source.name} holds no JSON object", span))
    reader = _Reader(source, raw, span)
    config = reader.read()
    if reader.problems or config is None:
        raise DiagnosticError(reader.problems)
    return config


def _plan(span: Span | None) -> tuple[Label, ...]:
    return (Label(span, "the model is named here"),) if span is not None else ()


class _Reader:
    """Takes a configuration apart and collects what is wrong with it."""

    def __init__(self, source: Source, raw: dict[str, object], span: Span | None) -> None:
        self.source, self.raw, self.span = source, raw, span
        self.problems: list[Diagnostic] = []

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
            values[key] = self._take(key, _is_number, "a positive number")
        for key in FLAGS:
            values[key] = self._take(key, lambda value: isinstance(value, bool), "true or false")
        for key in TOKENS:
            values[key] = self._take(key, _is_token, "a token's number")
        missing = [key for key in REQUIRED if self.raw.get(key) is None]
        for key in missing:
            self.refuse(key, f"the configuration lacks {key}")
        theta, scaling = self._rope()
        if self.problems:
            return None
        return self._config(values, theta, scaling)

    def _known(self) -> None:
        kind = self.raw.get("model_type", "llama")
        if kind != "llama":
            self.refuse("model_type", f"model_type {kind!r}: only llama can be compiled")
        for key, value in self.raw.items():
            if key not in KNOWN:
                close = difflib.get_close_matches(key, KNOWN, n=1)
                hint = f"did you mean {close[0]}?" if close else "remove it if it has no effect"
                self.refuse(key, f"unknown key {key} in the configuration", hint)
            elif key in ONLY and value not in ONLY[key]:
                allowed = json.dumps(ONLY[key][0])
                self.refuse(
                    key, f"{key} = {json.dumps(value)} is not supported yet: only {allowed} is"
                )

    def _take(self, key: str, fits: Callable[[object], bool], what: str) -> object:
        value = self.raw.get(key)
        if value is not None and not fits(value):
            self.refuse(key, f"{key} = {json.dumps(value)} is not {what}")
            return None
        return value

    def _rope(self) -> tuple[float, Llama3Scaling | None]:
        """Base and scaling from any of the spellings; those that are there must agree."""
        found: list[tuple[str, object]] = []
        scalings: list[tuple[str, Llama3Scaling | None]] = []
        if self.raw.get("rope_theta") is not None:
            found.append(("rope_theta", self.raw["rope_theta"]))
        for key in ROPE:
            entry = self.raw.get(key)
            if entry is None:
                continue
            if not isinstance(entry, dict):
                self.refuse(key, f"{key} = {json.dumps(entry)} is no object")
                continue
            if entry.get("rope_theta") is not None:
                found.append((f"{key}.rope_theta", entry["rope_theta"]))
            scalings.append((key, self._scaling(key, entry)))
        for name, theta in found:
            if not _is_number(theta):
                self.refuse("rope_theta", f"{name} = {json.dumps(theta)} is not a positive number")
            elif theta != found[0][1]:
                self.refuse("rope_theta", f"{found[0][0]} = {found[0][1]} but {name} = {theta}")
        if len(scalings) == 2 and scalings[0][1] != scalings[1][1]:
            self.refuse("rope_scaling", "rope_scaling and rope_parameters contradict each other")
        theta = found[0][1] if found and _is_number(found[0][1]) else 10000.0
        return float(theta), scalings[0][1] if scalings else None  # type: ignore[arg-type]

    def _scaling(self, key: str, entry: dict[str, object]) -> Llama3Scaling | None:
        """One spelling's scaling: ``type`` or ``rope_type`` says which kind."""
        for name in entry:
            if name not in SCALING:
                self.refuse(name, f"unknown key {name} in {key}")
        if entry.get("partial_rotary_factor") not in (None, 1.0):
            self.refuse("partial_rotary_factor", f"{key}.partial_rotary_factor must be 1.0")
        kind = entry.get("rope_type", entry.get("type", "default"))
        if kind == "default":
            return None
        if kind != "llama3":
            self.refuse(key, f"{key} of type {kind!r} is not supported yet: default and llama3 are")
            return None
        bad = [name for name in LLAMA3 if not _is_number(entry.get(name))]
        for name in bad:
            if name in entry:
                value = json.dumps(entry[name])
                self.refuse(name, f"{key}.{name} = {value} is not a positive number")
            else:
                self.refuse(key, f"{key} of type llama3 lacks {name}")
        if bad:
            return None
        factor, low, high, context = (float(entry[name]) for name in LLAMA3)  # type: ignore[arg-type]
        if low >= high:
            self.refuse(key, f"{key}: low_freq_factor {low} is not below high_freq_factor {high}")
        return Llama3Scaling(factor, low, high, int(context))

    def _config(
        self, values: dict[str, object], theta: float, scaling: Llama3Scaling | None
    ) -> LlamaConfig | None:
        """Fill in what may be left out, as transformers does, and check the sizes together."""
        hidden, heads = self._size("hidden_size"), self._size("num_attention_heads")
        kv_heads = self._size("num_key_value_heads", heads)
        if values["head_dim"] is None and hidden % heads:
            message = f"hidden_size {hidden} is no multiple of num_attention_heads {heads}"
            self.refuse("hidden_size", message, "give head_dim")
        head_dim = self._size("head_dim", hidden // heads)
        if heads % kv_heads:
            message = f"num_attention_heads {heads} is no multiple of num_key_value_heads"
            self.refuse("num_key_value_heads", f"{message} {kv_heads}")
        if head_dim % 2:
            self.refuse("head_dim", f"head_dim {head_dim} is odd: rotary embeddings need pairs")
        pad, vocabulary = values["pad_token_id"], self._size("vocab_size")
        if isinstance(pad, int) and pad >= vocabulary:
            self.refuse("pad_token_id", f"pad_token_id {pad} is not below vocab_size {vocabulary}")
        if self.problems:
            return None
        eos = values["eos_token_id"]
        values["eos_token_id"] = tuple(eos) if isinstance(eos, list) else eos
        values |= {"num_key_value_heads": kv_heads, "head_dim": head_dim}
        values |= {"rope_theta": theta, "rope_scaling": scaling}
        given = {key: value for key, value in values.items() if value is not None}
        return LlamaConfig(**given)  # type: ignore[arg-type]

    def _size(self, key: str, default: int = 0) -> int:
        value = self.raw.get(key)
        return value if isinstance(value, int) else default


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def _is_token(value: object) -> bool:
    tokens = value if isinstance(value, list) else [value]
    return all(isinstance(t, int) and not isinstance(t, bool) and t >= 0 for t in tokens)
