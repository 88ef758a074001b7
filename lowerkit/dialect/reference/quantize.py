"""Numpy meaning of quantization: floats to integers and back in float32, integers to integers in int64.

Vocabulary
    storage     the signed integer type of the tensor; with ``unsigned`` its bits are read as an unsigned number.
    multiplier  a positive integer below 2^31 that stands, with a shift, for a real factor: ``multiplier / 2^shift``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lowerkit.dialect.reference.numeric import Array

FORMULAS = ("divide", "reciprocal")
"""How ``x / scale`` is computed: as a quotient (ONNX), or as a product with 1 / scale (PyTorch's decomposed ops)."""

ROUNDINGS = ("half_even", "half_away", "single", "double", "floor")
"""How the bits behind the shift are rounded away; ``double`` is TOSA's, which rounds a second time at bit 30."""

IN_FLOATS = "float32"
"""A rounding of products in f32, before that to integers: ONNX Runtime's."""

LARGEST_SHIFT = 62


def along(parameter: Array, rank: int, axis: int) -> Array:
    """Returns a parameter of rank 0 or 1 so that it broadcasts along ``axis`` of a tensor of ``rank`` dimensions."""
    return parameter if parameter.ndim == 0 else parameter.reshape([-1 if i == axis else 1 for i in range(rank)])


def read_stored(array: Array, *, unsigned: bool) -> Array:
    """Returns the numbers that stored integers stand for, in int64."""
    return (array.view(f"u{array.dtype.itemsize}") if unsigned else array).astype(np.int64)


def quantize(
    x: Array, scale: Array, zero_point: Array, *, axis: int, formula: str, minimum: int, maximum: int
) -> Array:
    """Returns ``saturate(round(x / scale) + zero_point)`` in int64; float32 throughout.

    A NaN gives the minimum by ``divide``, 0 by ``reciprocal``: what ONNX Runtime and PyTorch give.
    """
    factor, offset = along(scale, x.ndim, axis), along(zero_point, x.ndim, axis)
    wide = x.astype(np.float32)
    if formula == "divide":
        quotient = wide / factor.astype(np.float32)
    else:
        quotient = wide * (1.0 / factor.astype(np.float64)).astype(np.float32)
    shifted = np.rint(quotient).astype(np.float32) + offset.astype(np.float32)
    bounded = np.fmin(np.fmax(shifted, np.float32(minimum)), np.float32(maximum))
    if formula == "reciprocal":
        bounded = np.where(np.isnan(shifted), np.float32(0.0), bounded)
    return bounded.astype(np.int64)


def dequantize(numbers: Array, scale: Array, zero_point: Array, *, axis: int) -> Array:
    """Returns ``(numbers - zero_point) * scale`` in float32; the difference wraps around in 32 bits."""
    factor, offset = along(scale, numbers.ndim, axis), along(zero_point, numbers.ndim, axis)
    return (numbers - offset.astype(np.int64)).astype(np.int32).astype(np.float32) * factor.astype(np.float32)


def shift_right(product: Any, shift: Any, rounding: str) -> Array:
    """Returns ``product / 2^shift`` rounded to an integer, in int64; the shift is from 1 to 62."""
    half = np.left_shift(np.int64(1), shift - 1)
    match rounding:
        case "floor":
            rounded = product
        case "single":
            rounded = product + half
        case "half_even":
            rounded = product + (half - 1) + (np.right_shift(product, shift) & 1)
        case "half_away":
            rounded = product + half - (product < 0)
        case _:
            assert rounding == "double", rounding
            extra = np.where(product >= 0, np.int64(1 << 30), np.int64(-(1 << 30)))
            rounded = product + half + np.where(shift > 31, extra, 0)
    return np.right_shift(rounded, shift)


def requantize(
    numbers: Array,
    multiplier: Array,
    shift: Array,
    zero_point: Array,
    *,
    axis: int,
    rounding: str,
    minimum: int,
    maximum: int,
) -> Array:
    """Returns ``saturate(round(numbers * multiplier / 2^shift) + zero_point)`` in int64, exactly; IN_FLOATS: in f32."""
    factor, places, offset = (
        along(value, numbers.ndim, axis).astype(np.int64) for value in (multiplier, shift, zero_point)
    )
    if rounding == IN_FLOATS:
        product = numbers.astype(np.float32) * np.ldexp(factor.astype(np.float32), -places)
        shifted = np.rint(product) + offset.astype(np.float32)
        return np.clip(shifted, np.float32(minimum), np.float32(maximum)).astype(np.int64)
    return np.clip(shift_right(numbers * factor, places, rounding) + offset, minimum, maximum)


def multiplier_of(ratio: Array, bits: int = 32) -> tuple[Array, Array]:
    """Returns (multiplier, shift) in int32 for positive real factors in float64.

    ``ratio = m * 2^e`` with m in [1/2, 1) by frexp; the multiplier is m rounded to ``bits - 1`` bits, to nearest even,
    with the carry into e. Factors below 2^-32 become 0: no product of 32 bits rounds to anything else.

    Args:
        ratio: of any shape.
        bits: 32, 25 or 16, the sign included.

    Raises:
        ValueError: a factor is not finite, not positive, or ``2^(bits - 2)`` or more.
    """
    values = np.asarray(ratio, np.float64)
    if not np.all(np.isfinite(values)) or np.any(values <= 0) or np.any(values >= 2.0 ** (bits - 2)):
        raise ValueError(f"factors must be positive and below 2^{bits - 2}, found {values.min()} to {values.max()}")
    fraction, exponent = np.frexp(values)
    rounded = np.rint(fraction * 2.0 ** (bits - 1)).astype(np.int64)
    carry = rounded == 1 << (bits - 1)
    rounded, exponent = np.where(carry, rounded >> 1, rounded), exponent + carry
    shift = bits - 1 - exponent
    assert np.all(shift >= 1), shift
    tiny = shift > LARGEST_SHIFT
    return np.where(tiny, 0, rounded).astype(np.int32), np.where(tiny, bits - 1, shift).astype(np.int32)
