"""Resize in every mode, one axis after the other, as a weighted sum of look-ups.

Resizing is separable and linear: an element of an axis of extent m is a sum of few elements, its taps, of the axis of
extent n. A product with a matrix [m, n] would be shorter, and would make NaN of all that lies beside an infinite one.
Formulas: ONNX operator page of Resize; cubic coefficients by R. Keys, Cubic Convolution Interpolation, 1981.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lowerkit.capture.onnx.rewrites.rewriter import Array, NoRewriteError, Rewriter, is_float

MOST_ELEMENTS = 1 << 24
"""Extents of an axis before and after, multiplied, at most."""

MOST_TERMS = 4
"""Terms of a sum that is written out."""


def resize_by_fraction(b: Rewriter) -> None:
    """Writes a Resize whose scales give no whole extents: coordinates then follow the scales and not the extents."""
    shape = b.shape(b.input(0))
    axes = b.attribute("axes", list(range(len(shape))))
    scales = b.value(b.input(2)) if b.input(2) else None
    if scales is None or all(float(scale) * shape[axis] % 1 == 0 for scale, axis in zip(scales, axes, strict=False)):
        raise NoRewriteError("whole extents")
    resize(b)


def resize(b: Rewriter) -> None:
    """Writes a Resize of static shape."""
    shape = b.shape(b.input(0))
    axes = [axis % len(shape) for axis in b.attribute("axes", list(range(len(shape))))]
    scales, sizes = _scales_and_sizes(b, shape, axes)
    crop = b.attribute("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    roi = b.value(b.input(1)) if b.input(1) else None
    value = b.input(0)
    for place, axis in enumerate(axes):
        if sizes[place] == shape[axis] and scales[place] == 1.0 and not crop:
            continue
        if not is_float(b.dtype(b.input(0))) and b.attribute("mode", "nearest") != "nearest":
            raise NoRewriteError("interpolated integers")
        if shape[axis] * sizes[place] > MOST_ELEMENTS or min(shape[axis], sizes[place]) < 1:
            raise NoRewriteError(f"an axis of {shape[axis]} to {sizes[place]}")
        window = (0.0, 1.0)
        if crop:
            if roi is None:
                raise NoRewriteError("the region of interest is not a constant")
            window = (float(roi[place]), float(roi[len(axes) + place]))
        places = source_coordinates(b, shape[axis], sizes[place], scales[place], window)
        taps = interpolation(b, places, shape[axis], scales[place])
        value = _along(b, value, taps, axis, len(shape))
        outside = (places < 0) | (places > shape[axis] - 1)
        if crop and outside.any():
            masked = outside.reshape([-1 if index == axis else 1 for index in range(len(shape))])
            extrapolated = b.scalar(b.attribute("extrapolation_value", 0.0), b.input(0))
            value = b.op("Where", b.constant(masked, np.bool_), extrapolated, value)
    b.give(value)


def _scales_and_sizes(b: Rewriter, shape: tuple[int, ...], axes: list[int]) -> tuple[list[float], list[int]]:
    extents = [shape[axis] for axis in axes]
    if b.input(2) and b.value(b.input(2)) is not None and np.asarray(b.value(b.input(2))).size:
        scales = [float(scale) for scale in np.asarray(b.value(b.input(2))).reshape(-1)]
        return scales, [int(np.floor(scale * extent)) for scale, extent in zip(scales, extents, strict=True)]
    sizes = b.integers(b.input(3))
    scales = [size / extent for size, extent in zip(sizes, extents, strict=True)]
    policy = b.attribute("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        scale = min(scales) if policy == "not_larger" else max(scales)
        scales = [scale] * len(scales)
        sizes = [int(np.floor(scale * extent + 0.5)) for extent in extents]
    return scales, sizes


def source_coordinates(b: Rewriter, given: int, wanted: int, scale: float, window: tuple[float, float]) -> Array:
    """Returns for each element of the result where it lies in the source, float64 [wanted]."""
    y = np.arange(wanted, dtype=np.float64)
    length = scale * given
    match b.attribute("coordinate_transformation_mode", "half_pixel"):
        case "half_pixel":
            return (y + 0.5) / scale - 0.5
        case "half_pixel_symmetric":
            return given / 2 * (1 - wanted / length) + (y + 0.5) / scale - 0.5
        case "pytorch_half_pixel":
            return (y + 0.5) / scale - 0.5 if length != 1 else np.full(wanted, -0.5)
        case "align_corners":
            return y * (given - 1) / (length - 1) if length != 1 else np.zeros(wanted)
        case "asymmetric":
            return y / scale
        case "tf_crop_and_resize":
            start, end = window
            if length == 1:
                return np.full(wanted, (start + end) * (given - 1) / 2)
            return start * (given - 1) + y * (end - start) * (given - 1) / (length - 1)
        case other:
            raise NoRewriteError(f"coordinate transformation {other}")


@dataclass(frozen=True)
class Taps:
    """What each element of a resized axis is made of.

    Attributes:
        indices: int64 [wanted, count], places in the source, each within it.
        weights: float64 [wanted, count].
    """

    indices: Array
    weights: Array


def interpolation(b: Rewriter, places: Array, given: int, scale: float) -> Taps:
    """Returns the taps of the node's interpolation at ``places`` [wanted] of an axis of extent ``given``."""
    mode = b.attribute("mode", "nearest")
    if mode == "nearest":
        nearest = _nearest(places, b.attribute("nearest_mode", "round_prefer_floor"))
        return Taps(np.clip(nearest, 0, given - 1)[:, None], np.ones((len(places), 1)))
    # Antialiasing widens the kernel when the result is smaller.
    squeeze = min(scale, 1.0) if b.attribute("antialias", 0) else 1.0
    reach = {"linear": 1.0, "cubic": 2.0}.get(mode)
    if reach is None:
        raise NoRewriteError(f"mode {mode}")
    first = int(np.floor(-reach / squeeze)) + 1
    base = np.floor(places).astype(np.int64)
    taps = base[:, None] + np.arange(first, 2 - first)[None, :]
    distance = np.abs(taps - places[:, None]) * squeeze
    weights = np.clip(1 - distance, 0, 1) if mode == "linear" else _cubic(distance, b.attribute("cubic_coeff_a", -0.75))
    if b.attribute("exclude_outside", 0):
        weights = np.where((taps < 0) | (taps >= given), 0.0, weights)
        weights /= weights.sum(1, keepdims=True)
    elif squeeze < 1:
        weights /= weights.sum(1, keepdims=True)
    found = Taps(np.clip(taps, 0, given - 1), weights)
    return _without_zeros(found) if squeeze < 1 or b.attribute("exclude_outside", 0) else found


def _without_zeros(taps: Taps) -> Taps:
    """Taps of weight 0 give way to a share of the first other one of their row: 0 times an infinite one is NaN."""
    used = taps.weights != 0
    first = used.argmax(1)
    rows = np.arange(len(first))
    indices = np.where(used, taps.indices, taps.indices[rows, first][:, None])
    shares = (taps.weights[rows, first] / (1 + (~used).sum(1)))[:, None]
    weights = np.where(used, taps.weights, shares)
    weights[rows, first] = shares[:, 0]
    return Taps(indices, weights)


def _nearest(places: Array, mode: str) -> Array:
    match mode:
        case "round_prefer_floor":
            return np.ceil(places - 0.5).astype(np.int64)
        case "round_prefer_ceil":
            return np.floor(places + 0.5).astype(np.int64)
        case "floor":
            return np.floor(places).astype(np.int64)
        case _:
            return np.ceil(places).astype(np.int64)


def _cubic(distance: Array, a: float) -> Array:
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))


def _along(b: Rewriter, value: str, taps: Taps, axis: int, rank: int) -> str:
    """Replaces an axis by the sums of its taps; one tap of weight 1 is a look-up, exact in every element type."""
    wanted, count = taps.indices.shape
    if count == 1:
        return b.gather(value, taps.indices[:, 0], axis)
    dtype = b.numpy_dtype(b.input(0))
    if count > MOST_TERMS:
        weights = b.constant(taps.weights.reshape(wanted, count, *(1,) * (rank - 1 - axis)), dtype)
        products = b.op("Mul", b.gather(value, taps.indices, axis), weights)
        return b.op("ReduceSum", products, b.constant([axis + 1]), keepdims=0)
    total = ""
    for index, weight in zip(taps.indices.T, taps.weights.T, strict=True):
        factors = b.constant(weight.reshape(wanted, *(1,) * (rank - 1 - axis)), dtype)
        term = b.op("Mul", b.gather(value, index, axis), factors)
        total = b.op("Add", total, term) if total else term
    return total
