"""The interpreter on single elements: arithmetic, functions, comparisons and conversions are those of numpy."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from lowerkit.mlir import ir
from tests.unit.dialect.interpreter.interpreter_text import elementwise

VALUES = np.array([0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 2.5, 3.7, 1e-3, 100.0, np.inf, -np.inf, np.nan], np.float32)

OTHERS = np.array([1.0, 2.0, -1.0, 3.0, np.nan, 2.0, 2.5, -3.7, 7.0, np.inf, np.inf, 1.0, 0.0], np.float32)

WHOLE = np.array([0, 1, -1, 7, -7, 100, -128, 127], np.int8)

DIVISORS = np.array([1, 2, 3, -2, 2, 7, 5, -3], np.int8)


@pytest.mark.parametrize(
    ("op", "function"),
    [
        ("addf", np.add),
        ("subf", np.subtract),
        ("mulf", np.multiply),
        ("divf", np.divide),
        ("remf", np.fmod),
        ("maximumf", np.maximum),
        ("minimumf", np.minimum),
        ("maxnumf", np.fmax),
        ("minnumf", np.fmin),
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_float_arithmetic(op: str, function: Any, dtype: Any, run: Any) -> None:
    kind = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}[np.dtype(dtype).name]
    left, right = VALUES.astype(dtype), OTHERS.astype(dtype)
    (found,) = run(elementwise(f"arith.{op} $0, $1 : {kind}", [kind, kind], kind), left, right)
    with np.errstate(all="ignore"):
        wanted = function(left.astype(np.float64), right.astype(np.float64)).astype(dtype)
    assert found.dtype == wanted.dtype
    # As float64: numpy does not know that a bf16 NaN is one.
    np.testing.assert_array_equal(found.astype(np.float64), wanted.astype(np.float64))


@pytest.mark.parametrize(
    ("op", "function"),
    [
        ("acos", math.acos),
        ("acosh", math.acosh),
        ("asin", math.asin),
        ("asinh", math.asinh),
        ("atan", math.atan),
        ("atanh", math.atanh),
        ("cbrt", math.cbrt),
        ("cos", math.cos),
        ("cosh", math.cosh),
        ("erf", math.erf),
        ("erfc", math.erfc),
        ("exp", math.exp),
        ("exp2", math.exp2),
        ("expm1", math.expm1),
        ("log", math.log),
        ("log10", math.log10),
        ("log1p", math.log1p),
        ("log2", math.log2),
        ("rsqrt", lambda x: 1 / math.sqrt(x)),
        ("sin", math.sin),
        ("sinh", math.sinh),
        ("sqrt", math.sqrt),
        ("tan", math.tan),
        ("tanh", math.tanh),
    ],
)
def test_elementary_functions(op: str, function: Any, run: Any) -> None:
    points = np.array([-3.3, -0.7, 0.0, 0.25, 0.99, 1.0, 1.5, 4.0], np.float64)
    wanted: list[float] = []
    for point in points.tolist():
        try:
            wanted.append(function(point))
        except (ValueError, ZeroDivisionError):
            wanted.append(math.nan)
    defined = np.isfinite(wanted)
    (found,) = run(elementwise(f"math.{op} $0 : f64", ["f64"], "f64"), points)
    np.testing.assert_allclose(found[defined], np.array(wanted)[defined], rtol=1e-14)
    assert not np.isfinite(found[~defined]).any()
    half = points.astype(np.float16)
    (found,) = run(elementwise(f"math.{op} $0 : f16", ["f16"], "f16"), half)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found[defined], np.array(wanted)[defined], rtol=4e-3, atol=4e-3)


def test_rounding_functions(run: Any) -> None:
    points = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 2.4, -2.6, 0.0], np.float32)
    wanted = {
        "round": [-3, -2, -1, 1, 2, 3, 2, -3, 0],
        "roundeven": [-2, -2, 0, 0, 2, 2, 2, -3, 0],
        "floor": [-3, -2, -1, 0, 1, 2, 2, -3, 0],
        "ceil": [-2, -1, 0, 1, 2, 3, 3, -2, 0],
        "trunc": [-2, -1, 0, 0, 1, 2, 2, -2, 0],
        "absf": [2.5, 1.5, 0.5, 0.5, 1.5, 2.5, 2.4, 2.6, 0],
    }
    for op, values in wanted.items():
        (found,) = run(elementwise(f"math.{op} $0 : f32", ["f32"], "f32"), points)
        np.testing.assert_array_equal(found, np.array(values, np.float32), op)


def test_bf16_rounds_at_every_op(run: Any) -> None:
    """(256 + 1) - 256: bf16 has eight bits, so 257 rounds to 256 and the answer is 0."""
    text = elementwise("arith.subf %t, $0 : bf16", ["bf16", "bf16"], "bf16").replace(
        "%v =", "%t = arith.addf %s0, %s1 : bf16\n %v ="
    )
    (found,) = run(text, np.array([256.0], ml_dtypes.bfloat16), np.array([1.0], ml_dtypes.bfloat16))
    assert float(found[0]) == 0.0


@pytest.mark.parametrize(
    ("op", "function"),
    [
        ("addi", lambda a, b: a + b),
        ("subi", lambda a, b: a - b),
        ("muli", lambda a, b: a * b),
        ("divsi", lambda a, b: int(a / b)),
        ("divui", lambda a, b: (a % 256) // (b % 256)),
        ("floordivsi", lambda a, b: a // b),
        ("ceildivsi", lambda a, b: -(-a // b)),
        ("ceildivui", lambda a, b: -(-(a % 256) // (b % 256))),
        ("remsi", lambda a, b: int(math.fmod(a, b))),
        ("remui", lambda a, b: (a % 256) % (b % 256)),
        ("andi", lambda a, b: a & b),
        ("ori", lambda a, b: a | b),
        ("xori", lambda a, b: a ^ b),
        ("maxsi", max),
        ("minsi", min),
        ("maxui", lambda a, b: max(a % 256, b % 256)),
        ("minui", lambda a, b: min(a % 256, b % 256)),
    ],
)
def test_integer_arithmetic(op: str, function: Any, run: Any) -> None:
    (found,) = run(elementwise(f"arith.{op} $0, $1 : i8", ["i8", "i8"], "i8"), WHOLE, DIVISORS)
    wanted = [function(a, b) for a, b in zip(WHOLE.tolist(), DIVISORS.tolist(), strict=True)]
    np.testing.assert_array_equal(found, np.array(wanted, np.int64).astype(np.int8))


def test_shifts_and_bit_counts(run: Any) -> None:
    amounts = np.array([0, 1, 2, 3, 1, 4, 7, 6], np.int8)
    (left,) = run(elementwise("arith.shli $0, $1 : i8", ["i8", "i8"], "i8"), WHOLE, amounts)
    (signed,) = run(elementwise("arith.shrsi $0, $1 : i8", ["i8", "i8"], "i8"), WHOLE, amounts)
    (plain,) = run(elementwise("arith.shrui $0, $1 : i8", ["i8", "i8"], "i8"), WHOLE, amounts)
    pairs = list(zip(WHOLE.tolist(), amounts.tolist(), strict=True))
    np.testing.assert_array_equal(left, np.array([a << n for a, n in pairs]).astype(np.int8))
    np.testing.assert_array_equal(signed, np.array([a >> n for a, n in pairs]).astype(np.int8))
    np.testing.assert_array_equal(plain, np.array([(a % 256) >> n for a, n in pairs]).astype(np.int8))
    (zeros,) = run(elementwise("math.ctlz $0 : i8", ["i8"], "i8"), WHOLE)
    np.testing.assert_array_equal(zeros, [8 - int(a % 256).bit_length() for a in WHOLE.tolist()])
    (ones,) = run(elementwise("math.ctpop $0 : i8", ["i8"], "i8"), WHOLE)
    np.testing.assert_array_equal(ones, [int(a % 256).bit_count() for a in WHOLE.tolist()])


@pytest.mark.parametrize(
    ("predicate", "ordered", "function"),
    [
        ("eq", True, np.equal),
        ("gt", True, np.greater),
        ("ge", True, np.greater_equal),
        ("lt", True, np.less),
        ("le", True, np.less_equal),
        ("ne", True, np.not_equal),
        ("eq", False, np.equal),
        ("gt", False, np.greater),
        ("ge", False, np.greater_equal),
        ("lt", False, np.less),
        ("le", False, np.less_equal),
        ("ne", False, np.not_equal),
    ],
)
def test_float_comparisons(predicate: str, ordered: bool, function: Any, run: Any) -> None:
    name = ("o" if ordered else "u") + predicate
    (found,) = run(elementwise(f"arith.cmpf {name}, $0, $1 : f32", ["f32", "f32"], "i1"), VALUES, OTHERS)
    unordered = np.isnan(VALUES) | np.isnan(OTHERS)
    wanted = function(VALUES, OTHERS) & ~unordered
    np.testing.assert_array_equal(found, wanted if ordered else wanted | unordered)


def test_ordered_and_unordered(run: Any) -> None:
    unordered = np.isnan(VALUES) | np.isnan(OTHERS)
    for name, wanted in (
        ("uno", unordered),
        ("ord", ~unordered),
        ("true", unordered | True),
        ("false", unordered & False),
    ):
        (found,) = run(elementwise(f"arith.cmpf {name}, $0, $1 : f32", ["f32", "f32"], "i1"), VALUES, OTHERS)
        np.testing.assert_array_equal(found, wanted)


def test_integer_comparisons(run: Any) -> None:
    left, right = WHOLE, np.roll(WHOLE, 3)
    for name, function in (("slt", np.less), ("sle", np.less_equal), ("sgt", np.greater), ("sge", np.greater_equal)):
        (found,) = run(elementwise(f"arith.cmpi {name}, $0, $1 : i8", ["i8", "i8"], "i1"), left, right)
        np.testing.assert_array_equal(found, function(left, right))
        plain = name.replace("s", "u", 1)
        (found,) = run(elementwise(f"arith.cmpi {plain}, $0, $1 : i8", ["i8", "i8"], "i1"), left, right)
        np.testing.assert_array_equal(found, function(left.view(np.uint8), right.view(np.uint8)))
    flags = np.array([False, True, False, True])
    (found,) = run(elementwise("arith.cmpi slt, $0, $1 : i1", ["i1", "i1"], "i1"), flags, ~flags)
    np.testing.assert_array_equal(found, flags)  # a signed true is -1


@pytest.mark.parametrize(
    ("op", "source", "target", "values", "wanted"),
    [
        ("extf", "f16", "f32", [1.5, -0.1], [1.5, float(np.float16(-0.1))]),
        ("truncf", "f64", "bf16", [1.0 + 2**-8, 1.0 + 3 * 2**-8], [1.0, 1.015625]),
        ("sitofp", "i8", "f32", [-3, 127], [-3.0, 127.0]),
        ("uitofp", "i8", "f32", [-1, 127], [255.0, 127.0]),
        ("uitofp", "i1", "f32", [True, False], [1.0, 0.0]),
        ("sitofp", "i1", "f32", [True, False], [-1.0, 0.0]),
        ("fptosi", "f32", "i32", [-2.9, 2.9], [-2, 2]),
        ("extsi", "i8", "i32", [-3, 5], [-3, 5]),
        ("extui", "i8", "i32", [-3, 5], [253, 5]),
        ("extsi", "i1", "i8", [True, False], [-1, 0]),
        ("extui", "i1", "i8", [True, False], [1, 0]),
        ("trunci", "i32", "i8", [300, -300], [44, -44]),
        ("trunci", "i32", "i1", [2, 3], [False, True]),
        ("bitcast", "f32", "i32", [1.0, -2.0], [0x3F800000, -0x40000000]),
        ("index_cast", "i32", "index", [-3, 5], [-3, 5]),
    ],
)
def test_conversions(op: str, source: str, target: str, values: Any, wanted: Any, run: Any) -> None:
    from lowerkit.dialect.types import numpy_dtype

    array = np.array(values, numpy_dtype(ir.Type.parse(source)))
    (found,) = run(elementwise(f"arith.{op} $0 : {source} to {target}", [source], target), array)
    assert found.dtype == numpy_dtype(ir.Type.parse(target))
    np.testing.assert_array_equal(found.astype(np.float64), np.array(wanted, np.float64))


def test_select_and_other_ops(run: Any) -> None:
    flags = VALUES > 0
    (found,) = run(elementwise("arith.select $0, $1, $2 : f32", ["i1", "f32", "f32"], "f32"), flags, VALUES, OTHERS)
    np.testing.assert_array_equal(found, np.where(flags, VALUES, OTHERS))
    (found,) = run(elementwise("math.powf $0, $1 : f32", ["f32", "f32"], "f32"), VALUES, OTHERS)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(found, np.power(VALUES, OTHERS))
    (found,) = run(elementwise("math.copysign $0, $1 : f32", ["f32", "f32"], "f32"), VALUES, OTHERS)
    np.testing.assert_array_equal(found, np.copysign(VALUES, OTHERS))
    (found,) = run(elementwise("math.fma $0, $1, $0 : f32", ["f32", "f32"], "f32"), VALUES, OTHERS)
    with np.errstate(all="ignore"):
        wanted = (VALUES.astype(np.float64) * OTHERS + VALUES).astype(np.float32)
    np.testing.assert_array_equal(found, wanted)
