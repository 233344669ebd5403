"""Whether a plan's sequence stays within what a model is made for."""

from __future__ import annotations

from schedc.diagnostics import Diagnostic, DiagnosticError, Span
from schedc.model.config import LlamaConfig


def check_sequence(config: LlamaConfig, sequence: int, span: Span | None = None) -> None:
    """Refuse (E805) sequences that are longer than the sliding window or the model's context.

    A window at least as long as the sequence changes nothing; a shorter one is not computed here.
    A longer context than the model's is not an error of arithmetic, but almost always one of the
    plan: whoever means it raises ``max_position_embeddings``.
    """
    problems: list[Diagnostic] = []
    window, context = config.sliding_window, config.max_position_embeddings
    if window is not None and window < sequence:
        message = f"sequence {sequence} is longer than the model's sliding_window {window}"
        help = f"sliding windows are not supported yet: use a sequence of at most {window}"
        problems.append(Diagnostic("E805", message, span, help=help))
    if context < sequence:
        message = f"sequence {sequence} is longer than the model's max_position_embeddings"
        help = "to train on longer sequences, raise max_position_embeddings in the config.json"
        problems.append(Diagnostic("E805", f"{message} {context}", span, help=help))
    if problems:
        raise DiagnosticError(problems)
