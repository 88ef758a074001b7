"""Elementwise nodes that are one op of PyTorch, or a few: arithmetic, comparison, logic, bits, conversion."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

from lowerkit.capture.onnx.nodes.node import Node, Rule, torch_name
from lowerkit.capture.onnx.tensors import DTYPE_NAMES
from lowerkit.mlir import ir
from lowerkit.passes.raising.torch_dialect.torch_build import (
    binary,
    binary_scalar,
    broadcast_shape,
    cast,
    unary,
)
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    FLOATS,
    TORCH_DTYPE_CODES,
    build,
    constant_float,
    constant_int,
    constant_none,
    constant_string,
    tensor_info,
)


def where(condition: ir.Value, one: ir.Value, other: ir.Value) -> ir.Value:
    """Builds ``one if condition else other``; both have one element type."""
    infos = [tensor_info(value) for value in (condition, one, other)]
    result = infos[1].with_shape(broadcast_shape(*(info.shape for info in infos))).torch_type()
    return build("torch.aten.where.self", [condition, one, other], [result])[0]


def broadcast_binary(name: str, left: ir.Value, right: ir.Value) -> ir.Value:
    """Builds an op of two tensors that has no alpha, in the element type of the left one."""
    infos = [tensor_info(value) for value in (left, right)]
    result = infos[0].with_shape(broadcast_shape(infos[0].shape, infos[1].shape)).torch_type()
    return build(f"torch.aten.{name}", [left, right], [result])[0]


def is_nan(value: ir.Value) -> ir.Value:
    """Whether each element is NaN."""
    return unary("isnan", value, "i1")


def clamped(value: ir.Value, least: float | None, most: float | None) -> ir.Value:
    """Builds a clamp to numbers, of the kind of the elements."""
    info = tensor_info(value)
    bounds = [
        constant_none() if bound is None else constant_float(bound) if info.is_float else constant_int(int(bound))
        for bound in (least, most)
    ]
    return build("torch.aten.clamp", [value, *bounds], [value.type])[0]


def _unary(name: str) -> Rule:
    return lambda node: unary(name, node.operand(0))


def _binary(name: str, dtype: str | None = None) -> Rule:
    return lambda node: binary(name, node.operand(0), node.operand(1), dtype)


def _over_all(name: str) -> Callable[[Node], ir.Value]:
    """Max, Min, Sum: any number of operands, one after the other."""
    return lambda node: reduce(lambda total, operand: binary(name, total, operand), node.operands())


def _mean(node: Node) -> ir.Value:
    return binary_scalar("div", _over_all("add")(node), float(len(node.proto.input)))


def _divided(node: Node) -> ir.Value:
    """A quotient; of integers it is cut off."""
    left, right = node.operand(0), node.operand(1)
    if tensor_info(left).is_float:
        return binary("div", left, right)
    infos = [tensor_info(value) for value in (left, right)]
    result = infos[0].with_shape(broadcast_shape(infos[0].shape, infos[1].shape)).torch_type()
    return build("torch.aten.div.Tensor_mode", [left, right, constant_string("trunc")], [result])[0]


def _power(node: Node) -> ir.Value:
    """A power in the element type of the base.

    Unless to a constant number, that of integers, or of operands of two types, is computed in float64: 2^31 - 1 is odd,
    and no float32.
    """
    base, exponent = node.operand(0), node.operand(1)
    kind = tensor_info(base).dtype
    number = None if tensor_info(exponent).shape else node.number(1)
    if number is not None and (kind in FLOATS or (isinstance(number, int) and number >= 0)):
        whole = kind not in FLOATS or (float(number).is_integer() and abs(number) <= 4)
        return binary_scalar("pow", base, int(number) if whole else float(number))
    computed = kind if kind in FLOATS and tensor_info(exponent).dtype == kind else "f64"
    return cast(broadcast_binary("pow.Tensor_Tensor", cast(base, computed), cast(exponent, computed)), kind)


def _modulo(node: Node) -> ir.Value:
    """The rest has the sign of the divisor, or with ``fmod`` that of the dividend."""
    return binary("fmod" if node.attribute("fmod", 0) else "remainder", node.operand(0), node.operand(1))


def _shifted(node: Node) -> ir.Value:
    side = "left" if node.attribute("direction", "") == "LEFT" else "right"
    return broadcast_binary(f"bitwise_{side}_shift.Tensor", node.operand(0), node.operand(1))


def _logical(name: str) -> Rule:
    return lambda node: broadcast_binary(name, node.operand(0), node.operand(1))


def _where(node: Node) -> ir.Value:
    """A mask that is constant, and of one value, chooses nothing: patterns look for what is chosen."""
    condition = node.constant(0)
    if condition is not None and condition.size and condition.all() == condition.any():
        chosen = node.operand(1 if condition.all() else 2)
        shape = broadcast_shape(*(tensor_info(node.operand(index)).shape for index in range(3)))
        if None not in shape and shape == tensor_info(chosen).shape:
            return chosen
    return where(node.operand(0), node.operand(1), node.operand(2))


def _sign(node: Node) -> ir.Value:
    """The sign of NaN is NaN, for PyTorch 0."""
    value = node.operand(0)
    info = tensor_info(value)
    if info.dtype.startswith("u"):
        return cast(binary_scalar("ne", value, 0, "i1"), info.dtype)
    return where(is_nan(value), value, unary("sign", value)) if info.is_float else unary("sign", value)


def _is_infinite(node: Node) -> ir.Value:
    value = node.operand(0)
    positive, negative = node.attribute("detect_positive", 1), node.attribute("detect_negative", 1)
    if positive and negative:
        return binary_scalar("eq", unary("abs", value), math.inf, "i1")
    if not positive and not negative:
        return binary_scalar("lt", unary("abs", value), 0.0, "i1")
    return binary_scalar("eq", value, math.inf if positive else -math.inf, "i1")


def _cast(node: Node) -> ir.Value:
    return cast(node.operand(0), torch_name(DTYPE_NAMES[node.attribute("to", 0)]))


def _bit_cast(node: Node) -> ir.Value:
    dtype = torch_name(DTYPE_NAMES[node.attribute("to", 0)])
    operands = [node.operand(0), constant_int(TORCH_DTYPE_CODES[dtype])]
    return build("torch.aten.view.dtype", operands, [node.info(0).with_dtype(dtype).torch_type()])[0]


def _cast_like(node: Node) -> ir.Value:
    return cast(node.operand(0), tensor_info(node.operand(1)).dtype)


def _clipped(node: Node) -> ir.Value:
    """Bounds may be numbers or tensors of rank 0; where they cross, the upper one holds."""
    value = node.operand(0)
    numbers = all(not node.has(index) or node.number(index) is not None for index in (1, 2))
    if numbers and tensor_info(value).dtype != "ui64":  # some of which are no number of 64 bits with a sign
        least, most = node.number(1), node.number(2)
        if least is None and most is None:
            return value
        if least is not None and most is not None:
            least = min(least, most)
        return clamped(value, least, most)
    if node.has(1):
        value = broadcast_binary("maximum", value, node.operand(1))
    return broadcast_binary("minimum", value, node.operand(2)) if node.has(2) else value


_UNARY = {
    "Abs": "abs",
    "Acos": "acos",
    "Acosh": "acosh",
    "Asin": "asin",
    "Asinh": "asinh",
    "Atan": "atan",
    "Atanh": "atanh",
    "BitwiseNot": "bitwise_not",
    "Ceil": "ceil",
    "Cos": "cos",
    "Cosh": "cosh",
    "Erf": "erf",
    "Exp": "exp",
    "Floor": "floor",
    "Log": "log",
    "Neg": "neg",
    "Not": "logical_not",
    "Reciprocal": "reciprocal",
    "Round": "round",
    "Sin": "sin",
    "Sinh": "sinh",
    "Sqrt": "sqrt",
    "Tan": "tan",
    "Tanh": "tanh",
}
_COMPARISONS = {"Equal": "eq", "Greater": "gt", "GreaterOrEqual": "ge", "Less": "lt", "LessOrEqual": "le"}

RULES: dict[str, Rule] = {
    **{op_type: _unary(name) for op_type, name in _UNARY.items()},
    **{op_type: _binary(name) for op_type, name in (("Add", "add"), ("Sub", "sub"), ("Mul", "mul"))},
    **{op_type: _binary(name, "i1") for op_type, name in _COMPARISONS.items()},
    **{name: _logical(f"logical_{name.lower()}") for name in ("And", "Or", "Xor")},
    **{f"Bitwise{name}": _logical(f"bitwise_{name.lower()}.Tensor") for name in ("And", "Or", "Xor")},
    "BitCast": _bit_cast,
    "BitShift": _shifted,
    "Cast": _cast,
    "CastLike": _cast_like,
    "Clip": _clipped,
    "Div": _divided,
    "IsInf": _is_infinite,
    "IsNaN": lambda node: is_nan(node.operand(0)),
    "Max": _over_all("maximum"),
    "Mean": _mean,
    "Min": _over_all("minimum"),
    "Mod": _modulo,
    "Pow": _power,
    "Sign": _sign,
    "Sum": _over_all("add"),
    "Where": _where,
}
