"""Resampling as one linalg.generic over the result: positions, taps and weights are computed for each element."""

from __future__ import annotations

from collections.abc import Sequence

from lowerkit.dialect import linalg_builder as build
from lowerkit.dialect import scalar_builder as scalar
from lowerkit.dialect.reference.resize import CUBIC_COEFFICIENT, source_step
from lowerkit.dialect.types import compute_type
from lowerkit.dialect.window import spatial_axes
from lowerkit.mlir import ir

Tap = tuple[ir.Value, ir.Value]
"""An index into one dimension and its weight."""


def resize(
    source: ir.Value,
    *,
    mode: str,
    coordinates: str,
    nearest_rounding: str,
    channels_last: bool,
    size: Sequence[int],
    scales: Sequence[float],
) -> ir.Value:
    """Resamples the spatial dimensions of ``NC...`` or ``N...C``."""
    element = source.type.element_type
    real = ir.F64Type.get() if isinstance(element, ir.F64Type) else ir.F32Type.get()
    wide = element if mode == "nearest" else compute_type(element)
    rank = source.type.rank
    axes = spatial_axes(rank, channels_last)
    lengths = [build.size_of(source, axis) for axis in axes]
    steps = [
        _step(length, out, coordinates, scales[d] if scales else None, real)
        for d, (length, out) in enumerate(zip(lengths, size, strict=True))
    ]
    sizes = build.sizes_of(source)
    for axis, out in zip(axes, size, strict=True):
        sizes[axis] = out

    def sample() -> ir.Value:
        place = [build.loop_index(axis) for axis in range(rank)]
        taps = [
            _taps(mode, nearest_rounding, _position(place[axis], steps[d], coordinates, size[d]), lengths[d], size[d])
            for d, axis in enumerate(axes)
        ]
        return scalar.convert(_weighted(source, place, axes, taps, wide), element)

    return build.map_elements([], sizes, element, sample)


def _step(length: build.Size, out: int, coordinates: str, scale: float | None, real: ir.Type) -> ir.Value:
    if isinstance(length, int):
        return scalar.constant(source_step(length, out, coordinates, scale), real)
    if coordinates == "align_corners":
        if out == 1:
            return scalar.constant(0, real)
        span = scalar.convert(build.add_sizes(length, -1), real)
        return scalar.divide(span, scalar.constant(out - 1, real))
    if scale is not None:
        return scalar.constant(1.0 / scale, real)
    return scalar.divide(scalar.convert(length, real), scalar.constant(out, real))


def _position(index: ir.Value, step: ir.Value, coordinates: str, out: int) -> ir.Value:
    real = step.type
    number = scalar.convert(index, real)
    if coordinates in ("align_corners", "asymmetric"):
        return scalar.multiply(number, step)
    if coordinates == "pytorch_half_pixel" and out == 1:
        return scalar.constant(0, real)
    half = scalar.constant(0.5, real)
    return scalar.multiply_add(scalar.add(number, half), step, scalar.constant(-0.5, real))


def _taps(mode: str, rounding: str, position: ir.Value, length: build.Size, out: int) -> list[Tap]:
    real, index = position.type, ir.IndexType.get()
    one = scalar.constant(1, real)
    if mode == "nearest":
        half = scalar.constant(0.5, real)
        rounded = {
            "floor": lambda: scalar.floor(position),
            "ceil": lambda: scalar.ceil(position),
            "round_prefer_floor": lambda: scalar.ceil(scalar.subtract(position, half)),
            "round_prefer_ceil": lambda: scalar.floor(scalar.add(position, half)),
        }[rounding]()
        return [(_clamp(scalar.convert(rounded, index), length), one)]
    if mode == "linear":
        zero = scalar.constant(0, real)
        last = scalar.convert(scalar.subtract(build.as_index(length), build.constant_index(1)), real)
        inside = scalar.maximum(position, zero)
        low = scalar.minimum(scalar.floor(inside), last)
        fraction = scalar.minimum(scalar.subtract(inside, low), one)
        first = scalar.convert(low, index)
        if length == out:  # as in PyTorch, no neighbour is read: 0 times an infinite one would be NaN
            return [(first, scalar.subtract(one, fraction)), (first, fraction)]
        second = scalar.add(first, build.constant_index(1))
        return [(first, scalar.subtract(one, fraction)), (_clamp(second, length), fraction)]
    low = scalar.floor(position)
    fraction = scalar.subtract(position, low)
    base = scalar.convert(low, index)
    rest = scalar.subtract(one, fraction)
    weights = [
        _outer(scalar.add(fraction, one)),
        _inner(fraction),
        _inner(rest),
        _outer(scalar.add(rest, one)),
    ]
    offsets = [scalar.add(base, build.constant_index(offset)) for offset in (-1, 0, 1, 2)]
    return [(_clamp(offset, length), weight) for offset, weight in zip(offsets, weights, strict=True)]


def _clamp(index: ir.Value, length: build.Size) -> ir.Value:
    last = scalar.subtract(build.as_index(length), build.constant_index(1))
    return scalar.maximum(scalar.minimum(index, last), build.constant_index(0))


def _polynomial(distance: ir.Value, coefficients: Sequence[float]) -> ir.Value:
    """Horner's rule, highest power first."""
    result = scalar.constant(coefficients[0], distance.type)
    for coefficient in coefficients[1:]:
        result = scalar.add(scalar.multiply(result, distance), scalar.constant(coefficient, distance.type))
    return result


def _inner(distance: ir.Value) -> ir.Value:
    a = CUBIC_COEFFICIENT
    return _polynomial(distance, [a + 2, -(a + 3), 0.0, 1.0])


def _outer(distance: ir.Value) -> ir.Value:
    a = CUBIC_COEFFICIENT
    return _polynomial(distance, [a, -5 * a, 8 * a, -4 * a])


def _weighted(
    source: ir.Value, place: list[ir.Value], axes: Sequence[int], taps: Sequence[Sequence[Tap]], wide: ir.Type
) -> ir.Value:
    """The weighted sum over all combinations of taps, one dimension after the other."""
    if not axes:
        return scalar.convert(build.extract(source, place), wide)
    total: ir.Value | None = None
    for index, weight in taps[0]:
        moved = [index if axis == axes[0] else other for axis, other in enumerate(place)]
        item = _weighted(source, moved, axes[1:], taps[1:], wide)
        if len(taps[0]) > 1:
            item = scalar.multiply(item, scalar.convert(weight, wide))
        total = item if total is None else scalar.add(total, item)
    assert total is not None
    return total
