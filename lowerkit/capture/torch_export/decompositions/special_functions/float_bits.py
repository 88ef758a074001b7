"""Numbers taken apart: exponents, neighbours and signs of floats, common divisors and bits of integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lowerkit.capture.torch_export.decompositions.while_loops import run_while
from lowerkit.capture.torch_export.operators import aten

_INTEGER_OF = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}
_FRACTION_BITS, _BIAS = 52, 1022
"""Of a float64, for a fraction of 0.5 to 1."""
_FARTHEST = 2400.0
"""An exponent that takes any float64 to zero or beyond all bounds."""


def _greatest_common_divisor(left: Tensor, right: Tensor) -> Tensor:
    """Euclid's algorithm on all elements at once, until the last has no remainder.

    In PyTorch's order, and with remainders of C: the smallest integer has no magnitude, and its sign must come out.
    """
    dtype = torch.result_type(left, right)
    right, left = torch.broadcast_tensors(left.to(dtype).abs(), right.to(dtype).abs())

    def more(one: Tensor, other: Tensor) -> Tensor:
        return (other != 0).any()

    def body(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        going = other != 0
        rest = torch.fmod(one, torch.where(going, other, 1))
        return torch.where(going, other, one), torch.where(going, rest, 0)

    return run_while(more, body, (left.clone(), right.clone()), ())[0]


def _least_common_multiple(left: Tensor, right: Tensor) -> Tensor:
    divisor = _greatest_common_divisor(left, right)
    dtype, wide = divisor.dtype, torch.promote_types(divisor.dtype, torch.int32)  # as C computes with small integers
    divisor = divisor.to(wide)
    quotient = torch.div(left.to(dtype).to(wide), torch.where(divisor == 0, 1, divisor), rounding_mode="trunc")
    return (quotient * right.to(dtype).to(wide)).abs().to(dtype)


def _fraction_and_exponent(value: Tensor) -> tuple[Tensor, Tensor]:
    """``value = fraction * 2^exponent`` with a fraction of 0.5 to 1; 0, infinities and NaN have the exponent 0."""
    wide = value.to(torch.float64)
    tiny = (wide.abs() < 2.0**-1022) & (wide != 0)
    scaled = torch.where(tiny, wide * 2.0**54, wide)
    bits = scaled.view(torch.int64)
    exponent = ((bits >> _FRACTION_BITS) & 0x7FF) - _BIAS
    half = torch.full((), _BIAS << _FRACTION_BITS, dtype=torch.int64)
    fraction = torch.bitwise_or(bits & ~(0x7FF << _FRACTION_BITS), half).view(torch.float64)
    plain = (wide == 0) | ~torch.isfinite(wide)
    exponent = torch.where(plain, 0, exponent - torch.where(tiny, 54, 0))
    return torch.where(plain, wide, fraction).to(value.dtype), exponent.to(torch.int32)


def _next_after(value: Tensor, target: Tensor) -> Tensor:
    """The neighbour of a float on the side of another; the other itself where they are equal."""
    dtype = torch.result_type(value, target)
    if dtype not in _INTEGER_OF:
        return NotImplemented
    value, target = torch.broadcast_tensors(value.to(dtype), target.to(dtype))
    value, target = value.contiguous(), target.contiguous()
    bits = value.view(_INTEGER_OF[dtype])
    outwards = (target > value) == (value > 0)
    stepped = torch.where(outwards, bits + 1, bits - 1)
    least = torch.where(target > 0, 1, torch.iinfo(_INTEGER_OF[dtype]).min + 1).to(bits.dtype)
    found = torch.where(value == 0, least, stepped).view(dtype)
    found = torch.where(value == target, target, found)
    return torch.where(torch.isnan(value) | torch.isnan(target), value + target, found)


def _scaled_by_power(value: Tensor, exponent: Tensor) -> Tensor:
    """``value * 2^exponent``: by three powers of integers, as one power would overflow where the result does not.

    PyTorch takes a power of two where a side is of another kind.
    """
    if exponent.is_floating_point() or not value.is_floating_point():
        return value * torch.pow(2.0, exponent)
    dtype = value.dtype
    whole = exponent.to(torch.float64).clamp(-_FARTHEST, _FARTHEST)
    third = torch.trunc(whole / 3)
    power, rest = torch.exp2(third), torch.exp2(whole - 2 * third)
    return (value.to(torch.float64) * power * power * rest).to(dtype)


def _shifted(shift: Callable[..., Tensor]) -> Callable[..., Any]:
    """``<<`` and ``>>``; floats are multiplied there, by powers of two."""

    def compute(value: Tensor, count: Tensor) -> Any:
        return NotImplemented if value.is_floating_point() or count.is_floating_point() else shift(value, count)

    return compute


BY_NAME: dict[str, Callable[..., Any]] = {
    "aten.__lshift__.Tensor": _shifted(torch.bitwise_left_shift),
    "aten.__rshift__.Tensor": _shifted(torch.bitwise_right_shift),
}
"""By the text of the overload: a namespace of ours gives no names with two underscores."""

TABLE: dict[Any, Callable[..., Any]] = {
    aten.gcd.default: _greatest_common_divisor,
    aten.lcm.default: _least_common_multiple,
    aten.frexp.Tensor: _fraction_and_exponent,
    aten.nextafter.default: _next_after,
    aten.ldexp.Tensor: _scaled_by_power,
}
"""By overload."""
