"""Nodes that slide a window over their operand: convolutions and pools."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lowerkit.capture.onnx.literals import literal
from lowerkit.capture.onnx.nodes.node import Node, Results, Rule
from lowerkit.capture.onnx.nodes.torch_ops import look_up, pad, reduce, taken
from lowerkit.dialect import AvgPoolOp, ConvTransposeOp, MaxPoolOp
from lowerkit.errors import UnsupportedError
from lowerkit.mlir import ir
from lowerkit.passes.raising.torch_dialect.torch_build import (
    bias_along,
    binary,
    binary_scalar,
    cast,
    product,
    sizes_of,
    unary,
    view,
)
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    RefusalError,
    TensorInfo,
    build,
    constant_bool,
    constant_int,
    constant_none,
    int_list,
    tensor_info,
    to_builtin,
)


@dataclass(frozen=True)
class Windows:
    """The window of a node, one value for each spatial dim; ``extra`` is what ceil mode adds to ``high``."""

    kernel: list[int]
    strides: list[int]
    dilations: list[int]
    low: list[int]
    high: list[int]
    extra: list[int]

    @property
    def padding(self) -> list[int]:
        """Low and high for each spatial dim, as lk ops state it."""
        return [
            side
            for low, high, extra in zip(self.low, self.high, self.extra, strict=True)
            for side in (low, high + extra)
        ]


def windows(node: Node, kernel: Sequence[int] | None = None) -> Windows:
    """Reads the window of a node; padding that follows from extents wants them known."""
    info = node.info(0)
    if info.rank < 3:
        raise RefusalError(f"{info} has no spatial dims")
    count = info.rank - 2
    kernel = list(kernel or node.attribute("kernel_shape", []))
    strides, dilations = (list(node.attribute(name, None) or [1] * count) for name in ("strides", "dilations"))
    pads = list(node.attribute("pads", None) or [0] * 2 * count)
    low, high, extra = pads[:count], pads[count:], [0] * count
    spans = [(size - 1) * dilation + 1 for size, dilation in zip(kernel, dilations, strict=True)]
    automatic = node.attribute("auto_pad", "NOTSET")
    if automatic == "VALID":
        low, high = [0] * count, [0] * count
    for axis in range(count) if automatic.startswith("SAME") else ():
        moved = strides[axis] > 1
        missing = spans[axis] - 1
        if moved:
            extent = _extent(node, axis, "padding")
            missing = max((-(-extent // strides[axis]) - 1) * strides[axis] + spans[axis] - extent, 0)
        less = missing // 2
        low[axis] = less if automatic == "SAME_UPPER" else missing - less
        high[axis] = missing - low[axis]
    if node.attribute("ceil_mode", 0) and not automatic.startswith("SAME"):
        for axis in range(count):
            extent = _extent(node, axis, "windows")
            free = low[axis] + extent + high[axis] - spans[axis]
            number = -(-free // strides[axis]) + 1
            if (number - 1) * strides[axis] >= low[axis] + extent:
                number -= 1  # it would begin behind the operand
            reach = (number - 1) * strides[axis] + spans[axis] - low[axis] - extent
            extra[axis] = max(reach - high[axis], 0)
    return Windows(kernel, strides, dilations, low, high, extra)


def _extent(node: Node, axis: int, what: str) -> int:
    """Returns the extent of a spatial dim that ``what`` follows from.

    Raises:
        UnsupportedError: LK4001, it is open.
    """
    try:
        return node.info(0).static_dim(2 + axis)
    except RefusalError as error:
        raise UnsupportedError(
            "LK4001",
            f"the {what} of {node.op_type} depend on extents that are not static: {error}",
            op=node.proto.name or node.op_type,
            hint="give the inputs fixed shapes with --input NAME:SHAPE",
        ) from error


def convolution(node: Node) -> Results:
    """A convolution; uneven padding is that of the operand."""
    value, taps = node.operand(0), node.operand(1)
    w = windows(node, node.info(1).static_shape()[2:])
    padding = w.low
    if w.low != w.high:
        value = pad(value, [(0, 0), (0, 0), *zip(w.low, w.high, strict=True)], 0.0)
        padding = [0] * len(w.low)
    info = tensor_info(value)
    shape = [
        None if extent is None else (extent + 2 * side - (size - 1) * dilation - 1) // stride + 1
        for extent, side, size, dilation, stride in zip(
            info.shape[2:], padding, w.kernel, w.dilations, w.strides, strict=True
        )
    ]
    result = info.with_shape([info.shape[0], node.info(1).shape[0], *shape])
    numbers = [int_list(w.strides), int_list(padding), int_list(w.dilations), constant_bool(False)]
    bias = node.operand(2) if node.has(2) else constant_none()
    operands = [value, taps, bias, *numbers, int_list([0] * len(shape)), constant_int(node.attribute("group", 1))]
    return build("torch.aten.convolution", operands, [result.torch_type()])


def transposed_convolution(node: Node) -> Results:
    """A transposed convolution; a size that is asked for decides the padding."""
    value, info = node.operand(0), node.info(0)
    kernel = node.info(1).static_shape()[2:]
    w = windows(node, kernel)
    low, high, count = list(w.low), list(w.high), len(kernel)
    beyond = list(node.attribute("output_padding", None) or [0] * count)
    wanted, automatic = node.attribute("output_shape", None), node.attribute("auto_pad", "NOTSET")
    for axis in range(count) if wanted or automatic.startswith("SAME") else ():
        stride, span = w.strides[axis], (kernel[axis] - 1) * w.dilations[axis] + 1
        if wanted:
            asked = wanted[len(wanted) - count + axis]
            total = stride * (_extent(node, axis, "padding") - 1) + beyond[axis] + span - asked
        else:
            total = span + beyond[axis] - stride
        beyond[axis] += max(-total, 0)
        total = max(total, 0)
        low[axis] = total // 2 if automatic == "SAME_UPPER" else total - total // 2
        high[axis] = total - low[axis]
    made = ConvTransposeOp.build(
        to_builtin(value),
        to_builtin(node.operand(1)),
        strides=w.strides,
        padding=[side for pair in zip(low, high, strict=True) for side in pair],
        output_padding=beyond,
        dilation=w.dilations,
        groups=node.attribute("group", 1),
    )
    result = taken(made, info.dtype)
    return [binary("add", result, bias_along(node.operand(2), 1, info.rank)) if node.has(2) else result]


def _mean_of_windows(value: ir.Value, w: Windows, *, counted: bool, divisor: int = 0) -> ir.Value:
    made = AvgPoolOp.build(
        to_builtin(value),
        kernel=w.kernel,
        strides=w.strides,
        padding=w.padding,
        dilation=w.dilations,
        count_include_pad=counted,
        divisor=divisor,
        ceil_extra=w.extra,
    )
    return taken(made, tensor_info(value).dtype)


def average_pool(node: Node) -> Results:
    """Means of windows; padding counts where the node says so, what ceil mode adds never."""
    counted = bool(node.attribute("count_include_pad", 0))
    return [_mean_of_windows(node.operand(0), windows(node), counted=counted)]


def lp_pool(node: Node) -> Results:
    """Norms of windows."""
    value, p = node.operand(0), node.attribute("p", 2)
    powers = binary_scalar("pow", unary("abs", value), p)
    total = _mean_of_windows(powers, windows(node), counted=True, divisor=1)
    return [_root(total, p)]


def _root(value: ir.Value, p: int) -> ir.Value:
    return unary("sqrt", value) if p == 2 else binary_scalar("pow", value, 1.0 / p)


def max_pool(node: Node) -> Results:
    """Maxima of windows, and where they are: counted through the whole tensor, by rows or by columns."""
    value, info, w = node.operand(0), node.info(0), windows(node)
    if node.wants(1):
        return [*_maxima_and_places(node, w)]
    wide = cast(value, "si16") if info.dtype == "ui8" else value
    made = MaxPoolOp.build(
        to_builtin(wide), kernel=w.kernel, strides=w.strides, padding=w.padding, dilation=w.dilations
    )
    return [cast(taken(made, tensor_info(wide).dtype), info.dtype)]


def _maxima_and_places(node: Node, w: Windows) -> list[ir.Value]:
    """Looks up every element of every window beside its place; of equal ones the first counts."""
    info = node.info(0)
    batch, channels, *image = (_extent(node, axis - 2, "windows") for axis in range(info.rank))
    wide = "si64" if not info.is_float else info.dtype
    value = cast(node.operand(0), wide)
    lowest = -math.inf if info.is_float else np.iinfo(np.int64).min
    value = pad(value, [(0, 0), (0, 0), *zip(w.padding[::2], w.padding[1::2], strict=True)], lowest)
    padded = tensor_info(value).static_shape()[2:]
    counts = [
        (extent - (size - 1) * dilation - 1) // stride + 1
        for extent, size, dilation, stride in zip(padded, w.kernel, w.dilations, w.strides, strict=True)
    ]
    by_column = bool(node.attribute("storage_order", 0))
    flat, place = np.zeros((1, 1), np.int64), np.zeros((1, 1), np.int64)
    for axis, extent in enumerate(padded):
        taps = np.arange(counts[axis])[:, None] * w.strides[axis] + np.arange(w.kernel[axis]) * w.dilations[axis]
        step = math.prod(image[:axis]) if by_column else math.prod(image[axis + 1 :])
        flat, place = (
            (whole[:, None, :, None] + part[None, :, None, :]).reshape(
                whole.shape[0] * counts[axis], whole.shape[1] * w.kernel[axis]
            )
            for whole, part in ((flat * extent, taps), (place, (taps - w.low[axis]) * step))
        )
    elements = look_up(view(value, [batch * channels, math.prod(padded)]), [None, literal(flat, "si64")])
    shape = (batch * channels, flat.shape[0])
    types = [TensorInfo(shape, wide).torch_type(), TensorInfo(shape, "si64").torch_type()]
    found, which = build("torch.aten.max.dim", [elements, constant_int(2), constant_bool(False)], types)
    rows = look_up(literal(place.reshape(-1), "si64"), [_row_starts(which, flat.shape)])
    first = literal((np.arange(batch * channels) * math.prod(image))[:, None], "si64")
    result = [batch, channels, *counts]
    return [view(cast(found, info.dtype), result), view(binary("add", rows, first), result)]


def _row_starts(which: ir.Value, shape: tuple[int, ...]) -> ir.Value:
    """Where the chosen tap of each window is in a table of ``shape``."""
    return binary("add", which, literal((np.arange(shape[0]) * shape[1])[None, :], "si64"))


def global_pool(node: Node) -> Results:
    """One number for each channel."""
    value, info = node.operand(0), node.info(0)
    axes = list(range(2, info.rank))
    if node.op_type == "GlobalAveragePool":
        return [reduce("mean", value, axes)]
    if node.op_type == "GlobalLpPool":
        p = node.attribute("p", 2)
        return [_root(reduce("sum", binary_scalar("pow", unary("abs", value), p), axes), p)]
    result = info.with_shape([*info.shape[:2], *[1] * len(axes)])
    return build("torch.aten.amax", [value, int_list(axes), constant_bool(True)], [result.torch_type()])


def local_response_normalization(node: Node) -> Results:
    """LRN: by the squares of channels around; of an even number the one more is behind."""
    value, length = node.operand(0), node.attribute("size", 1)
    batch, channels, *image = sizes_of(value)
    squares = view(binary("mul", value, value), [batch, 1, channels, product(image)])
    w = Windows([length, 1], [1, 1], [1, 1], [(length - 1) // 2, 0], [length // 2, 0], [0, 0])
    means = view(_mean_of_windows(squares, w, counted=True), [batch, channels, *image])
    base = binary_scalar("add", binary_scalar("mul", means, node.attribute("alpha", 1e-4)), node.attribute("bias", 1.0))
    return [binary("div", value, binary_scalar("pow", base, node.attribute("beta", 0.75)))]


RULES: dict[str, Rule] = {
    "AveragePool": average_pool,
    "Conv": convolution,
    "ConvTranspose": transposed_convolution,
    "GlobalAveragePool": global_pool,
    "GlobalLpPool": global_pool,
    "GlobalMaxPool": global_pool,
    "LRN": local_response_normalization,
    "LpPool": lp_pool,
    "MaxPool": max_pool,
}
