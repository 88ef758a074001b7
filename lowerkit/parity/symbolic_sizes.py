"""The sizes at which a model with symbolic dims is compared: those of its example, its bounds, odd ones and primes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from lowerkit.runtimes.expressions import ExpressionError, evaluate

if TYPE_CHECKING:
    from lowerkit.runtimes.manifest import Dim, Signature

Array = np.ndarray[Any, Any]
Sizes = Mapping[str, int]

_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97, 101)
_MOST_ELEMENTS = 1 << 16
"""Inputs of a further size have at most so many elements, or twice those of the example."""


def sizes_of(signature: Signature, inputs: Sequence[Array]) -> dict[str, int]:
    """Returns the value of each dim that ``inputs`` tell: those that are an extent by themselves."""
    return {
        extent: array.shape[axis]
        for spec, array in zip(signature.inputs, inputs, strict=False)
        for axis, extent in enumerate(spec.shape)
        if isinstance(extent, str)
    }


def further_sizes(signature: Signature, inputs: Sequence[Array]) -> list[dict[str, int]]:
    """Returns the lower bounds, the upper bounds as far as they are affordable, an odd size and a prime one.

    Dims get different values wherever their ranges allow it, so that one that stands for another shows. Sizes that
    the example has are left out, and each is there once.
    """
    known = sizes_of(signature, inputs)
    dims = [dim for dim in signature.dims if dim.name in known]
    limit = max(_MOST_ELEMENTS, 2 * sum(array.size for array in inputs))
    chosen = [
        {dim.name: dim.minimum for dim in dims},
        _affordable(signature, dims, known, limit),
        {dim.name: _inside(dim, 2 * (known[dim.name] // 2) + 3 + 2 * place) for place, dim in enumerate(dims)},
        {dim.name: _prime(dim, known[dim.name], place) for place, dim in enumerate(dims)},
    ]
    found: list[dict[str, int]] = []
    for sizes in chosen:
        if sizes != known and sizes not in found and _elements(signature, sizes) <= limit:
            found.append(sizes)
    return found


def _inside(dim: Dim, value: int) -> int:
    return max(dim.minimum, value if dim.maximum is None else min(dim.maximum, value))


def _prime(dim: Dim, example: int, place: int) -> int:
    """Returns a prime inside of the range that is not the example's size; small ones, a different one for each dim."""
    fitting = [prime for prime in _PRIMES if dim.minimum <= prime and (dim.maximum is None or prime <= dim.maximum)]
    fitting = [prime for prime in fitting if prime != example and prime > 2] or fitting
    return fitting[min(1 + place, len(fitting) - 1)] if fitting else dim.minimum


def _affordable(signature: Signature, dims: Sequence[Dim], known: Sizes, limit: int) -> dict[str, int]:
    """Returns the upper bounds, all of them divided by two until inputs of these sizes are small enough."""
    sizes = {dim.name: max(8 * known[dim.name], 64) if dim.maximum is None else dim.maximum for dim in dims}
    while _elements(signature, sizes) > limit:
        smaller = {dim.name: max(dim.minimum, sizes[dim.name] // 2) for dim in dims}
        if smaller == sizes:
            break
        sizes = smaller
    return sizes


def _elements(signature: Signature, sizes: Sizes) -> float:
    total = 0.0
    for spec in signature.inputs:
        shape = _shape(spec.shape, sizes)
        total += float("inf") if shape is None else float(np.prod([float(extent) for extent in shape]))
    return total


def _shape(shape: Sequence[Any], sizes: Sizes) -> tuple[int, ...] | None:
    try:
        return tuple(evaluate(extent, sizes) for extent in shape)
    except ExpressionError:
        return None


def inputs_at(signature: Signature, sizes: Sizes, example: Sequence[Array], seed: int = 0) -> list[Array]:
    """Returns inputs of the given sizes in the likeness of the example: its values, repeated or cut along each axis.

    Integers stay what they are, so they are indices, lengths and tokens as good as the example's. Floats are scaled
    at random, each by itself, so that no two are equal; whole numbers, infinities and NaN stay.
    """
    generator = np.random.default_rng(seed)
    found: list[Array] = []
    for spec, array in zip(signature.inputs, example, strict=True):
        shape = _shape(spec.shape, sizes)
        assert shape is not None, "sizes that give no shape were not chosen"
        found.append(_resized(np.asarray(array), shape, generator))
    return found


def _resized(array: Array, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
    if array.size == 0:
        return generator.standard_normal(shape).astype(array.dtype)
    for axis, extent in enumerate(shape):
        array = np.take(array, np.arange(extent) % array.shape[axis], axis=axis)
    if array.dtype.kind != "f" and array.dtype != ml_dtypes.bfloat16:
        return np.ascontiguousarray(array)
    wide = array.astype(np.float64)
    with np.errstate(invalid="ignore"):
        fixed = ~np.isfinite(wide) | (wide == np.round(wide))
        scaled = wide * (1 + 0.2 * generator.random(shape))
    return np.where(fixed, wide, scaled).astype(array.dtype)


def text_of(sizes: Sizes) -> str:
    """Returns sizes for people: ``batch=3, length=17``."""
    return ", ".join(f"{name}={value}" for name, value in sizes.items())
