"""QuantizeLinear, DequantizeLinear, QLinearMatMul, QLinearConv and ConvInteger, as the standard defines them.

quantize    saturate(round_half_to_even(x / scale) + zero_point)
dequantize  (x - zero_point) * scale
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto

from lowerkit.capture.onnx.quantized import takes
from lowerkit.capture.onnx.rewrites.rewriter import NoRewriteError, Rewriter, is_float

_RANGES: dict[int, tuple[int, int]] = {
    TensorProto.INT8: (-128, 127),
    TensorProto.UINT8: (0, 255),
    TensorProto.INT16: (-32768, 32767),
    TensorProto.UINT16: (0, 65535),
}


def quantize_linear(b: Rewriter) -> None:
    """Writes a QuantizeLinear to an integer type of 8 or 16 bits."""
    to = b.dtype(b.output(0))
    if to not in _RANGES:
        raise NoRewriteError("other than 8 or 16 bits")
    if _is_imported(b, to, b.dtype(b.input(0))):
        raise NoRewriteError("the importer takes it as it is")
    low, high = _RANGES[to]
    x, scale = (b.cast(b.input(index), TensorProto.FLOAT) for index in (0, 1))
    rounded = b.op("Round", b.op("Div", x, _spread(b, scale, 1)))
    if b.input(2):
        rounded = b.op("Add", rounded, _spread(b, b.cast(b.input(2), TensorProto.FLOAT), 2))
    bounds = (b.constant(float(low), np.float32), b.constant(float(high), np.float32))
    b.give(b.cast(b.op("Clip", rounded, *bounds), to))


def dequantize_linear(b: Rewriter) -> None:
    """Writes a DequantizeLinear of integers."""
    if is_float(b.dtype(b.input(0))):
        raise NoRewriteError("floats of 8 bits")
    if _is_imported(b, b.dtype(b.input(0)), b.dtype(b.output(0))):
        raise NoRewriteError("the importer takes it as it is")
    x = b.cast(b.input(0), TensorProto.INT32)
    if b.input(2):
        x = b.op("Sub", x, _spread(b, b.cast(b.input(2), TensorProto.INT32), 2))
    scaled = b.op("Mul", b.cast(x, TensorProto.FLOAT), _spread(b, b.cast(b.input(1), TensorProto.FLOAT), 1))
    b.give(b.cast(scaled, b.dtype(b.output(0))))


def _is_imported(b: Rewriter, integers: int, floats: int) -> bool:
    """Whether the importer makes an lk op of the node."""
    names = [b.input(index) for index in (1, 2) if b.input(index)]
    single = all(b.rank(name) == 0 for name in names) and b.dtype(names[0]) == TensorProto.FLOAT
    return takes(b.node.op_type, integers, floats, [*map(b.value, names)], b.attribute("block_size", 0), single=single)


def _spread(b: Rewriter, name: str, index: int) -> str:
    """Brings a scale or zero point to where it counts: everywhere, along an axis, or along blocks of one."""
    shape, given = b.shape(b.input(0)), b.shape(b.input(index))
    axis = b.attribute("axis", 1)
    block = b.attribute("block_size", 0)
    if block:
        axis %= len(shape)
        repeated = [*given[: axis + 1], block, *given[axis + 1 :]]
        wide = b.op("Expand", b.unsqueeze(name, [axis + 1]), b.constant(repeated))
        full = [*given[:axis], given[axis] * block, *given[axis + 1 :]]
        wide = b.reshape(wide, full)
        return wide if full[axis] == shape[axis] else b.slice(wide, axis, 0, shape[axis])
    if len(given) == 0 or len(shape) <= 1:
        return name
    if given == (1,):
        return b.reshape(name, [1] * len(shape))
    if len(given) != 1:
        raise NoRewriteError("a scale of several axes")
    return b.reshape(name, [given[0] if place == axis % len(shape) else 1 for place in range(len(shape))])


def conv_integer(b: Rewriter) -> None:
    """Writes a ConvInteger in float64, where sums of products of 8-bit integers are exact."""
    parts: list[str] = []
    for index in (0, 1):
        value = b.cast(b.input(index), TensorProto.DOUBLE)
        if b.input(2 + index):
            zero = b.cast(b.input(2 + index), TensorProto.DOUBLE)
            points = b.shape(b.input(2 + index))
            if index == 1 and points and points[0] > 1:
                zero = b.reshape(zero, [points[0], *[1] * (len(b.shape(b.input(1))) - 1)])
            value = b.op("Sub", value, zero)
        parts.append(value)
    b.give(b.cast(b.op("Conv", *parts, **_window(b)), TensorProto.INT32))


def qlinear_conv(b: Rewriter) -> None:
    """Writes a QLinearConv of a computed filter: an exact integer product, then one scale."""
    along = [-1, *[1] * (len(b.shape(b.input(3))) - 2)]
    parts: list[str] = []
    scales: list[str] = []
    for operand in (0, 3):
        scale, zero = (b.cast(b.input(operand + index), TensorProto.DOUBLE) for index in (1, 2))
        each = [1] if operand == 0 else along
        scales.append(b.reshape(scale, each))
        zero = b.reshape(zero, each if operand == 0 else [*along, 1])
        parts.append(b.op("Sub", b.cast(b.input(operand), TensorProto.DOUBLE), zero))
    if b.input(8):
        parts.append(b.cast(b.input(8), TensorProto.DOUBLE))
    _give_scaled(b, b.op("Conv", *parts, **_window(b)), scales)


def _window(b: Rewriter) -> dict[str, Any]:
    names = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    return {name: b.attribute(name, None) for name in names if b.attribute(name, None) is not None}


def qlinear_matmul(b: Rewriter) -> None:
    """Writes a QLinearMatMul: an exact integer product, then one scale."""
    parts: list[str] = []
    scales: list[str] = []
    for operand, axis in ((0, -2), (3, -1)):
        scale, zero = (b.cast(b.input(operand + index), TensorProto.DOUBLE) for index in (1, 2))
        scales.append(_along_rows(b, scale, operand + 1, operand, axis))
        zero = _along_rows(b, zero, operand + 2, operand, axis)
        parts.append(b.op("Sub", b.cast(b.input(operand), TensorProto.DOUBLE), zero))
    _give_scaled(b, b.op("MatMul", *parts), scales)


def _give_scaled(b: Rewriter, product: str, scales: list[str]) -> None:
    """Scales an exact product, rounds it, and adds the zero point of the result."""
    to = b.dtype(b.output(0))
    low, high = _RANGES[to]
    scale = b.op("Div", b.op("Mul", *scales), _single(b, b.cast(b.input(6), TensorProto.DOUBLE), 6))
    rounded = b.op("Round", b.op("Mul", product, scale))
    shifted = b.op("Add", rounded, _single(b, b.cast(b.input(7), TensorProto.DOUBLE), 7))
    bounds = (b.constant(float(low), np.float64), b.constant(float(high), np.float64))
    b.give(b.cast(b.op("Clip", shifted, *bounds), to))


def _single(b: Rewriter, name: str, index: int) -> str:
    """Makes a tensor of one element a scalar."""
    return b.op("Squeeze", name) if b.shape(b.input(index)) == (1,) else name


def _along_rows(b: Rewriter, name: str, index: int, operand: int, axis: int) -> str:
    """Brings a scale or zero point of each row (axis -2) or column (axis -1) of a matrix to its place."""
    given, rank = b.shape(b.input(index)), len(b.shape(b.input(operand)))
    if given == (1,) or not given:
        return _single(b, name, index)
    return b.reshape(name, (given[0], 1)) if len(given) == 1 and axis == -2 and rank > 1 else name
