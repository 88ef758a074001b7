"""Every float op in Triton, on special values and random ones, against numpy.

One kernel for each element type computes all rows as results of one elementwise op; each row is a test of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from tests.support.region_kernels import DTYPES
from tests.support.targets.scalar_rows import FLOATS, pairs, run_rows

Array = np.ndarray[Any, Any]

EXACT: dict[str, Callable[..., Any]] = {
    "arith.addf": np.add, "arith.subf": np.subtract, "arith.mulf": np.multiply, "arith.divf": np.divide,
    "arith.maximumf": np.maximum, "arith.minimumf": np.minimum, "arith.maxnumf": np.fmax, "arith.minnumf": np.fmin,
    "arith.remf": np.fmod, "arith.negf": np.negative, "math.absf": np.abs, "math.floor": np.floor,
    "math.ceil": np.ceil, "math.trunc": np.trunc, "math.roundeven": np.rint, "math.sqrt": np.sqrt,
    "math.copysign": np.copysign, "math.round": lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x),
}  # fmt: skip
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "math.exp": np.exp, "math.exp2": np.exp2, "math.expm1": np.expm1, "math.log": np.log, "math.log2": np.log2,
    "math.log10": np.log10, "math.log1p": np.log1p, "math.sin": np.sin, "math.cos": np.cos, "math.tan": np.tan,
    "math.asin": np.arcsin, "math.acos": np.arccos, "math.atan": np.arctan, "math.sinh": np.sinh,
    "math.cosh": np.cosh, "math.tanh": np.tanh, "math.asinh": np.arcsinh, "math.acosh": np.arccosh,
    "math.atanh": np.arctanh, "math.cbrt": np.cbrt, "math.erf": np.vectorize(math.erf),
    "math.erfc": np.vectorize(math.erfc), "math.rsqrt": lambda x: 1 / np.sqrt(x), "math.atan2": np.arctan2,
    "math.powf": np.power,
}  # fmt: skip
BINARY = ("arith.addf", "arith.subf", "arith.mulf", "arith.divf", "arith.maximumf", "arith.minimumf", "arith.maxnumf",
          "arith.minnumf", "arith.remf", "math.copysign", "math.atan2", "math.powf")  # fmt: skip
ORDERED = ("false", "oeq", "ogt", "oge", "olt", "ole", "one", "ord")


@lru_cache(maxsize=4)
def float_results(element: str) -> tuple[Array, Array, dict[str, Array]]:
    x, y = pairs(element)
    rows = {op: (f"%y = {op} %x0{', %x1' if op in BINARY else ''} : {element}", element) for op in (*EXACT, *FUNCTIONS)}
    rows |= {f"math.{op}": (f"%y = math.{op} %x0 : {element}", "i1") for op in ("isnan", "isinf", "isfinite")}
    rows |= {
        f"cmpf {each}": (f"%y = arith.cmpf {each}, %x0, %x1 : {element}", "i1")
        for each in (*ORDERED, "ueq", "ugt", "uge", "ult", "ule", "une", "uno", "true")
    }
    rows["math.fma"] = f"%y = math.fma %x0, %x1, %x0 : {element}", element
    rows["math.clampf"] = f"%y = math.clampf %x0 to [%x1, %x1] : {element}", element
    return x, y, dict(zip(rows, run_rows(element, list(rows.values()), [x, y]), strict=True))


@pytest.mark.parametrize("element", FLOATS)
@pytest.mark.parametrize("op", [*EXACT, *FUNCTIONS])
def test_float_rows(op: str, element: str) -> None:
    x, y, results = float_results(element)
    wide = np.float64 if element == "f64" or op in FUNCTIONS else np.float32
    function = (EXACT | FUNCTIONS)[op]
    with np.errstate(all="ignore"):
        inputs = [each.astype(wide) for each in (x, y)[: 2 if op in BINARY else 1]]
        wanted = np.asarray(function(*inputs)).astype(DTYPES[element]).astype(np.float64)
    found = results[op].astype(np.float64)
    if op in EXACT:
        np.testing.assert_array_equal(found, wanted)
        if op not in ("arith.maximumf", "arith.minimumf", "arith.maxnumf", "arith.minnumf"):  # numpy takes either zero
            assert (np.signbit(found) == np.signbit(wanted))[wanted == 0].all()
        return
    digits = {"f64": 1e-15, "f32": 5e-7, "f16": 1e-3, "bf16": 8e-3}[element]
    np.testing.assert_allclose(found, wanted, rtol=digits, atol=0 if element == "f64" else 1e-7)


@pytest.mark.parametrize("element", FLOATS)
def test_questions_about_floats(element: str) -> None:
    x, y, results = float_results(element)
    a, b = x.astype(np.float64), y.astype(np.float64)
    for name, function in {"isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite}.items():
        assert (results[f"math.{name}"] == function(a)).all(), name
    unordered = np.isnan(a) | np.isnan(b)
    ordered = [unordered & False, a == b, a > b, a >= b, a < b, a <= b, (a < b) | (a > b), ~unordered]
    for name, wanted in zip(ORDERED, ordered, strict=True):
        assert (results[f"cmpf {name}"] == wanted).all(), name
    late = {"ueq": a == b, "ugt": a > b, "uge": a >= b, "ult": a < b, "ule": a <= b, "une": a != b, "uno": unordered}
    for name, wanted in (late | {"true": ~unordered}).items():
        assert (results[f"cmpf {name}"] == (wanted | unordered)).all(), name


@pytest.mark.parametrize("element", FLOATS)
def test_ops_of_three(element: str) -> None:
    x, y, results = float_results(element)
    a, b = x.astype(np.float64), y.astype(np.float64)
    for left, right, found in zip(a.tolist(), b.tolist(), results["math.fma"].tolist(), strict=True):
        if math.isfinite(left) and math.isfinite(right):
            exact = float(Fraction(left) * Fraction(right) + Fraction(left))
            with np.errstate(over="ignore"):
                assert float(found) == float(DTYPES[element](exact)), (left, right)
        else:
            assert not math.isfinite(found)
    clamped = np.minimum(np.maximum(a, b), b)
    np.testing.assert_array_equal(results["math.clampf"].astype(np.float64), clamped)


@pytest.mark.parametrize("element", ["f64", "f32"])
def test_plain_loops_have_the_functions_of_the_library(element: str) -> None:
    """What is accepted is compiled whatever the region: remainders, and functions without a polynomial of ours."""
    x, y = pairs(element)
    chosen = [*FUNCTIONS, "arith.remf"]
    rows = [(f"%y = {op} %x0{', %x1' if op in BINARY else ''} : {element}", element) for op in chosen]
    for op, found in zip(chosen, run_rows(element, rows, [x, y], loops=True), strict=True):
        with np.errstate(all="ignore"):
            inputs = [each.astype(np.float64) for each in (x, y)[: 2 if op in BINARY else 1]]
            wanted = np.asarray((EXACT | FUNCTIONS)[op](*inputs)).astype(DTYPES[element])
        limit = {"f64": 1e-15, "f32": 2e-6}[element]
        np.testing.assert_allclose(found, wanted, rtol=limit, atol=0 if element == "f64" else 1e-7, err_msg=op)
