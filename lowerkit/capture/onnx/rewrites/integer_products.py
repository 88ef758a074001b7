"""Products of quantized tensors as the standard writes them, brought to what the integer level takes.

    QLinearMatMul, QLinearConv     DequantizeLinear on both sides, the product, QuantizeLinear: a pair around a product
    MatMulInteger, ConvInteger     a sum of plain bytes, and what zero points add to it:
        sum (x - zx) (w - zw)  =  sum x w  -  zw sum x  -  zx sum (w - zw)
    DynamicQuantizeLinear          smallest and largest element, scale and zero point from them, QuantizeLinear

Plain sums are MatMulInteger and ConvInteger with two operands, the weight signed; the importer makes lk ops of them.
``zw sum x`` is a product with ones, only where a weight is not symmetric. The last term is one number for each output
channel times ``zx``, which may be computed at run time. Weights that are computed are not taken.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from lowerkit.capture.onnx.rewrites.rewriter import Array, KeptError, NoRewriteError, Rewriter
from lowerkit.capture.onnx.tensors import LazyTensor

_BYTES = (TensorProto.INT8, TensorProto.UINT8)
_WINDOW = ("dilations", "group", "kernel_shape", "strides")


def quantized_pair(b: Rewriter, x: int, *, axis: int | None = None) -> str:
    """Writes a DequantizeLinear of operand ``x``, whose scale and zero point are the operands behind it."""
    fields = {} if axis is None or b.rank(b.input(x + 1)) == 0 else {"axis": axis}
    names = [b.input(x), b.input(x + 1), *([b.input(x + 2)] if b.input(x + 2) else [])]
    return b.op("DequantizeLinear", *names, **fields)


def give_quantized(b: Rewriter, value: str, scale: int, *, like: int) -> None:
    """Writes a QuantizeLinear by the operands ``scale`` and behind it; without a zero point as ``like`` is stored."""
    point = b.input(scale + 1) or b.constant(0, b.numpy_dtype(b.input(like)))
    b.give(b.op("QuantizeLinear", value, b.input(scale), point))


def qlinear_matmul(b: Rewriter) -> None:
    """Writes a QLinearMatMul by a constant matrix; one scale for A, one or one for each column for B."""
    matrix = _constant_bytes(b, 3)
    if len(matrix.shape) != 2 or b.rank(b.input(0)) < 2:
        raise NoRewriteError("no matrix on the right")
    for place in (1, 4, 6):
        scale = b.value(b.input(place))
        if scale is None or (place != 4 and scale.size != 1) or scale.ndim > 1:
            raise NoRewriteError("a scale that is computed, or one for each row")
    product = b.op("MatMul", quantized_pair(b, 0), quantized_pair(b, 3, axis=1))
    give_quantized(b, product, 6, like=0)


def qlinear_conv(b: Rewriter) -> None:
    """Writes a QLinearConv with a constant filter; the bias counts in units of the product of both scales."""
    filters = _constant_bytes(b, 3)
    scales = [b.value(b.input(place)) for place in (1, 4)]
    if scales[0] is None or scales[0].size != 1 or scales[1] is None or b.value(b.input(6)) is None:
        raise NoRewriteError("a scale that is computed")
    operands = [quantized_pair(b, 0), quantized_pair(b, 3, axis=0)]
    rank = len(filters.shape)
    last = bool(b.attribute("channels_last", 0))
    if last:
        operands[0] = b.transpose(operands[0], [0, rank - 1, *range(1, rank - 1)])
    if b.input(8):
        units = b.constant((scales[0].reshape(()) * scales[1]).astype(np.float32), np.float32)
        fields = {"axis": 0} if scales[1].ndim else {}
        operands.append(b.op("DequantizeLinear", b.input(8), units, **fields))
    kept = {name: b.attribute(name, None) for name in ("auto_pad", "pads", *_WINDOW)}
    product = b.op("Conv", *operands, **{name: value for name, value in kept.items() if value is not None})
    if last:
        product = b.transpose(product, [0, *range(2, rank), 1])
    give_quantized(b, product, 6, like=0)


def matmul_integer(b: Rewriter) -> None:
    """Writes a MatMulInteger by a constant matrix."""
    matrix = _constant_bytes(b, 1)
    if len(matrix.shape) != 2 or b.rank(b.input(0)) < 2:
        raise NoRewriteError("no matrix on the right")
    if matrix.dtype == "i8" and not b.input(2) and not b.input(3):
        raise KeptError
    _require_one(b, b.input(2))
    signed, points = _signed(b, b.input(1), matrix, b.input(3))
    sums = b.op("MatMulInteger", b.input(0), signed)
    if points.any():
        shape = (matrix.shape[0], 1)
        ones = b.weight("ones", LazyTensor("i8", shape, lambda: np.ones(shape, np.int8)))
        rows = b.op("MatMulInteger", b.input(0), ones)
        sums = b.op("Sub", sums, b.op("Mul", rows, b.constant(points, np.int32)))
    b.give(_less_point(b, sums, b.input(2), _totals(b, matrix, b.input(3), 1)))


def conv_integer(b: Rewriter) -> None:
    """Writes a ConvInteger with a constant filter; padding counts as the input's zero point."""
    filters = _constant_bytes(b, 1)
    padding = _explicit_padding(b, filters.shape)
    automatic = b.attribute("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    if filters.dtype == "i8" and not b.input(2) and not b.input(3) and not any(padding) and not automatic:
        raise KeptError
    _require_one(b, b.input(2))
    signed, points = _signed(b, b.input(1), filters, b.input(3))
    groups, outputs = b.attribute("group", 1), filters.shape[0]
    if points.any() and groups not in (1, outputs):
        raise NoRewriteError("groups of filters that are not symmetric")
    x = b.input(0)
    if any(padding):
        half = len(padding) // 2
        around = b.constant([0, 0, *padding[:half], 0, 0, *padding[half:]])
        point = b.reshape(b.input(2), []) if b.input(2) else b.constant(0, b.numpy_dtype(x))
        known = b.value(b.input(2)) if b.input(2) else None
        x = b.op("Pad", x, around, point if known is None else b.constant(known.reshape(()), known.dtype))
    kept = {name: b.attribute(name, None) for name in _WINDOW}
    window = {name: value for name, value in kept.items() if value is not None}
    sums = b.op("ConvInteger", x, signed, **window)
    along = (-1, *[1] * (len(filters.shape) - 2))
    if points.any():
        shape = (groups, *filters.shape[1:])
        ones = b.weight("ones", LazyTensor("i8", shape, lambda: np.ones(shape, np.int8)))
        windows = b.op("ConvInteger", x, ones, **window)
        sums = b.op("Sub", sums, b.op("Mul", windows, b.constant(points.reshape(along), np.int32)))
    b.give(_less_point(b, sums, b.input(2), _totals(b, filters, b.input(3), 0, along)))


def dynamic_quantize_linear(b: Rewriter) -> None:
    """Writes a DynamicQuantizeLinear; of nothing but zeros the scale is 1, as in ONNX Runtime."""
    x = b.input(0)
    zero = b.constant(0.0, np.float32)
    highest = b.op("Max", b.op("ReduceMax", x, keepdims=0), zero)
    lowest = b.op("Min", b.op("ReduceMin", x, keepdims=0), zero)
    extent = b.op("Sub", highest, lowest)
    scale = b.op("Div", extent, b.constant(255.0, np.float32))
    scale = b.op("Where", b.op("Equal", extent, zero), b.constant(1.0, np.float32), scale)
    point = b.op("Round", b.op("Sub", zero, b.op("Div", lowest, scale)))
    point = b.cast(b.op("Clip", point, zero, b.constant(255.0, np.float32)), TensorProto.UINT8)
    b.give(b.op("QuantizeLinear", x, scale, point), 0)
    b.give(scale, 1)
    b.give(point, 2)


def _constant_bytes(b: Rewriter, place: int) -> LazyTensor:
    tensor = b.tensor(b.input(place))
    if tensor is None or b.dtype(b.input(place)) not in _BYTES:
        raise NoRewriteError("the weight is no constant of bytes")
    return tensor


def _require_one(b: Rewriter, point: str) -> None:
    if point and b.shape(point) not in ((), (1,)):
        raise NoRewriteError("a zero point for each row")


def _signed(b: Rewriter, name: str, weight: LazyTensor, point: str) -> tuple[str, Array]:
    """Returns a weight stored signed, and its zero points as int64."""
    points = np.zeros((), np.int64)
    if point:
        known = b.tensor(point)
        if known is None or len(known.shape) > 1:
            raise NoRewriteError("zero points of the weight that are computed")
        points = known.read().astype(np.int64)
        points = points.reshape(()) if points.size == 1 else points
    if weight.dtype == "i8":
        return name, points

    def flip() -> Array:
        return (np.ascontiguousarray(weight.read()) ^ np.uint8(128)).view(np.int8)

    return b.weight("signed", LazyTensor("i8", weight.shape, flip)), points - 128


def _totals(b: Rewriter, weight: LazyTensor, point: str, axis: int, shape: Sequence[int] = (-1,)) -> LazyTensor:
    """Returns ``sum (w - zw)`` for each output channel, which lies along ``axis`` of the weight, in ``shape``."""
    points = b.tensor(point) if point else None
    summed = tuple(index for index in range(len(weight.shape)) if index != axis)
    extents = tuple(weight.shape[axis] if size == -1 else size for size in shape)

    def read() -> Array:
        zero = 0 if points is None else points.read().astype(np.int64).reshape(-1)
        count = np.prod([weight.shape[index] for index in summed])
        return (weight.read().astype(np.int64).sum(summed) - count * zero).astype(np.int32).reshape(extents)

    return LazyTensor("i32", extents, read)


def _less_point(b: Rewriter, sums: str, point: str, totals: LazyTensor) -> str:
    """Subtracts ``point * totals`` from sums."""
    known = b.value(point) if point else np.zeros(())
    if known is not None and not known.any():
        return sums
    factor = b.reshape(b.cast(point, TensorProto.INT32), [])
    return b.op("Sub", sums, b.op("Mul", factor, b.weight("totals", totals)))


def _explicit_padding(b: Rewriter, filters: Sequence[int]) -> list[int]:
    """Returns the padding before each spatial dimension, then behind each."""
    count = len(filters) - 2
    automatic = b.attribute("auto_pad", "NOTSET")
    if automatic in ("NOTSET", "VALID"):
        return list(b.attribute("pads", None) or [0] * 2 * count) if automatic == "NOTSET" else [0] * 2 * count
    strides, dilations = (list(b.attribute(name, None) or [1] * count) for name in ("strides", "dilations"))
    low: list[int] = []
    high: list[int] = []
    for size, kernel, stride, dilation in zip(b.shape(b.input(0))[2:], filters[2:], strides, dilations, strict=True):
        missing = max(0, (-(-size // stride) - 1) * stride + (kernel - 1) * dilation + 1 - size)
        low.append(missing // 2 if automatic == "SAME_UPPER" else missing - missing // 2)
        high.append(missing - low[-1])
    return low + high
