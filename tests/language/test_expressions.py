"""Expressions: precedence is Python's, values are exact, mistakes are told."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedc.sema.values import show
from schedc.syntax import ast
from schedc.syntax.parse import make_source, parse_setting
from schedc.syntax.printer import print_expression
from tests.language.programs import codes_of, schedule_of, value_of

ATOMS = st.integers(0, 5).map(str)
OPERATORS = st.sampled_from(
    ["+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "and", "or"]
)
PREFIXES = st.sampled_from(["", "-", "+", "not ", "- -"])


@settings(deadline=None)
@given(st.lists(st.tuples(PREFIXES, ATOMS, OPERATORS), min_size=2, max_size=6))
def test_grouping_is_pythons(parts) -> None:
    """Python, asked to group the same text, groups it as we do."""
    import ast as python

    text = " ".join(f"{prefix}{atom} {operator}" for prefix, atom, operator in parts) + " 1"
    try:
        theirs = python.parse(text, mode="eval").body
    except SyntaxError:  # `1 + not 2`
        return
    ours = parse_setting(make_source("a", text), 0)
    assert _shape(ours) == _python_shape(theirs)


def _shape(node: ast.Expression) -> object:
    match node:
        case ast.Int():
            return node.value
        case ast.Unary():
            return (node.operator, _shape(node.operand))
        case ast.Binary() | ast.Logic():
            return (node.operator, _shape(node.left), _shape(node.right))
        case ast.Compare():
            return (node.operators, tuple(map(_shape, node.operands)))
        case _:
            raise AssertionError(node)


def _python_shape(node) -> object:
    import ast as python

    names = {
        python.Add: "+",
        python.Sub: "-",
        python.Mult: "*",
        python.Div: "/",
        python.Mod: "%",
        python.FloorDiv: "//",
        python.Pow: "**",
        python.And: "and",
        python.Or: "or",
        python.USub: "-",
        python.UAdd: "+",
        python.Not: "not",
        python.Eq: "==",
        python.NotEq: "!=",
        python.Lt: "<",
        python.LtE: "<=",
        python.Gt: ">",
        python.GtE: ">=",
    }
    match node:
        case python.Constant():
            return node.value
        case python.UnaryOp():
            return (names[type(node.op)], _python_shape(node.operand))
        case python.BinOp():
            left, right = _python_shape(node.left), _python_shape(node.right)
            return (names[type(node.op)], left, right)
        case python.BoolOp():  # Python holds `a and b and c` flat
            shapes = [_python_shape(value) for value in node.values]
            found = shapes[0]
            for shape in shapes[1:]:
                found = (names[type(node.op)], found, shape)
            return found
        case python.Compare():
            operands = (node.left, *node.comparators)
            return (tuple(names[type(op)] for op in node.ops), tuple(map(_python_shape, operands)))
    raise AssertionError(node)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("2 + 3 * 4", "14"),
        ("-2 ** 2", "-4"),
        ("2 ** -1", "1/2"),
        ("2 ** 3 ** 2", "512"),
        ("7 / 2", "7/2"),
        ("8 / 2", "4"),
        ("7 // 2", "3"),
        ("-7 // 2", "-4"),
        ("-7 % 3", "2"),
        ("7.5 % 2", "3/2"),
        ("7.5 // 2", "3"),
        ("1 / 3 + 2 / 3", "1"),
        ("0 ** 0", "1"),
        ("(-1) ** (10 ** 30 + 1)", "-1"),
        ("1 < 2 < 3", "true"),
        ("1 < 3 < 2", "false"),
        ("3 < 2 < 1 / 0", "false"),
        ("not 1 == 2", "true"),
        ("true or 1 / 0 == 1", "true"),
        ("false and 1 / 0 == 1", "false"),
        ("(1 if P == 4 else 1 / 0)", "1"),
        ("1..3 + 1", "1..4"),
        ("0..M // 2 step 1 + 1", "0..4 step 2"),
        ("len(5..0)", "0"),
        ("sum(0..5)", "10"),
        ("sum(5..0 step -2)", "9"),
        ("sum([1 / 2, 1 / 2])", "1"),
        ("min(3, 1, 2)", "1"),
        ("max([3, 1, 2])", "3"),
        ("min(3..7)", "3"),
        ("abs(-1 / 2)", "1/2"),
        ("ceil(7 / 2)", "4"),
        ("floor(-7 / 2)", "-4"),
        ("len((1, 2, 3))", "3"),
        ("[1, 2] + [3]", "[1, 2, 3]"),
        ("[1, 2, 3][-1]", "3"),
        ("[1, 2, 3][1:]", "[2, 3]"),
        ("[1, 2, 3][:-1]", "[1, 2]"),
        ("(1, 2, 3)[0:2]", "(1, 2)"),
        ("(5..9)[1]", "6"),
        ("(5..9)[1:3]", "6..8"),
        ("[]", "[]"),
        ("()", "()"),
        ("(1,)", "(1,)"),
        ("[(a, b) for a in 0..2, b in a..2]", "[(0, 0), (0, 1), (1, 1)]"),
        ("[a for a in 0..10 if a % 3 == 0]", "[0, 3, 6, 9]"),
        ("[a + b for (a, b) in [(1, 2), (3, 4)]]", "[3, 7]"),
        ("[i for i in 0..100]", "[0, 1, 2, 3, 4, 5, 6, 7, … (100 elements)]"),
        ("[1, 2] == [1, 2]", "true"),
        ("(1, 2) != (1, 3)", "true"),
        ('"a" == "b"', "false"),
        ("P * M - S", "28"),
    ],
)
def test_values(written: str, value: str) -> None:
    assert value_of(written) == value


@pytest.mark.parametrize(
    ("written", "code"),
    [
        ("1 / 0", "E205"),
        ("1 // (P - 2)", "E205"),
        ("1 % 0", "E205"),
        ("0 ** -1", "E205"),
        ("0..4 step 0", "E205"),
        ("[1][1]", "E206"),
        ("[1][-2]", "E206"),
        ("(0..3)[3]", "E206"),
        ("min([])", "E206"),
        ("max(3..3)", "E206"),
        ("1 + true", "E204"),
        ("-true", "E204"),
        ("[1] + 1", "E204"),
        ("[1] * 2", "E204"),
        ('"a" + "b"', "E204"),
        ("2 ** (1 / 2)", "E204"),
        ("0..1 / 2", "E204"),
        ("[1][1 / 2]", "E204"),
        ("5[0]", "E204"),
        ("5[0:1]", "E204"),
        ("[1][true:]", "E204"),
        ("not 1", "E204"),
        ("1 and true", "E204"),
        ("(1 if 1 else 2)", "E204"),
        ("1 == true", "E204"),
        ("[1] < [2]", "E204"),
        ("min(1, [2])", "E204"),
        ("sum(3)", "E204"),
        ("sum([true])", "E204"),
        ("len(3)", "E204"),
        ("ceil([1])", "E204"),
        ("[a for a in 3]", "E204"),
        ("[a for a in 0..2 if a]", "E204"),
        ("[a for (a, b) in [(1, 2, 3)]]", "E220"),
        ("[a for (a, b) in 0..3]", "E204"),
        ("2 ** (10 ** 9)", "E209"),
        ("(1 / 3) ** (10 ** 9)", "E209"),
        ("(2 ** 4000) * (2 ** 4000)", "E209"),
        ("0..10 ** 30", "E209"),
        ("[a for a in 0..10 ** 7]", "E209"),
        ("[a for a in 0..10 ** 4, b in 0..10 ** 4]", "E209"),
        ("foo", "E201"),
        ("foo(1)", "E201"),
        ("P(1)", "E204"),
        ("min", "E203"),
        ("T.F", "E201"),
        ("X.y", "E201"),
        ("makespan", "E201"),
        ("busy(1)", "E201"),
        ("abs(1, 2)", "E203"),
        ("min()", "E203"),
    ],
)
def test_mistakes(written: str, code: str) -> None:
    assert codes_of(schedule_of("", before=f"let x = {written}")) == [code]


def test_long_values_are_printed_short() -> None:
    assert len(show(2**4000)) < 60
    nested: list = [1] * 50
    for _ in range(20):
        nested = [nested] * 50
    assert len(show(nested)) < 10_000


# ---- parse and print ------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b2", "step", "rank", "for", "P", "order", "Fx"])


def _branches(inner):
    lists = st.lists(inner, max_size=3).map(tuple)
    bindings = st.lists(
        st.builds(ast.Binding, st.deferred(lambda: PATTERNS), inner, st.none()),
        min_size=1,
        max_size=2,
    ).map(tuple)
    pairs = st.lists(
        st.tuples(st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), inner),
        min_size=1,
        max_size=2,
    )
    maybe = st.none() | inner
    none = st.none()
    return st.one_of(
        st.builds(ast.Call, NAMES, lists, none),
        st.builds(ast.Dotted, NAMES, st.sampled_from(["F", "x"]), maybe, none),
        st.builds(ast.Index, inner, inner, none),
        st.builds(ast.Slice, inner, maybe, maybe, none),
        st.builds(ast.Unary, st.sampled_from(["+", "-", "not"]), inner, none),
        st.builds(
            ast.Binary, st.sampled_from(["+", "-", "*", "/", "//", "%", "**"]), inner, inner, none
        ),
        st.builds(
            lambda first, rest: ast.Compare(
                tuple(op for op, _ in rest), (first, *(operand for _, operand in rest)), None
            ),
            inner,
            pairs,
        ),
        st.builds(ast.Logic, st.sampled_from(["and", "or"]), inner, inner, none),
        st.builds(ast.Conditional, inner, inner, inner, none),
        st.builds(ast.RangeOf, inner, inner, maybe, none),
        st.builds(ast.TupleOf, lists, none),
        st.builds(ast.ListOf, lists, none),
        st.builds(ast.Comprehension, inner, bindings, maybe, none),
    )


NUMBERS = st.builds(ast.Int, st.integers(0, 10**12), st.none())
DECIMALS = st.builds(ast.Decimal, st.decimals(0, 1000, places=3).map(Fraction), st.none())
TEXTS = st.builds(ast.Text, st.text('ab"\\#{}é ', max_size=5), st.none())
PATTERNS = st.recursive(
    st.builds(ast.NamePattern, NAMES, st.none()),
    lambda inner: st.builds(
        ast.TuplePattern, st.lists(inner, min_size=1, max_size=3).map(tuple), st.none()
    ),
    max_leaves=4,
)
EXPRESSIONS = st.recursive(
    st.one_of(
        NUMBERS,
        DECIMALS,
        TEXTS,
        st.builds(ast.Name, NAMES, st.none()),
        st.builds(ast.Quantity, NUMBERS, st.sampled_from(["GiB", "s", "GB/s"]), st.none()),
    ),
    _branches,
    max_leaves=12,
)


@settings(deadline=None)
@given(EXPRESSIONS)
def test_a_printed_expression_parses_back(node: ast.Expression) -> None:
    assert parse_setting(make_source("a", print_expression(node)), 0) == node
