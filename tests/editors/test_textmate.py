"""The TextMate grammar: its words are the compiler's, and it gives every word of ours a scope."""

import json
import re
from pathlib import Path

import pytest

import schedc.grammar
import schedc.schedules
from schedc.sema.plan import AXES, KEYS
from schedc.sema.precision import OPTIONS
from schedc.sema.scope import FIGURES, FUNCTIONS, GIVEN, RANK_FIGURES
from schedc.syntax.hints import UNITS

ROOT = Path(__file__).parents[2]
GRAMMAR = json.loads((ROOT / "editors" / "sched.tmLanguage.json").read_text(encoding="utf-8"))
RULES = GRAMMAR["repository"]
LARK = (Path(schedc.grammar.__file__).parent / "sched.lark").read_text(encoding="utf-8")
KEYWORDS = set(re.findall(r"^_?[A-Z_]+\.2: /([a-z_]+)\(\?!", LARK, re.MULTILINE))
BUNDLED = sorted(Path(schedc.schedules.__file__).parent.rglob("*.sched"))


def words(*names: str) -> list[str]:
    """The words that the rules of these names list."""
    found: list[str] = []
    for name in names:
        pattern = RULES[name].get("match") or RULES[name]["begin"]
        for group in re.findall(r"\(([A-Za-z0-9_|]+)\)", pattern):
            found += group.split("|")
    return found


def all_rules(node: object):
    if isinstance(node, dict):
        yield node
        node = list(node.values())
    if isinstance(node, list):
        for child in node:
            yield from all_rules(child)


def test_every_expression_compiles_and_every_name_is_there() -> None:
    for rule in all_rules(GRAMMAR):
        for key in ("match", "begin", "end"):
            if key in rule:
                re.compile(rule[key])
        assert ("begin" in rule) == ("end" in rule)
        if "include" in rule:
            assert rule["include"].removeprefix("#") in RULES


def test_words_are_the_compilers() -> None:
    assert set(words("plan-key")) == set(KEYS)
    assert set(words("axis")) == set(AXES)
    assert set(words("format")) == set(OPTIONS)
    assert set(words("precision-option")) == {word for known in OPTIONS.values() for word in known}
    assert set(words("function")) == set(FUNCTIONS)
    assert set(words("figure")) == {*FIGURES, *RANK_FIGURES}
    assert set(words("constant", "given")) == set(GIVEN)
    keyword_rules = (
        *("item", "let", "claim", "control", "structure", "policy", "logic", "batch-word"),
    )
    assert set(words(*keyword_rules, "plan-key")) == KEYWORDS
    for name in (*keyword_rules, "plan-key", "axis", "function", "figure"):
        assert len(words(name)) == len(set(words(name)))
    letters = re.search(r"OPERATION\.2: /(\[[A-Z]+\])", LARK)
    assert letters is not None
    assert letters[1] in RULES["operation"]["match"]
    assert letters[1] in RULES["counter"]["match"]
    for unit in UNITS:
        found = re.fullmatch(RULES["quantity"]["match"], f"80 {unit}")
        assert found is not None, unit
    assert re.match(RULES["quantity"]["match"], "80 B(r, 0)") is None


# ---- a small TextMate tokeniser ----------------------------------------------------------------

Token = tuple[str, list[str]]


def expand(patterns: list[dict]) -> list[dict]:
    """Patterns with what they include in their place."""
    found: list[dict] = []
    for pattern in patterns:
        if "include" in pattern:
            found += expand([RULES[pattern["include"].removeprefix("#")]])
        elif "match" not in pattern and "begin" not in pattern:
            found += expand(pattern["patterns"])
        else:
            found.append(pattern)
    return found


def captured(match: re.Match[str], captures: dict, scopes: list[str]) -> list[Token]:
    """A match, its groups with their own scopes."""
    found: list[Token] = []
    at = match.start()
    for key, capture in sorted(captures.items()):
        begin, end = match.span(int(key))
        if begin < 0:
            continue
        found += [
            (match.string[at:begin], scopes),
            (match.string[begin:end], [*scopes, capture["name"]]),
        ]
        at = end
    return [token for token in [*found, (match.string[at : match.end()], scopes)] if token[0]]


def tokens(text: str) -> list[Token]:
    """The text in pieces, each with its scopes, as an editor would colour it."""
    found: list[Token] = []
    stack: list[dict] = [{"patterns": GRAMMAR["patterns"]}]
    for line in text.split("\n"):
        at = 0
        while True:
            rule = stack[-1]
            scopes = [r["name"] for r in stack if "name" in r]
            options: list[tuple[int, int, re.Match[str], dict]] = []
            if "end" in rule and (match := re.compile(rule["end"]).search(line, at)):
                options.append((match.start(), -1, match, rule))
            for order, pattern in enumerate(expand(rule.get("patterns", []))):
                expression = re.compile(pattern.get("match") or pattern["begin"])
                if match := expression.search(line, at):
                    options.append((match.start(), order, match, pattern))
            if not options:
                found.append((line[at:], scopes))
                break
            start, order, match, pattern = min(options, key=lambda option: option[:2])
            found.append((line[at:start], scopes))
            at = match.end()
            if order < 0:
                found += captured(match, rule.get("endCaptures", {}), scopes)
                stack.pop()
                continue
            inner = [*scopes, pattern["name"]] if "name" in pattern else scopes
            kind = "beginCaptures" if "begin" in pattern else "captures"
            found += captured(match, pattern.get(kind, {}), inner)
            if "begin" in pattern:
                stack.append(pattern)
    return [token for token in found if token[0].strip()]


def scope_of(text: str, word: str) -> str:
    """The innermost scope of the first piece that is ``word``."""
    return next(scopes[-1] for piece, scopes in tokens(text) if piece.strip() == word)


@pytest.mark.parametrize("path", BUNDLED, ids=lambda path: path.stem)
def test_every_word_of_bundled_files_has_a_scope(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    found = tokens(text)
    assert "".join("".join(p.split()) for p, _ in found) == "".join(text.split())
    assert [piece for piece, scopes in found if not scopes] == []
    for piece, scopes in found:
        if piece in KEYWORDS:
            assert not scopes[-1].startswith("variable"), (piece, scopes)
        if "comment" in scopes[-1]:
            assert piece.startswith("#")
        elif re.fullmatch("[FBIWR]", piece):
            assert scopes[-1].split(".")[0] in ("entity", "support"), (piece, scopes)


@pytest.mark.parametrize(
    ("text", "word", "scope"),
    [
        ("let x = 3", "x", "variable.other.definition.sched"),
        ("let model = 3", "model", "variable.other.definition.sched"),
        ('plan p { model "x" }', "model", "support.type.property-name.sched"),
        ("plan p { zero 2 { reduce each } mesh dp = 2 }", "dp", "variable.parameter.axis.sched"),
        ("plan p { precision fp32 }", "fp32", "constant.language.format.sched"),
        ("plan p { precision bf16 { reduce fp32 } }", "reduce", "support.type.property-name.sched"),
        ("plan p { precision bf16 { reduce fp32 } }", "fp32", "constant.language.format.sched"),
        ("plan p { schedule zb_h1 }", "zb_h1", "entity.name.type.schedule.sched"),
        ("memory 80 GiB", "GiB", "keyword.other.unit.sched"),
        ("let x = 80 B(r, 0)", "B", "entity.name.function.operation.sched"),
        ("W*(r)", "*", "entity.name.function.counter.sched"),
        ("check T.F ** 2 == 1", "F", "support.variable.cost.sched"),
        ("check T.F ** 2 == 1", "**", "keyword.operator.sched"),
        ("check a when uniform", "when", "keyword.other.claim.sched"),
        ("let pp2 = 1", "pp2", "variable.other.definition.sched"),
        ('note "a \\" {M // 2} {{"', "M", "variable.language.sched"),
        ('note "a {M // 2} {{"', "{{", "constant.character.escape.sched"),
        ('note "a \\n"', "\\n", "invalid.illegal.escape.sched"),
        ('note "not closed # no comment', "not closed # no comment", "string.quoted.double.sched"),
    ],
)
def test_scopes(text: str, word: str, scope: str) -> None:
    assert scope_of(text, word) == scope
