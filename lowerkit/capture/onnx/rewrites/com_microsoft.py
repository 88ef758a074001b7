"""Quantized ops of ONNX Runtime's own domain ``com.microsoft``, written with those of the standard.

The ops compute on stored integers with the scales and zero points of operands and result beside them: ``Y = quantize(f
(dequantize(X), ...))``. Their meaning is that of ONNX Runtime's ContribOperators documentation; its kernels round some
of them through tables or fused factors, so that results may differ by one unit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto

from lowerkit.capture.onnx.rewrites.integer_products import give_quantized, quantized_pair
from lowerkit.capture.onnx.rewrites.rewriter import NoRewriteError, Rewriter

Rule = Callable[[Rewriter], None]


def binary(op_type: str) -> Rule:
    """Returns the rule of QLinearAdd or QLinearMul: A, B and C, each with scale and zero point."""

    def rule(b: Rewriter) -> None:
        give_quantized(b, b.op(op_type, quantized_pair(b, 0), quantized_pair(b, 3)), 6, like=0)

    return rule


def unary(op_type: str, *attributes: str) -> Rule:
    """Returns the rule of an op on X with scale and zero point, then those of Y; the attributes are kept."""

    def rule(b: Rewriter) -> None:
        kept = {name: b.attribute(name, None) for name in attributes}
        kept = {name: value for name, value in kept.items() if value is not None}
        give_quantized(b, b.op(op_type, quantized_pair(b, 0), **kept), 3, like=0)

    return rule


def softmax(b: Rewriter) -> None:
    """Writes QLinearSoftmax; before opset 13 a softmax runs over all dimensions from the axis on."""
    axis, rank = b.attribute("axis", -1), b.rank(b.input(0))
    if b.attribute("opset", 13) < 13 and axis % rank != rank - 1:
        raise NoRewriteError("a softmax over several dimensions")
    give_quantized(b, b.op("Softmax", quantized_pair(b, 0), axis=axis), 3, like=0)


def average_pool(b: Rewriter) -> None:
    """Writes QLinearAveragePool."""
    names = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")
    kept = {name: b.attribute(name, None) for name in names}
    _pool(b, "AveragePool", {name: value for name, value in kept.items() if value is not None})


def global_average_pool(b: Rewriter) -> None:
    """Writes QLinearGlobalAveragePool."""
    _pool(b, "GlobalAveragePool", {})


def _pool(b: Rewriter, op_type: str, attributes: dict[str, Any]) -> None:
    x = quantized_pair(b, 0)
    if not b.attribute("channels_last", 0):
        give_quantized(b, b.op(op_type, x, **attributes), 3, like=0)
        return
    rank = b.rank(b.input(0))
    pooled = b.op(op_type, b.transpose(x, [0, rank - 1, *range(1, rank - 1)]), **attributes)
    give_quantized(b, b.transpose(pooled, [0, *range(2, rank), 1]), 3, like=0)


def concat(b: Rewriter) -> None:
    """Writes QLinearConcat: scale and zero point of Y, then each operand with its own."""
    operands = [quantized_pair(b, place) for place in range(2, len(b.node.input), 3)]
    give_quantized(b, b.op("Concat", *operands, axis=b.attribute("axis", 0)), 0, like=2)


def where(b: Rewriter) -> None:
    """Writes QLinearWhere: a condition, X, Y and the result's parameters."""
    give_quantized(b, b.op("Where", b.input(0), quantized_pair(b, 1), quantized_pair(b, 4)), 7, like=1)


def reduce_mean(b: Rewriter) -> None:
    """Writes QLinearReduceMean over constant axes."""
    axes, x = b.attribute("axes", None), quantized_pair(b, 0)
    fields: dict[str, Any] = {"keepdims": b.attribute("keepdims", 1)}
    if axes is None:
        value = b.op("ReduceMean", x, **fields)
    elif b.version >= 18:
        value = b.op("ReduceMean", x, b.constant(axes), **fields)
    else:
        value = b.op("ReduceMean", x, axes=axes, **fields)
    give_quantized(b, value, 3, like=0)


def gemm(b: Rewriter) -> None:
    """Writes QGemm; without the result's scale the result is f32. The bias counts in units of alpha and both scales."""
    alpha, across = b.attribute("alpha", 1.0), bool(b.attribute("transB", 0))
    scales = [b.value(b.input(place)) for place in (1, 4)]
    if scales[0] is None or scales[0].size != 1 or scales[1] is None:
        raise NoRewriteError("a scale that is computed")
    left = quantized_pair(b, 0)
    if b.attribute("transA", 0):
        left = b.transpose(left, [1, 0])
    units = (scales[0].reshape(()) * scales[1]).astype(np.float32)
    # alpha scales the result: that is, the right operand.
    scale = b.constant((scales[1] * np.float32(alpha)).astype(np.float32), np.float32)
    fields = {} if not scales[1].ndim else {"axis": 0 if across else 1}
    names = [b.input(3), scale, *([b.input(5)] if b.input(5) else [])]
    operands = [left, b.op("DequantizeLinear", *names, **fields)]
    product = b.op("Gemm", *operands, transB=int(across))
    if b.input(6):
        units = b.constant((units * np.float32(alpha)).astype(np.float32), np.float32)
        bias = b.op("DequantizeLinear", b.input(6), units, **({"axis": -1} if scales[1].ndim else {}))
        product = b.op("Add", product, bias)
    if b.input(7):
        give_quantized(b, product, 7, like=0)
    else:
        b.give(product)


def matmul_integer_to_float(b: Rewriter) -> None:
    """Writes MatMulIntegerToFloat: A, B, their scales, their zero points, a bias."""
    sums = b.op("MatMulInteger", *_without_last_empty([b.input(place) for place in (0, 1, 4, 5)]))
    _give_scaled(b, sums, b.op("Mul", b.input(2), b.input(3)), b.input(6))


def dynamic_quantize_matmul(b: Rewriter) -> None:
    """Writes DynamicQuantizeMatMul: A in floats, B, its scale and zero point, a bias."""
    stored, scale, point = b.ops("DynamicQuantizeLinear", [b.input(0)], 3)
    sums = b.op("MatMulInteger", *_without_last_empty([stored, b.input(1), point, b.input(3)]))
    _give_scaled(b, sums, b.op("Mul", scale, b.input(2)), b.input(4))


def _without_last_empty(names: list[str]) -> list[str]:
    while not names[-1]:
        names = names[:-1]
    return names


def _give_scaled(b: Rewriter, sums: str, scale: str, bias: str) -> None:
    value = b.op("Mul", b.cast(sums, TensorProto.FLOAT), scale)
    b.give(b.op("Add", value, bias) if bias else value)


def same(op_type: str) -> Rule:
    """Returns the rule of an op that the standard has under the same name."""

    def rule(b: Rewriter) -> None:
        axis = b.attribute("axis", None)
        b.give(b.op(op_type, *b.node.input, **({} if axis is None else {"axis": axis})))

    return rule


RULES: dict[str, Rule] = {
    "DequantizeLinear": same("DequantizeLinear"),
    "DynamicQuantizeMatMul": dynamic_quantize_matmul,
    "MatMulIntegerToFloat": matmul_integer_to_float,
    "QGemm": gemm,
    "QLinearAdd": binary("Add"),
    "QLinearAveragePool": average_pool,
    "QLinearConcat": concat,
    "QLinearGlobalAveragePool": global_average_pool,
    "QLinearLeakyRelu": unary("LeakyRelu", "alpha"),
    "QLinearMul": binary("Mul"),
    "QLinearReduceMean": reduce_mean,
    "QLinearSigmoid": unary("Sigmoid"),
    "QLinearSoftmax": softmax,
    "QLinearWhere": where,
    "QuantizeLinear": same("QuantizeLinear"),
}
"""By the name in ``com.microsoft``; QLinearConv is there too, as in the standard but for channels that may be last."""
