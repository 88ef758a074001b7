"""Comparisons, bits, shifts, choices by a mask, and tests of single numbers."""

from __future__ import annotations

import math as python_math
from collections.abc import Callable, Mapping

from lowerkit.mlir import arith
from lowerkit.passes.raising.core.pointwise import Pointwise
from lowerkit.passes.raising.core.scalars import (
    Scalar,
    absolute,
    applied,
    both,
    compare,
    compare_number,
    constant,
    differ,
    either,
    inverted,
    is_nan,
    like,
    nonzero,
    select,
)
from lowerkit.passes.raising.torch_dialect.torch_ir import RefusalError


def _compared(predicate: str) -> Pointwise:
    return Pointwise(lambda left, right: compare(predicate, left, right), 2, "common", wide=False)


def _bits(combine: Callable[[Scalar, Scalar], Scalar]) -> Callable[[Scalar, Scalar], Scalar]:
    def body(left: Scalar, right: Scalar) -> Scalar:
        if left.is_float:
            raise RefusalError(f"the bits of {left.dtype}")
        return combine(left, right)

    return body


def _of_truths(combine: Callable[[Scalar, Scalar], Scalar]) -> Callable[[Scalar, Scalar], Scalar]:
    return lambda left, right: combine(nonzero(left), nonzero(right))


def _shifted(*, left: bool) -> Callable[[Scalar, Scalar], Scalar]:
    """Bits beyond the width, or fewer than none, leave 0; to the right they leave the sign."""

    def body(value: Scalar, bits: Scalar) -> Scalar:
        if value.is_float or value.is_bool:
            raise RefusalError(f"a shift of {value.dtype}")
        keeps_sign = not left and not value.is_unsigned
        most = value.width - (1 if keeps_sign else 0)
        shift = arith.ShLIOp if left else arith.ShRSIOp if keeps_sign else arith.ShRUIOp
        outside = compare_number("ge", bits, most)
        if not bits.is_unsigned:
            outside = either(outside, compare_number("lt", bits, 0))
        safe = select(outside, like(most if keeps_sign else 0, bits), bits)
        shifted = applied(shift, value, safe)
        return shifted if keeps_sign else select(outside, like(0, value), shifted)

    return body


def _masked(value: Scalar, mask: Scalar, number: Scalar) -> Scalar:
    """masked_fill: (value, mask, number)."""
    return select(mask, number, value)


def _is_infinite(value: Scalar) -> Scalar:
    if not value.is_float:
        return constant(0, "i1")
    return compare_number("eq", absolute(value), python_math.inf)


def _is_finite(value: Scalar) -> Scalar:
    """``abs(x) < inf``: comparisons with NaN are false."""
    if not value.is_float:
        return constant(1, "i1")
    return compare_number("lt", absolute(value), python_math.inf)


def _infinite_with(predicate: str) -> Callable[[Scalar], Scalar]:
    def body(value: Scalar) -> Scalar:
        if not value.is_float:
            return constant(0, "i1")
        return compare_number("eq", value, python_math.inf if predicate == "gt" else -python_math.inf)

    return body


_CHOICE = Pointwise(select, 3, masks=(0,), wide=False)
_LOGICAL = {"and": both, "or": either, "xor": differ}

LOGIC: Mapping[str, Pointwise] = {
    **{
        f"{name}.{form}": _compared(name)
        for name in ("eq", "ne", "lt", "le", "gt", "ge")
        for form in ("Tensor", "Scalar")
    },
    **{
        f"{spelled}.{form}": Pointwise(_bits(combine), 2, wide=False)
        for name, combine in _LOGICAL.items()
        for spelled in (f"bitwise_{name}", f"__{name}__")
        for form in ("Tensor", "Scalar")
    },
    **{f"logical_{name}": Pointwise(_of_truths(combine), 2, "common") for name, combine in _LOGICAL.items()},
    "logical_not": Pointwise(lambda value: inverted(nonzero(value)), types="own"),
    "bitwise_not": Pointwise(inverted, wide=False),
    **{
        name: Pointwise(_shifted(left="left" in name or name.startswith("__l")), 2, wide=False)
        for name in (
            *("bitwise_left_shift.Tensor", "bitwise_right_shift.Tensor"),
            *("bitwise_left_shift.Tensor_Scalar", "bitwise_right_shift.Tensor_Scalar"),
            *("__lshift__.Scalar", "__rshift__.Scalar"),
        )
    },
    **{f"where.{form}": _CHOICE for form in ("self", "ScalarOther", "ScalarSelf", "Scalar")},
    **{f"masked_fill.{form}": Pointwise(_masked, 3, masks=(1,), wide=False) for form in ("Scalar", "Tensor")},
    **dict.fromkeys(("to.dtype", "_cast_Long", "_cast_Float"), Pointwise(lambda value, *_: value, wide=False)),
    "isnan": Pointwise(is_nan, types="own"),
    "isinf": Pointwise(_is_infinite, types="own"),
    "isfinite": Pointwise(_is_finite, types="own"),
    "isposinf": Pointwise(_infinite_with("gt"), types="own"),
    "isneginf": Pointwise(_infinite_with("lt"), types="own"),
}
"""By the name of the op in ATen."""
