"""The ``precision`` of a plan: a format and its options, checked."""

from __future__ import annotations

from collections.abc import Iterator

from schedc.diagnostics import Diagnostic, DiagnosticError, Label
from schedc.ir.precision import FORMATS, SCALE, Precision
from schedc.sema.schedule import evaluate_node
from schedc.sema.values import kind, show
from schedc.syntax import ast
from schedc.syntax.hints import did_you_mean

OPTIONS = {"fp32": (), "bf16": ("master", "reduce"), "fp16": ("master", "reduce", "scale")}
"""The formats, and the options of each."""

MASTER = "narrower master parameters would lose every update below half of their last digit"

MOST_SCALE = 2**32

WHY = {
    ("fp32", "master"): "in fp32 the parameters are their own master copy",
    ("fp32", "reduce"): "in fp32 gradients are summed as they are",
    ("fp32", "scale"): "only fp16 needs a loss scale",
    ("bf16", "scale"): "bf16 has the range of fp32 and needs no loss scale",
}
"""Why a format lacks an option that another one has."""


def read_precision(use: ast.PrecisionUse) -> Precision:
    """What ``precision bf16 { reduce bf16 }`` means. Raises DiagnosticError with all mistakes."""
    if use.name not in OPTIONS:
        raise DiagnosticError(_not_one_of("precision", use.name, FORMATS, use))
    mistakes = list(_misplaced(use))
    words: dict[str, str] = {}
    scale = SCALE if use.name == "fp16" else 0
    for option in use.options:
        try:
            match option.name:
                case "master":
                    _word(option, ("fp32",), MASTER)
                case "reduce":
                    words["reduce"] = _word(option, ("fp32", use.name))
                case "scale":
                    scale = _scale(option)
                case _:
                    pass
        except DiagnosticError as error:
            mistakes += error.diagnostics
    if mistakes:
        raise DiagnosticError(mistakes)
    return Precision(use.name, words.get("reduce", "fp32"), scale)


def _misplaced(use: ast.PrecisionUse) -> Iterator[Diagnostic]:
    """Options that the format does not have, or that stand twice."""
    known = OPTIONS[use.name]
    first: dict[str, ast.Argument] = {}
    for option in use.options:
        if option.name not in known:
            why = WHY.get((use.name, option.name)) or did_you_mean(option.name, known)
            notes = (f"its options are {', '.join(known)}",) if known else ("it has no options",)
            message = f"`precision {use.name}` has no option `{option.name}`"
            yield Diagnostic("E809", message, option.span, notes=notes, help=why)
        elif option.name in first:
            label = Label(first[option.name].span, "first here")
            yield Diagnostic("E808", f"`{option.name}` stands twice", option.span, (label,))
        first.setdefault(option.name, option)


def _word(option: ast.Argument, choices: tuple[str, ...], help: str | None = None) -> str:
    word = option.value.name if isinstance(option.value, ast.Name) else None
    if word is None or word not in choices:
        raise DiagnosticError(_not_one_of(option.name, word, choices, option.value, help))
    return word


def _not_one_of(
    what: str,
    word: str | None,
    choices: tuple[str, ...],
    node: ast.PrecisionUse | ast.Expression,
    help: str | None = None,
) -> Diagnostic:
    span = node.name_span if isinstance(node, ast.PrecisionUse) else node.span
    *others, last = (f"`{choice}`" for choice in choices)
    listed = f"{', '.join(others)} or {last}" if others else last
    shown = f"`{word}`" if word is not None else "something else"
    if help is None and word is not None:
        help = did_you_mean(word, choices)
    return Diagnostic("E811", f"`{what}` is {listed}, not {shown}", span, help=help)


def _scale(option: ast.Argument) -> int:
    """A power of two, so that scaling a loss and unscaling its gradients rounds nothing."""
    value = evaluate_node(option.value)
    if type(value) is int and 1 <= value <= MOST_SCALE and value & (value - 1) == 0:
        return value
    shown = show(value) if type(value) is int else f"{kind(value)}, {show(value)}"
    help = None
    if type(value) is int and 1 <= value <= MOST_SCALE:
        below = 1 << (value.bit_length() - 1)
        help = f"the nearest are {below} and {2 * below}"
    message = f"`scale` is {shown}; it must be a power of two from 1 to {MOST_SCALE}"
    raise DiagnosticError(Diagnostic("E811", message, option.value.span, help=help))
