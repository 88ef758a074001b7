"""Resize in every mode, as one product with a constant matrix for each axis.

Resizing is separable and linear: an axis of extent n becomes one of extent m by a matrix [m, n] of few entries a row.
Formulas: ONNX operator page of Resize; cubic coefficients by R. Keys, Cubic Convolution Interpolation, 1981.
"""

from __future__ import annotations

import numpy as np

from lowerkit.capture.onnx_rewrites.rewriter import Array, NoRewriteError, Rewriter

MOST_ELEMENTS = 1 << 24
"""Elements of a matrix at most."""


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
        if shape[axis] * sizes[place] > MOST_ELEMENTS or min(shape[axis], sizes[place]) < 1:
            raise NoRewriteError(f"an axis of {shape[axis]} to {sizes[place]}")
        window = (0.0, 1.0)
        if crop:
            if roi is None:
                raise NoRewriteError("the region of interest is not a constant")
            window = (float(roi[place]), float(roi[len(axes) + place]))
        places = source_coordinates(b, shape[axis], sizes[place], scales[place], window)
        matrix = coefficients(b, places, shape[axis], scales[place])
        value = _along(b, value, matrix, axis, len(shape))
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


def coefficients(b: Rewriter, places: Array, given: int, scale: float) -> Array:
    """Returns the matrix, float64 [wanted, given], of the node's interpolation."""
    mode = b.attribute("mode", "nearest")
    matrix = np.zeros((len(places), given))
    rows = np.arange(len(places))
    if mode == "nearest":
        nearest = _nearest(places, b.attribute("nearest_mode", "round_prefer_floor"))
        matrix[rows, np.clip(nearest, 0, given - 1)] = 1.0
        return matrix
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
    np.add.at(matrix, (rows[:, None], np.clip(taps, 0, given - 1)), weights)
    return matrix


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


def _along(b: Rewriter, value: str, matrix: Array, axis: int, rank: int) -> str:
    """Multiplies an axis by the matrix; a matrix that picks elements is a Gather, exact in every element type."""
    if ((matrix == 0) | (matrix == 1)).all() and (matrix.sum(1) == 1).all():
        return b.gather(value, matrix.argmax(1), axis)
    order = [*[index for index in range(rank) if index != axis], axis]
    moved = b.op("MatMul", b.transpose(value, order), b.constant(matrix.T, b.numpy_dtype(b.input(0))))
    return b.transpose(moved, [order.index(index) for index in range(rank)])
