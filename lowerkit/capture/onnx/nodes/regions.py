"""RoiAlign: regions of images, each read at as many places in a bin as the node says."""

from __future__ import annotations

import functools
import itertools

import numpy as np

from lowerkit.capture.onnx.literals import literal
from lowerkit.capture.onnx.nodes.elementwise import broadcast_binary, clamped, where
from lowerkit.capture.onnx.nodes.node import Node, Results, Rule
from lowerkit.capture.onnx.nodes.torch_ops import look_up, reduce
from lowerkit.mlir import ir
from lowerkit.passes.raising.torch_dialect.torch_build import (
    binary,
    binary_scalar,
    cast,
    permute,
    scalar_tensor,
    size,
    slice_axis,
    unary,
    unsqueeze,
    view,
)
from lowerkit.passes.raising.torch_dialect.torch_ir import RefusalError, build, constant_bool, int_list, tensor_info
from lowerkit.program.dtypes import NUMPY_DTYPES

Tap = tuple[ir.Value, ir.Value]
"""Where one of the neighbours of each place is along an axis, si64 [regions, places], and its weight."""


def _taps(node: Node, axis: int, bins: int, ratio: int) -> list[Tap]:
    """Returns both neighbours of each place along the height (0) or width (1); what lies outside weighs nothing."""
    boxes, extent = node.operand(1), node.info(0).static_dim(2 + axis)
    dtype = tensor_info(boxes).dtype
    whole = node.attribute("coordinate_transformation_mode") == "output_half_pixel"
    scaled = binary_scalar("mul", boxes, node.attribute("spatial_scale"))
    moved = scaled if whole else binary_scalar("sub", scaled, 0.5)
    start, end = (slice_axis(moved, 1, column, column + 1) for column in (1 - axis, 3 - axis))
    length = binary("sub", end, start)
    length = clamped(length, 1.0, None) if whole else length
    fractions = (np.arange(bins)[:, None] + (np.arange(ratio) + 0.5) / ratio).reshape(1, -1)
    steps = literal(fractions.astype(NUMPY_DTYPES[dtype]), dtype)
    places = binary("add", binary("mul", binary_scalar("div", length, float(bins)), steps), start)
    inside = broadcast_binary(
        "logical_and", binary_scalar("ge", places, -1.0, "i1"), binary_scalar("le", places, float(extent), "i1")
    )
    places = clamped(where(inside, places, scalar_tensor(0.0, dtype)), 0.0, extent - 1.0)
    low = unary("floor", places)
    high = clamped(binary_scalar("add", low, 1.0), None, extent - 1.0)
    share, seen = binary("sub", places, low), cast(inside, dtype)
    weights = binary("mul", binary_scalar("rsub", share, 1.0), seen), binary("mul", share, seen)
    return [(cast(place, "si64"), weight) for place, weight in zip((low, high), weights, strict=True)]


def roi_align(node: Node) -> Results:
    """The mean or the maximum of what each bin reads; the maximum is that of the weighted neighbours."""
    ratio, maximum = node.attribute("sampling_ratio"), node.attribute("mode") == "max"
    if ratio < 1:
        raise RefusalError("the number of places depends on data")
    bins = [node.attribute("output_height"), node.attribute("output_width")]
    image, rows = permute(node.operand(0), [0, 2, 3, 1]), node.operand(2)
    rows = unsqueeze(unsqueeze(cast(rows, "si64"), 1), 2)
    terms: list[ir.Value] = []
    for (y, of_y), (x, of_x) in itertools.product(*(_taps(node, axis, bins[axis], ratio) for axis in (0, 1))):
        elements = look_up(image, [rows, unsqueeze(y, 2), unsqueeze(x, 1)])
        weights = binary("mul", unsqueeze(of_y, 2), unsqueeze(of_x, 1))
        terms.append(binary("mul", elements, unsqueeze(weights, 3)))
    total = functools.reduce(functools.partial(binary, "maximum" if maximum else "add"), terms)
    shape = [size(node.operand(1), 0), bins[0], ratio, bins[1], ratio, size(node.operand(0), 1)]
    total = view(total, shape)
    if maximum:
        info = tensor_info(total)
        kept = info.with_shape([extent for axis, extent in enumerate(info.shape) if axis not in (2, 4)])
        found = build("torch.aten.amax", [total, int_list([2, 4]), constant_bool(False)], [kept.torch_type()])[0]
    else:
        found = reduce("mean", total, [2, 4], keep=False)
    return permute(found, [0, 3, 1, 2])


RULES: dict[str, Rule] = {"RoiAlign": roi_align}
