"""Meaning of arith and math ops in numpy, on scalars and arrays alike.

Every op rounds its result to the type that the IR gives it, so f16 and bf16 behave as a machine that computes each op
on its own would. index is int64, i1 is bool.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from lowerkit.dialect.reference.numeric import Array
from lowerkit.dialect.types import numpy_dtype
from lowerkit.mlir import ir

_BF16 = np.dtype(ml_dtypes.bfloat16)


def evaluate(op: ir.Operation, arguments: list[Any]) -> list[Any] | None:
    """Returns the results of an arith or math op, or None if this is not one that is known."""
    if op.name in _COMPARISONS:
        return [_COMPARISONS[op.name](op.attributes["predicate"].value, *arguments)]
    if op.name in _CONVERSIONS:
        return [_CONVERSIONS[op.name](arguments[0], _dtype(op.results[0].type))]
    if op.name in _WIDE:
        return [_rounded(_WIDE[op.name], arguments, _dtype(op.results[0].type))]
    if op.name in _PLAIN:
        dtype = _dtype(op.results[0].type)
        return [np.asarray(_PLAIN[op.name](*arguments)).astype(dtype, copy=False)]
    if op.name in _PAIRS:
        return list(_PAIRS[op.name](*arguments))
    return None


def is_known(name: str) -> bool:
    """Whether :func:`evaluate` knows an op of this name."""
    return name in _COMPARISONS or name in _CONVERSIONS or name in _WIDE or name in _PLAIN or name in _PAIRS


def _dtype(kind: ir.Type) -> np.dtype[Any]:
    element = kind.element_type if isinstance(kind, ir.ShapedType) else kind
    return numpy_dtype(element)


def _rounded(function: Callable[..., Any], arguments: list[Any], dtype: np.dtype[Any]) -> Array:
    """Computes narrow floats in float32, as libm-based code does, and rounds to the result type."""
    if dtype in (_BF16, np.dtype(np.float16)):
        arguments = [np.asarray(argument).astype(np.float32) for argument in arguments]
    return np.asarray(function(*arguments)).astype(dtype, copy=False)


def unsigned(value: Any) -> Array:
    """Returns the same bits as an unsigned integer."""
    array = np.asarray(value)
    return array if array.dtype == np.bool_ else array.view(f"u{array.dtype.itemsize}")


def _signed(value: Any) -> Array:
    """i1 as a signed integer is 0 or -1."""
    array = np.asarray(value)
    return -array.astype(np.int8) if array.dtype == np.bool_ else array


def _compare_floats(predicate: int, left: Any, right: Any) -> Array:
    unordered = np.isnan(left) | np.isnan(right)
    # The order of the predicates in arith.cmpf: false, the seven ordered ones, the seven unordered ones, true.
    base = predicate % 8
    ordered = {
        0: lambda: np.zeros(np.broadcast(left, right).shape, np.bool_),
        1: lambda: np.equal(left, right),
        2: lambda: np.greater(left, right),
        3: lambda: np.greater_equal(left, right),
        4: lambda: np.less(left, right),
        5: lambda: np.less_equal(left, right),
        6: lambda: np.not_equal(left, right) & ~unordered,
        7: lambda: ~unordered,
    }
    if predicate < 8:
        return np.asarray(ordered[base]())
    late = {8: 1, 9: 2, 10: 3, 11: 4, 12: 5, 13: 6, 14: 0, 15: 7}[predicate]
    return np.asarray(ordered[late]()) | unordered


def _compare_integers(predicate: int, left: Any, right: Any) -> Array:
    if predicate >= 6:
        left, right = unsigned(left), unsigned(right)
        predicate -= 4
    elif predicate >= 2:
        left, right = _signed(left), _signed(right)
    functions = [np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal]
    return np.asarray(functions[predicate](left, right))


def _divide_truncated(left: Any, right: Any) -> Array:
    quotient = np.floor_divide(left, right)
    remainder = np.subtract(left, np.multiply(quotient, right))
    inexact = (remainder != 0) & ((np.asarray(left) < 0) != (np.asarray(right) < 0))
    return quotient + inexact.astype(np.asarray(left).dtype)


def _divide_up(left: Any, right: Any) -> Array:
    # Not -(-left // right): the smallest integer has no negative.
    quotient = np.floor_divide(left, right)
    remainder = np.subtract(left, np.multiply(quotient, right))
    return quotient + (remainder != 0).astype(quotient.dtype)


def _add_integers(left: Any, right: Any) -> Array:
    return np.logical_xor(left, right) if np.asarray(left).dtype == np.bool_ else np.add(left, right)


def _subtract_integers(left: Any, right: Any) -> Array:
    return np.logical_xor(left, right) if np.asarray(left).dtype == np.bool_ else np.subtract(left, right)


def _as_bits(value: Any, dtype: np.dtype[Any]) -> Array:
    return np.ascontiguousarray(value).view(dtype).reshape(np.shape(value))


def _count_leading_zeros(value: Any) -> Array:
    array = np.asarray(value)
    bits = unsigned(array).astype(np.uint64)
    count = np.full(array.shape, array.dtype.itemsize * 8, np.int64)
    for position in range(array.dtype.itemsize * 8):
        count = np.where(bits >> np.uint64(position) & np.uint64(1), array.dtype.itemsize * 8 - 1 - position, count)
    return count


def _count_trailing_zeros(value: Any) -> Array:
    array = np.asarray(value)
    bits = unsigned(array).astype(np.uint64)
    count = np.full(array.shape, array.dtype.itemsize * 8, np.int64)
    for position in reversed(range(array.dtype.itemsize * 8)):
        count = np.where(bits >> np.uint64(position) & np.uint64(1), position, count)
    return count


def _round_half_away(value: Any) -> Array:
    array = np.asarray(value)
    truncated = np.trunc(array)
    return truncated + np.where(np.abs(array - truncated) >= 0.5, np.copysign(np.ones_like(array), array), 0)


def _per_element(function: Callable[[float], float]) -> Callable[[Any], Array]:
    def apply(value: Any) -> Array:
        array = np.asarray(value, np.float64)
        return np.fromiter(map(function, array.ravel().tolist()), np.float64, array.size).reshape(array.shape)

    return apply


def _integer_power(base: Any, exponent: Any) -> Array:
    return np.where(np.asarray(exponent) < 0, 0, np.power(base, np.maximum(exponent, 0)))


def _multiply_extended(left: Any, right: Any, view: Callable[[Any], Array]) -> tuple[Array, Array]:
    dtype = np.asarray(left).dtype
    bits = dtype.itemsize * 8
    full = view(left).astype(object) * view(right).astype(object)
    mask = (1 << bits) - 1
    low, high = np.asarray(full & mask), np.asarray((full >> bits) & mask)
    plain = np.dtype(f"u{dtype.itemsize}")
    return low.astype(plain).view(dtype), high.astype(plain).view(dtype)


def _to_integer(value: Any, dtype: np.dtype[Any]) -> Array:
    return np.trunc(np.asarray(value).astype(np.float64)).astype(dtype)


_COMPARISONS: dict[str, Callable[..., Any]] = {"arith.cmpf": _compare_floats, "arith.cmpi": _compare_integers}

_CONVERSIONS: dict[str, Callable[..., Any]] = {
    "arith.extf": lambda x, t: np.asarray(x).astype(t),
    "arith.truncf": lambda x, t: np.asarray(x).astype(t),
    "arith.sitofp": lambda x, t: _signed(x).astype(t),
    "arith.uitofp": lambda x, t: unsigned(x).astype(t),
    "arith.fptosi": _to_integer,
    "arith.fptoui": lambda x, t: np.asarray(x).astype(np.float64).astype(np.uint64).astype(t),
    "arith.extsi": lambda x, t: _signed(x).astype(t),
    "arith.extui": lambda x, t: unsigned(x).astype(t),
    "arith.trunci": lambda x, t: (np.asarray(x) & 1 != 0) if t == np.bool_ else np.asarray(x).astype(t),
    "arith.index_cast": lambda x, t: _signed(x).astype(t),
    "arith.index_castui": lambda x, t: unsigned(x).astype(t),
    "arith.bitcast": _as_bits,
}

# Correctly rounded, or exact, in numpy's own arithmetic for every element type.
_PLAIN: dict[str, Callable[..., Any]] = {
    "arith.addf": np.add,
    "arith.subf": np.subtract,
    "arith.mulf": np.multiply,
    "arith.divf": np.divide,
    "arith.negf": np.negative,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "arith.maxnumf": np.fmax,
    "arith.minnumf": np.fmin,
    "arith.addi": _add_integers,
    "arith.subi": _subtract_integers,
    "arith.muli": np.multiply,
    "arith.divsi": _divide_truncated,
    "arith.divui": lambda a, b: np.floor_divide(unsigned(a), unsigned(b)),
    "arith.floordivsi": np.floor_divide,
    "arith.ceildivsi": _divide_up,
    "arith.ceildivui": lambda a, b: _divide_up(unsigned(a), unsigned(b)),
    "arith.remsi": lambda a, b: np.subtract(a, np.multiply(_divide_truncated(a, b), b)),
    "arith.remui": lambda a, b: np.remainder(unsigned(a), unsigned(b)),
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
    "arith.shli": np.left_shift,
    "arith.shrsi": np.right_shift,
    "arith.shrui": lambda a, b: np.right_shift(unsigned(a), unsigned(b)),
    "arith.maxsi": np.maximum,
    "arith.minsi": np.minimum,
    "arith.maxui": lambda a, b: np.maximum(unsigned(a), unsigned(b)),
    "arith.minui": lambda a, b: np.minimum(unsigned(a), unsigned(b)),
    "arith.select": np.where,
    "math.absf": np.abs,
    "math.absi": np.abs,
    "math.copysign": np.copysign,
    "math.isnan": np.isnan,
    "math.isinf": np.isinf,
    "math.isfinite": np.isfinite,
    "math.ctlz": _count_leading_zeros,
    "math.cttz": _count_trailing_zeros,
    "math.ctpop": lambda x: np.bitwise_count(unsigned(x)),
    "math.ipowi": _integer_power,
}

_PAIRS: dict[str, Callable[..., tuple[Any, Any]]] = {
    "arith.mulsi_extended": lambda a, b: _multiply_extended(a, b, np.asarray),
    "arith.mului_extended": lambda a, b: _multiply_extended(a, b, unsigned),
}

_WIDE: dict[str, Callable[..., Any]] = {
    "arith.remf": np.fmod,
    "math.acos": np.arccos,
    "math.acosh": np.arccosh,
    "math.asin": np.arcsin,
    "math.asinh": np.arcsinh,
    "math.atan": np.arctan,
    "math.atan2": np.arctan2,
    "math.atanh": np.arctanh,
    "math.cbrt": np.cbrt,
    "math.ceil": np.ceil,
    "math.clampf": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "math.cos": np.cos,
    "math.cosh": np.cosh,
    "math.erf": _per_element(math.erf),
    "math.erfc": _per_element(math.erfc),
    "math.exp": np.exp,
    "math.exp2": np.exp2,
    "math.expm1": np.expm1,
    "math.floor": np.floor,
    "math.fma": lambda a, b, c: np.asarray(a).astype(np.float64) * b + c,
    "math.fpowi": lambda base, exponent: np.power(base, np.asarray(exponent).astype(np.float64)),
    "math.log": np.log,
    "math.log10": np.log10,
    "math.log1p": np.log1p,
    "math.log2": np.log2,
    "math.powf": np.power,
    "math.round": _round_half_away,
    "math.roundeven": np.rint,
    "math.rsqrt": lambda x: 1 / np.sqrt(np.asarray(x).astype(np.float64)),
    "math.sin": np.sin,
    "math.sinh": np.sinh,
    "math.sqrt": np.sqrt,
    "math.tan": np.tan,
    "math.tanh": np.tanh,
    "math.trunc": np.trunc,
}
