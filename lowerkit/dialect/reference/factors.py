"""Factors of products with fewer bits than f32 has, as tensor cores take them: what ``--allow tf32`` lets a card do.

The references of products, convolutions and attention take their factors through :func:`factor`. Inside of
:func:`rounded_factors` those that are f32 lose bits there; all else stays as it is.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

import numpy as np

from lowerkit.dialect.reference.numeric import Array, widen

Rounding = Literal["down", "nearest"]
"""Toward zero, which is what tensor cores do with bits that they do not look at; to the nearest, ties to even."""

TF32_BITS = 11
"""Bits of the significand of a tf32, the leading one among them."""

_F32_BITS = 24
_rounding: ContextVar[tuple[int, Rounding] | None] = ContextVar("_rounding", default=None)


@contextmanager
def rounded_factors(bits: int, rounding: Rounding) -> Generator[None]:
    """Makes :func:`factor` round f32 to ``bits`` bits."""
    token = _rounding.set((bits, rounding))
    try:
        yield
    finally:
        _rounding.reset(token)


def factor(array: Array, dtype: Any = None) -> Array:
    """Returns a factor of a product, widened; inside of :func:`rounded_factors` f32 is rounded before.

    Args:
        array: of any shape.
        dtype: the type of its values in a kernel where that is not the array's: wide ones in the middle of an op.
    """
    rounding = _rounding.get()
    if rounding is not None and (array.dtype if dtype is None else dtype) == np.float32:
        array = round_significand(array.astype(np.float32, copy=False), *rounding)
    return widen(array)


def round_significand(array: Array, bits: int, rounding: Rounding) -> Array:
    """Returns f32 values with ``bits`` bits of significand; what would round to infinity is cut instead.

    Args:
        array: f32 of any shape; NaN and infinities stay.
        bits: 2 to 24.
        rounding: how.
    """
    dropped = _F32_BITS - bits
    kept = np.uint32(0xFFFFFFFF ^ ((1 << dropped) - 1))
    plain = np.ascontiguousarray(array).view(np.uint32)
    found = plain & kept
    if rounding == "nearest" and dropped:
        half = np.uint32((1 << (dropped - 1)) - 1)
        upward = (plain + half + ((plain >> np.uint32(dropped)) & np.uint32(1))) & kept
        found = np.where(np.isfinite(upward.view(np.float32)), upward, found)
    return np.where(np.isfinite(array), found.view(np.float32), array).reshape(array.shape)
