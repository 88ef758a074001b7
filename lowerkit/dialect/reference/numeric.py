"""Precision of the numpy references: floats in float64, integers in int64, one rounding at the end."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

quiet = np.errstate(all="ignore")
"""Decorator: overflow to infinity, NaN and division by zero are values here, not warnings."""


def is_floating(dtype: Any) -> bool:
    """Whether a dtype is a float, bfloat16 included."""
    return np.issubdtype(dtype, np.floating) or np.dtype(dtype) == np.dtype(ml_dtypes.bfloat16)


def widen(array: Array) -> Array:
    """Returns floats as float64 and integers as int64."""
    return array.astype(np.float64 if is_floating(array.dtype) else np.int64, copy=False)


@quiet
def round_to(array: Array, dtype: Any) -> Array:
    """Rounds once to ``dtype``; integers wrap around."""
    return np.asarray(array).astype(dtype, copy=False)


def smallest(dtype: Any) -> Any:
    """Returns -inf, or the smallest integer, of a dtype."""
    return -np.inf if is_floating(dtype) else np.iinfo(dtype).min


def largest(dtype: Any) -> Any:
    """Returns +inf, or the largest integer, of a dtype."""
    return np.inf if is_floating(dtype) else np.iinfo(dtype).max


def matrix_product(lhs: Array, rhs: Array) -> Array:
    """Multiplies wide arrays as ``numpy.matmul``, exactly for integers of at most 16 bits through BLAS."""
    if lhs.dtype == np.int64 and _fits_float(lhs) and _fits_float(rhs):
        # Products below 2^30 and fewer than 2^23 of them: every partial sum is an integer below 2^53.
        return np.matmul(lhs.astype(np.float64), rhs.astype(np.float64)).astype(np.int64)
    return np.matmul(lhs, rhs)


def _fits_float(array: Array) -> bool:
    return array.size == 0 or (int(array.min()) >= -(1 << 15) and int(array.max()) < 1 << 15)
