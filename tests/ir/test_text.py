"""Orders as text: print, parse, digest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedc.diagnostics import DiagnosticError
from schedc.ir.order import OP, SPAN, Order
from schedc.ir.text import order_digest, parse_order, print_order
from tests.simulate.orders import interleaved, order_of, random_order, rows_of, zb_h1

TEXT = """\
schedc order 1
schedule "zb_h1"
ranks 2   microbatches 2
placement 0 1
rank 0
  F(0,0) F(0,1) I(0,0) W(0,0) I(0,1) W(0,1)
rank 1
  F(1,0) I(1,0) F(1,1) I(1,1) W(1,0) W(1,1)
"""


def same(a: Order, b: Order) -> bool:
    heads = [(o.name, o.ranks, o.microbatches, o.rank_of) for o in (a, b)]
    return heads[0] == heads[1] and all(
        np.array_equal(x[:, :SPAN], y[:, :SPAN]) and x.dtype == y.dtype
        for x, y in zip(a.tables, b.tables, strict=True)
    )


def test_the_canonical_text() -> None:
    assert print_order(zb_h1(2, 2)) == TEXT
    assert print_order(parse_order(TEXT, "t")) == TEXT


@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(1, 8), st.integers(1, 5), st.text())
@settings(max_examples=100, deadline=None)
def test_parse_undoes_print(seed: int, P: int, M: int, S: int, name: str) -> None:
    order = replace(random_order(seed, P, M, S), name=name)
    text = print_order(order)
    again = parse_order(text, "t")
    assert same(order, again)
    assert print_order(again) == text
    assert order_digest(again) == order_digest(order)


def test_white_space_and_comments_mean_nothing() -> None:
    text = TEXT.replace("\n", "   # a comment\r\n").replace("  F(0,0)", "\t\nF(0,0)\n\n")
    assert same(parse_order(text, "t"), zb_h1(2, 2))
    assert same(parse_order(" ".join(TEXT.split()), "t"), zb_h1(2, 2))


def test_a_large_order_is_wrapped() -> None:
    lines = print_order(interleaved(8, 64, 2)).splitlines()
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(
    ("old", "new", "place", "says"),
    [
        ("order 1", "order 2", "1:14", "expected '1', found '2'"),
        ("schedc", "schedX", "1:1", "expected 'schedc'"),
        ('"zb_h1"', "zb_h1", "2:10", "expected a name in quotes, found 'zb_h1'"),
        ('"zb_h1"', '"zb_h1', "2:10", "expected a name in quotes"),
        ('"zb_h1"', '"\\q"', "2:10", "expected a name in quotes"),
        ("ranks 2", "ranks 0", "3:7", "expected a number from 1 to"),
        ("ranks 2", "ranks -2", "3:7", "expected a number, found '-2'"),
        ("microbatches 2", "microbatches 9999999999", "3:24", "expected a number from 1"),
        ("placement 0 1", "placement 0 x", "4:13", "expected a number, found 'x'"),
        ("rank 1", "rank 2", "7:6", "expected '1', found '2'"),
        ("rank 1\n", "", "6:43", ""),
        ("F(1,1)", "F(1 ,1)", "8:17", "expected an operation such as F(0,3)"),
        ("F(1,1)", "X(1,1)", "8:17", "found 'X(1,1)'"),
        ("F(1,1)", "F(1,4000000000)", "8:17", "expected numbers up to 2147483647"),
        ("W(1,1)\n", "W(1,1)\nrank 2\n", "9:1", "expected the end after rank 1 of 2"),
    ],
)
def test_malformed_texts_are_refused_with_their_place(
    old: str, new: str, place: str, says: str
) -> None:
    text = TEXT.replace(old, new, 1)
    with pytest.raises(DiagnosticError) as caught:
        parse_order(text, "t.order")
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "E307"
    assert says in diagnostic.message
    if says:
        assert str(diagnostic.span) == f"t.order:{place}"


@given(st.integers(0, len(TEXT) - 1), st.integers(0, 40))
@settings(max_examples=200, deadline=None)
def test_cut_texts_never_crash(at: int, length: int) -> None:
    text = TEXT[:at] + TEXT[at + length :]
    try:
        order = parse_order(text, "t")
    except DiagnosticError as error:
        found = error.diagnostics
    else:
        assert same(parse_order(print_order(order), "t"), order)
        return
    assert [(d.code, d.span is not None) for d in found] == [("E307", True)]


def test_the_text_may_end_anywhere() -> None:
    with pytest.raises(DiagnosticError) as caught:
        parse_order("schedc order 1\nschedule\n", "t")
    assert "the text ends here" in caught.value.diagnostics[0].message
    with pytest.raises(DiagnosticError):
        parse_order("", "t")


def test_the_digest_tells_orders_apart_but_not_names_and_spans() -> None:
    order = zb_h1(4, 4)
    digest = order_digest(order)
    assert len(digest) == 12
    assert order_digest(replace(order, name="other")) == digest
    spanned = tuple(table.copy() for table in order.tables)
    for table in spanned:
        table[:, SPAN] = 7
    assert order_digest(replace(order, tables=spanned)) == digest
    changed = tuple(table.copy() for table in order.tables)
    changed[1][[0, 1]] = changed[1][[1, 0]]
    assert order_digest(replace(order, tables=changed)) != digest
    changed[2][0, OP] = 1
    assert len({order_digest(zb_h1(P, M)) for P in (1, 2, 3) for M in (1, 2, 3)}) == 9
    moved = order_of(rows_of(order), (1, 0, 2, 3), 4)
    assert order_digest(moved) != digest
