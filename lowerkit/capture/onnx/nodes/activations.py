"""Activation nodes: the standard's formulas, with its defaults."""

from __future__ import annotations

import numpy as np

from lowerkit.capture.onnx.nodes.elementwise import clamped, where
from lowerkit.capture.onnx.nodes.node import Node, Rule
from lowerkit.mlir import ir
from lowerkit.passes.raising.torch_dialect.torch_build import (
    bias_along,
    binary,
    binary_scalar,
    cast,
    scalar_tensor,
    unary,
)
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    RefusalError,
    build,
    constant_float,
    constant_string,
    tensor_info,
)

_SIXTH = float(np.float32(1 / 6))
"""The standard holds it in float32."""


def _zero(value: ir.Value) -> ir.Value:
    info = tensor_info(value)
    return scalar_tensor(0.0 if info.is_float else 0, info.dtype)


def _softened(value: ir.Value) -> ir.Value:
    """``log(1 + exp(x))``, computed without an exponential that overflows."""
    tail = unary("log1p", unary("exp", unary("neg", unary("abs", value))))
    return binary("add", unary("relu", value), tail)


def _softplus(node: Node) -> ir.Value:
    return _softened(node.operand(0))


def _mish(node: Node) -> ir.Value:
    value = node.operand(0)
    return binary("mul", value, unary("tanh", _softened(value)))


def _softsign(node: Node) -> ir.Value:
    value = node.operand(0)
    return binary("div", value, binary_scalar("add", unary("abs", value), 1.0))


def _exponential(value: ir.Value, alpha: float, scale: float, input_scale: float) -> ir.Value:
    numbers = [constant_float(number) for number in (alpha, scale, input_scale)]
    return build("torch.aten.elu", [value, *numbers], [value.type])[0]


def _elu(node: Node) -> ir.Value:
    return _exponential(node.operand(0), node.attribute("alpha"), 1.0, 1.0)


def _celu(node: Node) -> ir.Value:
    alpha = node.attribute("alpha")
    return _exponential(node.operand(0), alpha, 1.0, 1.0 / alpha)


def _selu(node: Node) -> ir.Value:
    return _exponential(node.operand(0), node.attribute("alpha"), node.attribute("gamma"), 1.0)


def _leaky_relu(node: Node) -> ir.Value:
    value = node.operand(0)
    return build("torch.aten.leaky_relu", [value, constant_float(node.attribute("alpha"))], [value.type])[0]


def _prelu(node: Node) -> ir.Value:
    """Slopes broadcast from the last axis on; one for each channel where ``axis`` says so, as old opsets meant it."""
    value, slope = node.operand(0), node.operand(1)
    info = tensor_info(value)
    if node.attribute("axis") == 1 and tensor_info(slope).rank == 1 and tensor_info(slope).shape != (1,):
        slope = bias_along(slope, 1, info.rank)
    negative = binary_scalar("lt", value, 0.0 if info.is_float else 0, "i1")
    return where(negative, binary("mul", value, slope), value)


def _thresholded_relu(node: Node) -> ir.Value:
    """A NaN is not above the threshold, so it gives 0."""
    value = node.operand(0)
    return where(binary_scalar("gt", value, node.attribute("alpha"), "i1"), value, _zero(value))


def _shrink(node: Node) -> ir.Value:
    """Of integers in float64: the bias and the limit may be fractions, the result is cut."""
    info = tensor_info(node.operand(0))
    value = node.operand(0) if info.is_float else cast(node.operand(0), "f64")
    limit, bias = node.attribute("lambd"), node.attribute("bias")
    above = where(binary_scalar("gt", value, limit, "i1"), binary_scalar("sub", value, bias), _zero(value))
    below = binary_scalar("lt", value, -limit, "i1")
    return cast(where(below, binary_scalar("add", value, bias), above), info.dtype)


def _hard_sigmoid_of(value: ir.Value, alpha: float, beta: float) -> ir.Value:
    return clamped(binary_scalar("add", binary_scalar("mul", value, alpha), beta), 0.0, 1.0)


def _hard_sigmoid(node: Node) -> ir.Value:
    return _hard_sigmoid_of(node.operand(0), node.attribute("alpha"), node.attribute("beta"))


def _hard_swish(node: Node) -> ir.Value:
    value = node.operand(0)
    if tensor_info(value).dtype != "f64":
        return unary("hardswish", value)
    return binary("mul", value, _hard_sigmoid_of(value, _SIXTH, 0.5))


def _gelu(node: Node) -> ir.Value:
    """By tanh in float64 with the standard's constants, which it holds in float32; PyTorch's are of float64."""
    value, approximate = node.operand(0), node.attribute("approximate")
    if approximate not in ("none", "tanh"):
        raise RefusalError(f"approximate is {approximate!r}")
    if approximate == "none" or tensor_info(value).dtype != "f64":
        return build("torch.aten.gelu", [value, constant_string(approximate)], [value.type])[0]
    factor, cubic = float(np.sqrt(np.float64(np.float32(2 / np.pi)))), float(np.float32(0.044715))
    cube = binary_scalar("mul", binary("mul", value, binary("mul", value, value)), cubic)
    curve = unary("tanh", binary_scalar("mul", binary("add", value, cube), factor))
    return binary("mul", binary_scalar("mul", value, 0.5), binary_scalar("add", curve, 1.0))


def _swish(node: Node) -> ir.Value:
    value, alpha = node.operand(0), node.attribute("alpha")
    if alpha == 1.0:
        return unary("silu", value)
    return binary("mul", value, unary("sigmoid", binary_scalar("mul", value, alpha)))


RULES: dict[str, Rule] = {
    "Celu": _celu,
    "Elu": _elu,
    "Gelu": _gelu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _hard_swish,
    "LeakyRelu": _leaky_relu,
    "Mish": _mish,
    "PRelu": _prelu,
    "Relu": lambda node: unary("relu", node.operand(0)),
    "Selu": _selu,
    "Shrink": _shrink,
    "Sigmoid": lambda node: unary("sigmoid", node.operand(0)),
    "Softplus": _softplus,
    "Softsign": _softsign,
    "Swish": _swish,
    "ThresholdedRelu": _thresholded_relu,
}
