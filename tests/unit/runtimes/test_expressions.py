"""Expressions over dims: the value, and that rewriting never changes it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lowerkit.runtimes.expressions import (
    OPERATORS,
    Expr,
    ExpressionError,
    evaluate,
    normalize,
    simplify,
    solve,
    substitute,
    symbols,
    to_text,
)

leaves = st.one_of(st.integers(-20, 20), st.sampled_from(["n", "m"]))
expressions: st.SearchStrategy[Any] = st.recursive(
    leaves, lambda inner: st.tuples(st.sampled_from(sorted(OPERATORS)), inner, inner), max_leaves=12
)
values = st.fixed_dictionaries({"n": st.integers(0, 50), "m": st.integers(1, 50)})


@pytest.mark.parametrize(
    ("expr", "value"),
    [
        (5, 5), ("n", 7), (("add", "n", 1), 8), (("sub", 1, "n"), -6), (("mul", "n", "n"), 49), (("mod", -1, "n"), 6),
        (("floordiv", -1, 2), -1), (("ceildiv", "n", 2), 4), (("ceildiv", -7, 2), -3), (("min", "n", 3), 3),
        (("max", "n", 3), 7), (("mul", ("dim", 1), "n"), 63),
    ],
)  # fmt: skip
def test_values(expr: Expr, value: int) -> None:
    assert evaluate(expr, {"n": 7}, dims=[8, 9]) == value


@pytest.mark.parametrize(
    ("expr", "reason"),
    [
        ("k", "unknown dim 'k' .known: n"), (("pow", 2, 3), "unknown operator"),
        (("floordiv", 1, 0), "division by zero"),
        (("ceildiv", 1, 0), "division by zero"), (("mod", 1, 0), "modulo by zero"), (("dim", 2), "kernel dims"),
        (("dim", -1), "kernel dims"), (("mul", 1 << 40, 1 << 40), "64 bits"),
    ],
)  # fmt: skip
def test_what_has_no_value(expr: Expr, reason: str) -> None:
    with pytest.raises(ExpressionError, match=reason):
        evaluate(expr, {"n": 1}, dims=[8, 9])


def value_or_none(expr: Expr, dims: dict[str, int]) -> int | None:
    try:
        return evaluate(expr, dims)
    except ExpressionError:
        return None


@settings(max_examples=500, deadline=None)
@given(expressions, values)
def test_simplify_keeps_the_value(expr: Expr, dims: dict[str, int]) -> None:
    value = value_or_none(expr, dims)
    if value is not None:
        assert evaluate(simplify(expr), dims) == value


@settings(max_examples=300, deadline=None)
@given(expressions, values)
def test_json_form_round_trips(expr: Expr, dims: dict[str, int]) -> None:
    import msgspec

    decoded = normalize(msgspec.json.decode(msgspec.json.encode(expr)))
    assert decoded == expr
    assert value_or_none(decoded, dims) == value_or_none(expr, dims)


@pytest.mark.parametrize(
    ("expr", "simple"),
    [
        (("add", ("add", 1, "n"), 2), ("add", "n", 3)), (("sub", ("add", "n", 2), 2), "n"), (("mul", 1, "n"), "n"),
        (("mul", ("mul", "n", 4), 2), ("mul", "n", 8)), (("mul", "n", 0), 0), (("sub", "n", "n"), 0),
        (("min", ("min", "n", 9), 4), ("min", "n", 4)), (("ceildiv", "n", 1), "n"), (("max", "n", "n"), "n"),
        (("floordiv", 7, 2), 3), (("mod", "n", 1), 0),
    ],
)  # fmt: skip
def test_simple_forms(expr: Expr, simple: Expr) -> None:
    assert simplify(expr) == simple


def test_a_division_by_zero_is_not_folded() -> None:
    with pytest.raises(ExpressionError):
        simplify(("floordiv", 1, 0))


def test_substitute_replaces_symbols_and_kernel_dims() -> None:
    expr: Expr = ("add", ("mul", ("dim", 0), "n"), ("dim", 1))
    assert substitute(expr, {"n": ("add", "m", 1)}, dims=[3, "k"]) == ("add", ("mul", ("add", "m", 1), 3), "k")
    with pytest.raises(ExpressionError, match="kernel dims"):
        substitute(("dim", 2), {}, dims=[1])


@settings(max_examples=200, deadline=None)
@given(st.integers(-9, 9), st.integers(1, 9), st.integers(0, 99))
def test_solve_finds_the_dim(shift: int, scale: int, n: int) -> None:
    for expr in (
        ("add", ("mul", "n", scale), shift), ("sub", shift, ("mul", scale, "n")), ("sub", ("add", shift, "n"), 3),
    ):  # fmt: skip
        assert solve(expr, evaluate(expr, {"n": n})) == ("n", n)


@pytest.mark.parametrize(
    "expr", [5, ("mul", "n", 2), ("mul", "n", "m"), ("floordiv", "n", 2), ("mul", "n", 0), ("dim", 0)]
)
def test_solve_gives_up(expr: Expr) -> None:
    assert solve(expr, 7) is None


@pytest.mark.parametrize(
    "bad", [True, 1.5, None, [], ["add", 1], ["pow", 1, 2], ["dim", "x"], ["add", 1, [1, 2, 3]], {}]
)
def test_normalize_refuses(bad: Any) -> None:
    with pytest.raises(ExpressionError):
        normalize(bad)


def test_depth_is_bounded() -> None:
    expr: Any = "n"
    for _ in range(300):
        expr = ["add", expr, 1]
    with pytest.raises(ExpressionError, match="deeper"):
        normalize(expr)


def test_text_and_symbols() -> None:
    expr: Expr = ("ceildiv", ("mul", "n", ("add", "m", 2)), ("dim", 0))
    assert to_text(expr) == "ceildiv((n * (m + 2)), d0)"
    assert list(symbols(expr)) == ["n", "m"]
