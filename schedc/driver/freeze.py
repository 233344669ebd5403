"""Which parameters a plan freezes: its patterns against the model's names."""

from __future__ import annotations

from fnmatch import fnmatchcase

from schedc.diagnostics import Diagnostic, DiagnosticError
from schedc.graph.build import EMBEDDING, parameter_names
from schedc.ir.plan import Plan
from schedc.model.config import LlamaConfig
from schedc.syntax.hints import did_you_mean


def frozen_parameters(plan: Plan, config: LlamaConfig) -> frozenset[str]:
    """The Hugging Face names that the patterns of ``freeze`` name, ``*`` standing for anything.

    Raises E815 for each pattern that names none, and E816 where all are named.
    """
    names = parameter_names(config)
    frozen: set[str] = set()
    mistakes: list[Diagnostic] = []
    for pattern in plan.freeze:
        found = [name for name in names if fnmatchcase(name, pattern)]
        frozen.update(found)
        if not found:
            mistakes.append(_names_nothing(plan, config, pattern, names))
    if not mistakes and names and len(frozen) == len(names):
        span = plan.spans.get("freeze")
        message = "every parameter is frozen: there is nothing to train"
        mistakes.append(Diagnostic("E816", message, span))
    if mistakes:
        raise DiagnosticError(mistakes)
    return frozenset(frozen)


def _names_nothing(
    plan: Plan, config: LlamaConfig, pattern: str, names: tuple[str, ...]
) -> Diagnostic:
    """What near the pattern does name something: a parameter, or all of a module."""
    parts = [name.split(".") for name in names]
    modules = {".".join(part[:n]) + ".*" for part in parts for n in range(1, len(part))}
    help = did_you_mean(pattern, [*names, *sorted(modules)])
    if config.tie_word_embeddings and fnmatchcase("lm_head.weight", pattern):
        help = f"the head is tied to the embedding: freeze `{EMBEDDING}`"
    layers = f"the layers are model.layers.0 to model.layers.{config.num_hidden_layers - 1}"
    message = f"`{pattern}` names no parameter of the model"
    span = plan.spans.get(f"freeze {pattern}")
    return Diagnostic("E815", message, span, notes=(layers,), help=help)
