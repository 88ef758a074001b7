"""Reductions, running values and sorting, with NaN as the extreme."""

from __future__ import annotations

from typing import Any

import numpy as np

from lowerkit.dialect.reference.numeric import Array, largest, smallest, widen


def reduce(source: Array, kind: str, axes: tuple[int, ...], keep_dims: bool) -> Array:
    """Combines ``source`` along ``axes``: in float64 for floats, in int64 for integers."""
    wide = source if source.dtype == np.bool_ else widen(source)
    if kind in ("argmax", "argmin"):
        function = np.argmax if kind == "argmax" else np.argmin
        return function(wide, axis=axes[0], keepdims=keep_dims)
    functions: dict[str, Any] = {
        "sum": np.sum,
        "prod": np.prod,
        "max": np.max,
        "min": np.min,
        "mean": np.mean,
        "any": np.any,
        "all": np.all,
    }
    return np.asarray(functions[kind](wide, axis=axes, keepdims=keep_dims))


def cumulative(source: Array, kind: str, axis: int, exclusive: bool, reverse: bool) -> Array:
    """The running value along ``axis``: in float64 for floats, in int64 for integers."""
    function = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[kind]
    start = {"sum": 0, "prod": 1, "max": smallest(source.dtype), "min": largest(source.dtype)}[kind]
    wide = np.moveaxis(widen(source), axis, -1)
    if reverse:
        wide = wide[..., ::-1]
    if exclusive:
        first = np.full((*wide.shape[:-1], 1), start, wide.dtype)
        wide = np.concatenate([first, wide[..., :-1]], axis=-1)[..., : wide.shape[-1]]
    result = function.accumulate(wide, axis=-1)
    return np.moveaxis(result[..., ::-1] if reverse else result, -1, axis)


def sort(source: Array, axis: int, descending: bool) -> tuple[Array, Array]:
    """Returns (values, indices) in stable order; NaN is the largest."""
    wide = source.astype(np.int8) if source.dtype == np.bool_ else widen(source)
    if descending:
        # A stable sort of the flipped array, flipped back, keeps equal elements in their order.
        flipped = np.flip(np.argsort(np.flip(wide, axis), axis=axis, kind="stable"), axis)
        indices = wide.shape[axis] - 1 - flipped
    else:
        indices = np.argsort(wide, axis=axis, kind="stable")
    return np.take_along_axis(source, indices, axis), indices.astype(np.int64)


def topk(source: Array, k: int, axis: int, largest_first: bool) -> tuple[Array, Array]:
    """Returns (values, indices) of the first ``k`` in order."""
    values, indices = sort(source, axis, largest_first)
    keep = (*(slice(None),) * axis, slice(0, k))
    return values[keep], indices[keep]


def gather(data: Array, indices: Array, axis: int) -> Array:
    """Takes slices of ``data``; raises IndexError for an index outside of the axis."""
    return np.take(data, indices.astype(np.int64), axis=axis)


def scatter(data: Array, indices: Array, updates: Array, axis: int, kind: str) -> Array:
    """Combines ``updates`` into a copy of ``data``, slice by slice; raises IndexError for an index outside the axis."""
    result = np.moveaxis(data, axis, 0).copy()
    positions = indices.astype(np.int64).reshape(-1)
    slices = updates.reshape(*data.shape[:axis], positions.size, *data.shape[axis + 1 :])
    combine: dict[str, Any] = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}
    for position, item in zip(positions, np.moveaxis(slices, axis, 0), strict=True):
        old = widen(result[position])
        new = item if kind == "set" else combine[kind](old, widen(item))
        result[position] = new.astype(result.dtype)
    return np.moveaxis(result, 0, axis)
