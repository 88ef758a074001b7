"""Resize: ``lk.resize`` where that says it, else one axis after the other as a weighted sum of look-ups.

Resizing is separable and linear: an element of an axis of extent m is a sum of few elements, its taps, of the axis of
extent n. A product with a matrix [m, n] would be shorter, and would make NaN of all that lies beside an infinite one.
Formulas: ONNX operator page of Resize; cubic coefficients by R. Keys, Cubic Convolution Interpolation, 1981.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import cast as as_type

import numpy as np

from lowerkit.capture.onnx.literals import literal
from lowerkit.capture.onnx.nodes.elementwise import where
from lowerkit.capture.onnx.nodes.node import Node, Results, Rule
from lowerkit.capture.onnx.nodes.reductions import summed
from lowerkit.capture.onnx.nodes.torch_ops import look_up, take, taken
from lowerkit.dialect import ResizeOp
from lowerkit.dialect.ops.resize import RESIZE_COORDINATES
from lowerkit.mlir import ir
from lowerkit.passes.raising.torch_dialect.torch_build import binary, scalar_tensor
from lowerkit.passes.raising.torch_dialect.torch_ir import RefusalError, defining_op, int_of, tensor_info, to_builtin
from lowerkit.program.dtypes import NUMPY_DTYPES
from lowerkit.program.weights import Array

MOST_ELEMENTS = 1 << 24
"""Extents of an axis before and after, multiplied, at most."""

MOST_TERMS = 4
"""Terms of a sum that is written out."""


@dataclass(frozen=True)
class _Change:
    """What becomes of one axis; ``window`` is the region of interest, as parts of the extent."""

    axis: int
    extent: int
    size: int
    scale: float
    window: tuple[float, float]


def resize(node: Node) -> Results:
    """Brings axes to other sizes; those that change have known extents."""
    value, info = node.operand(0), node.info(0)
    changes = _changes(node)
    if not info.is_float and node.attribute("mode") != "nearest":
        raise RefusalError(f"interpolated {info}")
    if _is_sampled(node, changes):
        by_axis = {change.axis: change for change in changes}
        made = ResizeOp.build(
            to_builtin(value),
            mode=node.attribute("mode"),
            coordinates=node.attribute("coordinate_transformation_mode"),
            nearest_rounding=node.attribute("nearest_mode"),
            size=[by_axis[axis].size if axis in by_axis else info.static_dim(axis) for axis in range(2, info.rank)],
            scales=[by_axis[axis].scale if axis in by_axis else 1.0 for axis in range(2, info.rank)],
        )
        return taken(made, info.dtype)
    for change in changes:
        if change.extent * change.size > MOST_ELEMENTS or min(change.extent, change.size) < 1:
            raise RefusalError(f"an axis of {change.extent} to {change.size}")
        places = _source_coordinates(node, change)
        value = _along(value, _interpolation(node, places, change.extent, change.scale), change.axis)
        outside = (places < 0) | (places > change.extent - 1)
        if node.attribute("coordinate_transformation_mode") == "tf_crop_and_resize" and outside.any():
            mask = literal(outside.reshape(-1, *[1] * (info.rank - 1 - change.axis)), "i1")
            value = where(mask, scalar_tensor(node.attribute("extrapolation_value"), info.dtype), value)
    return value


def _is_sampled(node: Node, changes: list[_Change]) -> bool:
    """Whether ``lk.resize`` says what the node does; of most coordinates only where the scales give whole extents."""
    info, coordinates = node.info(0), node.attribute("coordinate_transformation_mode")
    whole = all(change.scale * change.extent == change.size for change in changes)
    return (
        3 <= info.rank <= 5
        and None not in info.shape[2:]
        and all(change.axis >= 2 and change.size > 0 for change in changes)
        and coordinates in ("half_pixel", "asymmetric", *(RESIZE_COORDINATES if whole else ()))
        and not node.attribute("antialias")
        and not node.attribute("exclude_outside")
        and (node.attribute("mode") != "cubic" or node.attribute("cubic_coeff_a") == -0.75)
    )


def _changes(node: Node) -> list[_Change]:
    info, scales = node.info(0), node.constant(2)
    axes = [info.normalized_axis(axis) for axis in node.attribute("axes", range(info.rank))]
    crop, policy = node.attribute("coordinate_transformation_mode") == "tf_crop_and_resize", "stretch"
    roi = node.constant(1) if crop else None
    if crop and roi is None:
        raise RefusalError("the region of interest is not a constant")
    if scales is not None and scales.size:
        factors = [float(scale) for scale in scales.reshape(-1)]
        sizes = [info.shape[axis] if scale == 1 else int(np.floor(scale * info.static_dim(axis)))
                 for axis, scale in zip(axes, factors, strict=True)]  # fmt: skip
    else:
        sizes = [info.shape[axis] if _is_extent(item, node.operand(0), axis) else item
                 for axis, item in zip(axes, node.sizes(3).items, strict=True)]  # fmt: skip
        if not all(size is None or isinstance(size, int) for size in sizes):
            raise RefusalError("a size that is computed")
        sizes, policy = as_type("list[int | None]", sizes), node.attribute("keep_aspect_ratio_policy", "stretch")
        factors = [1.0 if size is None else size / info.static_dim(axis)
                   for axis, size in zip(axes, sizes, strict=True)]  # fmt: skip
    if policy != "stretch":
        scale = min(factors) if policy == "not_larger" else max(factors)
        factors, sizes = [scale] * len(axes), [int(np.floor(scale * info.static_dim(axis) + 0.5)) for axis in axes]
    found: list[_Change] = []
    for place, (axis, size, scale) in enumerate(zip(axes, sizes, factors, strict=True)):
        if size is not None and (crop or size != info.shape[axis] or scale != 1.0):
            window = (0.0, 1.0) if roi is None else (float(roi[place]), float(roi[len(axes) + place]))
            found.append(_Change(axis, info.static_dim(axis), size, scale, window))
    return found


def _is_extent(size: int | ir.Value, value: ir.Value, axis: int) -> bool:
    """Whether a size was read as that of an axis of ``value``."""
    read = None if isinstance(size, int) else defining_op(size, "torch.aten.size.int")
    return read is not None and read.operands[0] == value and int_of(read.operands[1]) == axis


def _source_coordinates(node: Node, change: _Change) -> Array:
    """Returns for each element of the result where it lies in the source, float64 [size]."""
    given, wanted, scale = change.extent, change.size, change.scale
    y = np.arange(wanted, dtype=np.float64)
    length = scale * given
    match node.attribute("coordinate_transformation_mode"):
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
            start, end = change.window
            if length == 1:
                return np.full(wanted, (start + end) * (given - 1) / 2)
            return start * (given - 1) + y * (end - start) * (given - 1) / (length - 1)
        case other:
            raise RefusalError(f"coordinate transformation {other}")


@dataclass(frozen=True)
class _Taps:
    """What each element of a resized axis is made of.

    Attributes:
        indices: int64 [wanted, count], places in the source, each within it.
        weights: float64 [wanted, count].
    """

    indices: Array
    weights: Array


def _interpolation(node: Node, places: Array, given: int, scale: float) -> _Taps:
    """Returns the taps of the node's interpolation at ``places`` [wanted] of an axis of extent ``given``."""
    mode = node.attribute("mode", "nearest")
    if mode == "nearest":
        nearest = _nearest(places, node.attribute("nearest_mode", "round_prefer_floor"))
        return _Taps(np.clip(nearest, 0, given - 1)[:, None], np.ones((len(places), 1)))
    # Antialiasing widens the kernel when the result is smaller.
    squeeze = min(scale, 1.0) if node.attribute("antialias", 0) else 1.0
    reach = {"linear": 1.0, "cubic": 2.0}.get(mode)
    if reach is None:
        raise RefusalError(f"mode {mode}")
    first = int(np.floor(-reach / squeeze)) + 1
    base = np.floor(places).astype(np.int64)
    taps = base[:, None] + np.arange(first, 2 - first)[None, :]
    distance = np.abs(taps - places[:, None]) * squeeze
    weights = np.clip(1 - distance, 0, 1) if mode == "linear" else _cubic(distance, node.attribute("cubic_coeff_a"))
    if node.attribute("exclude_outside", 0):
        weights = np.where((taps < 0) | (taps >= given), 0.0, weights)
        weights /= weights.sum(1, keepdims=True)
    elif squeeze < 1:
        weights /= weights.sum(1, keepdims=True)
    found = _Taps(np.clip(taps, 0, given - 1), weights)
    return _without_zeros(found) if squeeze < 1 or node.attribute("exclude_outside", 0) else found


def _without_zeros(taps: _Taps) -> _Taps:
    """Taps of weight 0 give way to a share of the first other one of their row: 0 times an infinite one is NaN."""
    used = taps.weights != 0
    first = used.argmax(1)
    rows = np.arange(len(first))
    indices = np.where(used, taps.indices, taps.indices[rows, first][:, None])
    shares = (taps.weights[rows, first] / (1 + (~used).sum(1)))[:, None]
    weights = np.where(used, taps.weights, shares)
    weights[rows, first] = shares[:, 0]
    return _Taps(indices, weights)


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


def _along(value: ir.Value, taps: _Taps, axis: int) -> ir.Value:
    """Replaces an axis by the sums of its taps; one tap of weight 1 is a look-up, exact in every element type."""
    count = taps.indices.shape[1]
    info = tensor_info(value)
    if count == 1:
        return take(value, axis, taps.indices[:, 0])

    def factors(weights: Array) -> ir.Value:
        behind = (1,) * (info.rank - 1 - axis)
        return literal(weights.reshape(*weights.shape, *behind).astype(NUMPY_DTYPES[info.dtype]), info.dtype)

    if count > MOST_TERMS:
        elements = look_up(value, [*[None] * axis, literal(taps.indices, "si64")])
        return summed(binary("mul", elements, factors(taps.weights)), [axis + 1], False)
    terms = [
        binary("mul", take(value, axis, index), factors(weight))
        for index, weight in zip(taps.indices.T, taps.weights.T, strict=True)
    ]
    return functools.reduce(functools.partial(binary, "add"), terms)


RULES: dict[str, Rule] = {"Resize": resize}
