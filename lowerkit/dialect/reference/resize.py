"""Resampling: source positions, taps and weights along one dimension at a time.

Positions are computed in float32 for every type but float64, step by step as the lowering and PyTorch do: the floor
of a position decides which element is read, and a weight of 0 times an infinite element is NaN, so the rounding of the
position is part of the meaning. That of a half-pixel position is rounded once, as a product and a sum in one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lowerkit.dialect.reference.numeric import Array, widen

CUBIC_COEFFICIENT = -0.75


def resize(
    source: Array, *, mode: str, coordinates: str, nearest_rounding: str, size: Sequence[int], scales: Sequence[float]
) -> Array:
    """Resamples the spatial dimensions of ``[N, C, spatial...]``."""
    real = np.float64 if source.dtype == np.float64 else np.float32
    result = source if mode == "nearest" else widen(source)
    for dimension, out in enumerate(size):
        axis, length = dimension + 2, source.shape[dimension + 2]
        scale = scales[dimension] if scales else None
        position = positions(length, out, coordinates, scale, real)
        if mode == "nearest":
            index = np.clip(round_position(position, nearest_rounding), 0, length - 1).astype(np.int64)
            result = np.take(result, index, axis=axis)
            continue
        taps = linear_taps(position, length, out) if mode == "linear" else cubic_taps(position)
        shape = [-1 if other == axis else 1 for other in range(source.ndim)]
        result = sum(
            np.take(result, np.clip(index, 0, length - 1), axis=axis) * weight.astype(np.float64).reshape(shape)
            for index, weight in taps
        )
    return np.asarray(result)


def source_step(length: int, out: int, coordinates: str, scale: float | None) -> float:
    """Returns the distance between source positions of neighbouring outputs."""
    if coordinates == "align_corners":
        return (length - 1) / (out - 1) if out > 1 else 0.0
    return length / out if scale is None else 1.0 / scale


def positions(length: int, out: int, coordinates: str, scale: float | None, real: Any) -> Array:
    """Returns the source position of each of ``out`` outputs."""
    index = np.arange(out).astype(real)
    step = real(source_step(length, out, coordinates, scale))
    if coordinates in ("align_corners", "asymmetric"):
        return index * step
    if coordinates == "pytorch_half_pixel" and out == 1:
        return np.zeros(1, real)
    return ((index + real(0.5)).astype(np.longdouble) * np.longdouble(step) - 0.5).astype(real)


def round_position(position: Array, rounding: str) -> Array:
    """Rounds positions to indices (still floats)."""
    half = position.dtype.type(0.5)
    return {
        "floor": np.floor(position),
        "ceil": np.ceil(position),
        "round_prefer_floor": np.ceil(position - half),
        "round_prefer_ceil": np.floor(position + half),
    }[rounding]


def linear_taps(position: Array, length: int, out: int) -> list[tuple[Array, Array]]:
    """Returns (index, weight) of the two neighbours, which are one where the size stays, and beyond the last element.

    The weights then stay apart, as in PyTorch: 0 times an infinite element would be NaN.
    """
    inside = np.maximum(position, 0)
    low = np.minimum(np.floor(inside), length - 1)
    fraction = np.minimum(inside - low, 1)
    second = low if length == out else low + 1
    return [(low.astype(np.int64), 1 - fraction), (second.astype(np.int64), fraction)]


def cubic_taps(position: Array) -> list[tuple[Array, Array]]:
    """Returns (index, weight) of the four neighbours by the Keys kernel."""
    low = np.floor(position)
    fraction = position - low
    weights = [
        _outer(fraction + 1),
        _inner(fraction),
        _inner(1 - fraction),
        _outer(2 - fraction),
    ]
    return [(low.astype(np.int64) + offset, weight) for offset, weight in zip((-1, 0, 1, 2), weights, strict=True)]


def _inner(distance: Array) -> Array:
    a = CUBIC_COEFFICIENT
    return ((a + 2) * distance - (a + 3)) * distance * distance + 1


def _outer(distance: Array) -> Array:
    a = CUBIC_COEFFICIENT
    return ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
