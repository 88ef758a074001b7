"""Spells out elementwise ops that torch-mlir lowers wrongly, through float64, or not at all.

Each rule states the formula of PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.torch_dialect.integer_casts import reinterpret_bits
from lowerkit.passes.raising.torch_dialect.table_pass import Rule, TablePass
from lowerkit.passes.raising.torch_dialect.torch_build import bias_along, binary, binary_scalar, cast, unary, view
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    NotConcernedError,
    RefusalError,
    build,
    constant_float,
    is_tensor,
    like_result,
    number_of,
    string_of,
    tensor_info,
)
from lowerkit.passes.source_location import op_name

_WHOLE_IN_F32 = 2**24
"""Up to here f32 has every integer."""


def _is_finite(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """``abs(x) < inf``; comparisons with NaN are false. Integers are always finite."""
    value = op.operands[0]
    if not tensor_info(value).is_float:
        return like_result(binary("eq", value, value, "i1"), op)
    return like_result(binary_scalar("lt", unary("abs", value), math.inf, "i1"), op)


def _is_nan(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """``x != x``."""
    return like_result(binary("ne", op.operands[0], op.operands[0], "i1"), op)


def _sign(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """``(x > 0) - (x < 0)``, as in PyTorch: 0 for NaN."""
    value = op.operands[0]
    dtype = tensor_info(value).dtype
    if dtype in ("i1", "ui8"):
        raise RefusalError(f"the sign of {dtype}")
    positive = cast(binary_scalar("gt", value, 0, "i1"), dtype)
    negative = cast(binary_scalar("lt", value, 0, "i1"), dtype)
    return like_result(binary("sub", positive, negative), op)


def _negative(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """``0 - x`` of integers, which torch-mlir negates through f32."""
    value = op.operands[0]
    if tensor_info(value).is_float:
        raise NotConcernedError("floats are lowered well")
    return like_result(binary_scalar("rsub", value, 0), op)


def _truncate(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """``ceil(x) if x < 0 else floor(x)``: torch-mlir multiplies by the sign, which loses that of -0."""
    value = op.operands[0]
    if not tensor_info(value).is_float:
        raise NotConcernedError("integers are whole")
    return like_result(_whole_part(value), op)


def _whole_part(value: ir.Value) -> ir.Value:
    negative = binary_scalar("lt", value, 0.0, "i1")
    return build("torch.aten.where.self", [negative, unary("ceil", value), unary("floor", value)], [value.type])[0]


def _fraction(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """frac: ``x - trunc(x)``."""
    value = op.operands[0]
    if not tensor_info(value).is_float:
        raise NotConcernedError("integers are whole")
    return like_result(binary("sub", value, _whole_part(value)), op)


def _power(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """pow: (input, exponent): beyond small whole exponents the function itself, as repeated products lose digits."""
    exponent = number_of(op.operands[1])
    if not tensor_info(op.results[0]).is_float or isinstance(exponent, float) or abs(exponent) <= 4:
        raise NotConcernedError("a few products")
    if tensor_info(op.results[0]).dtype == "f32" and abs(exponent) > _WHOLE_IN_F32:  # rounded, odd would become even
        wide = cast(op.operands[0], "f64")
        power = build(op_name(op), [wide, constant_float(float(exponent))], [wide.type])[0]
        return like_result(cast(power, "f32"), op)
    return build(op_name(op), [op.operands[0], constant_float(float(exponent))], [op.results[0].type])


def _float_power(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """float_power: (input, exponent): a power in float64, which the operand has been made."""
    operands = [op.operands[0], constant_float(float(number_of(op.operands[1])))]
    return build("torch.aten.pow.Tensor_Scalar", operands, [op.results[0].type])


def _softplus(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """softplus: (input, beta, threshold): ``log1p(exp(beta x)) / beta``, and x itself above the threshold."""
    value, beta, threshold = op.operands[0], float(number_of(op.operands[1])), float(number_of(op.operands[2]))
    scaled = value if beta == 1 else binary_scalar("mul", value, beta)
    smooth = unary("log1p", unary("exp", scaled))
    smooth = smooth if beta == 1 else binary_scalar("div", smooth, beta)
    above = binary_scalar("gt", scaled, threshold, "i1")
    return like_result(build("torch.aten.where.self", [above, value, smooth], [value.type])[0], op)


def _mish(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """``x * tanh(log1p(exp(x)))``; above 20 the logarithm is x itself to the last bit of f32."""
    value = op.operands[0]
    smooth = unary("log1p", unary("exp", value))
    above = binary_scalar("gt", value, 20.0, "i1")
    smooth = build("torch.aten.where.self", [above, value, smooth], [value.type])[0]
    return like_result(binary("mul", value, unary("tanh", smooth)), op)


def _elu(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """elu: (input, alpha, scale, input_scale): ``scale * (x if x > 0 else alpha * expm1(input_scale * x))``."""
    value = op.operands[0]
    alpha, scale, input_scale = (float(number_of(operand)) for operand in list(op.operands)[1:4])
    return like_result(_exponential_unit(value, alpha, scale, input_scale), op)


def _exponential_unit(value: ir.Value, alpha: float, scale: float, input_scale: float) -> ir.Value:
    curve = value if input_scale == 1 else binary_scalar("mul", value, input_scale)
    curve = unary("expm1", curve)
    curve = curve if alpha * scale == 1 else binary_scalar("mul", curve, alpha * scale)
    line = value if scale == 1 else binary_scalar("mul", value, scale)
    positive = binary_scalar("gt", value, 0, "i1")
    return build("torch.aten.where.self", [positive, line, curve], [value.type])[0]


def _selu(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """An elu with the constants of Klambauer et al. 2017."""
    return like_result(_exponential_unit(op.operands[0], 1.6732632423543772, 1.0507009873554805, 1.0), op)


def _celu(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """celu: (input, alpha): an elu whose exponent is divided by alpha."""
    alpha = float(number_of(op.operands[1]))
    return like_result(_exponential_unit(op.operands[0], alpha, 1.0, 1.0 / alpha), op)


def _leaky_relu(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """leaky_relu: (input, negative_slope): ``x if x > 0 else x * slope``."""
    value = op.operands[0]
    positive = binary_scalar("gt", value, 0, "i1")
    scaled = binary_scalar("mul", value, float(number_of(op.operands[1])))
    return like_result(build("torch.aten.where.self", [positive, value, scaled], [value.type])[0], op)


def _log_sigmoid(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """``min(0, x) - log1p(exp(-abs(x)))``."""
    value = op.operands[0]
    tail = unary("log1p", unary("exp", unary("neg", unary("abs", value))))
    negative = build("torch.aten.clamp_max", [value, constant_float(0.0)], [value.type])[0]
    return like_result(binary("sub", negative, tail), op)


def _gelu(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """gelu: (input, approximate): see ``recognize_gelu`` for the formulas.

    torch-mlir divides by the root where PyTorch multiplies, and its sqrt(2 / pi) is wrong in the fourth digit.
    """
    value = op.operands[0]
    if string_of(op.operands[1]) == "none":
        curve = unary("erf", binary_scalar("mul", value, math.sqrt(0.5)))
    else:
        cube = binary("mul", binary("mul", value, value), value)
        inner = binary("add", value, binary_scalar("mul", cube, 0.044715))
        curve = unary("tanh", binary_scalar("mul", inner, math.sqrt(2 / math.pi)))
    half = binary_scalar("mul", value, 0.5)
    return like_result(binary("mul", half, binary_scalar("add", curve, 1.0)), op)


def _scaled_term(op: ir.Operation, name: str) -> Sequence[ir.Value]:
    """addcmul, addcdiv: (input, a, b, value): ``input + (value * a) ... b``, in PyTorch's order."""
    base, left, right, factor = op.operands
    number = float(number_of(factor))
    scaled = left if number == 1 else binary_scalar("mul", left, number)
    return like_result(binary("add", base, binary(name, scaled, right)), op)


def _addcmul(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    return _scaled_term(op, "mul")


def _addcdiv(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    return _scaled_term(op, "div")


def _lerp(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """lerp: (start, end, weight): computed from the end that is nearer, as PyTorch does."""
    start, end, weight = op.operands
    span = binary("sub", end, start)
    if not is_tensor(weight):
        number = float(number_of(weight))
        step = binary_scalar("mul", span, number if abs(number) < 0.5 else 1 - number)
        return like_result(binary("add", start, step) if abs(number) < 0.5 else binary("sub", end, step), op)
    rest = binary_scalar("rsub", weight, 1)
    near = binary_scalar("lt", unary("abs", weight), 0.5, "i1")
    low, high = binary("add", start, binary("mul", span, weight)), binary("sub", end, binary("mul", span, rest))
    return like_result(build("torch.aten.where.self", [near, low, high], [low.type])[0], op)


def _prelu(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """prelu: (input, weight): ``x if x > 0 else weight * x`` with one weight, or one for each channel (axis 1)."""
    value, slope = op.operands
    info = tensor_info(value)
    per_channel = tensor_info(slope).rank == 1 and tensor_info(slope).shape != (1,)
    slope = view(slope, []) if info.rank == 0 else slope  # a scalar has one channel
    scaled = binary("mul", value, bias_along(slope, 1, info.rank) if per_channel and info.rank > 1 else slope)
    positive = binary_scalar("gt", value, 0, "i1")
    return like_result(build("torch.aten.where.self", [positive, value, scaled], [value.type])[0], op)


def _view_as_type(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """view.dtype: (input, dtype): the bits of each element as another type of the same width."""
    info, wanted = tensor_info(op.operands[0]), tensor_info(op.results[0])
    if _width(info.dtype) != _width(wanted.dtype) or "i1" in (info.dtype, wanted.dtype):
        raise RefusalError(f"{info.dtype} and {wanted.dtype} have different widths")
    return [reinterpret_bits(op.operands[0], op.results[0].type)]


def _width(dtype: str) -> int:
    return int(dtype.lstrip("abcdefghijklmnopqrstuvwxyz"))


@dataclass(frozen=True)
class DecomposeElementwise(TablePass):
    """Spells out activations and tests of numbers. Precondition: none."""

    name: ClassVar[str] = "decompose-elementwise"
    rules: ClassVar[Mapping[str, Rule]] = {
        "torch.aten.isfinite": _is_finite,
        "torch.aten.isnan": _is_nan,
        "torch.aten.neg": _negative,
        "torch.aten.trunc": _truncate,
        "torch.aten.fix": _truncate,
        "torch.aten.frac": _fraction,
        "torch.aten.float_power.Tensor_Scalar": _float_power,
        "torch.aten.pow.Tensor_Scalar": _power,
        "torch.aten.sign": _sign,
        "torch.aten.sgn": _sign,
        "torch.aten.softplus": _softplus,
        "torch.aten.mish": _mish,
        "torch.aten.elu": _elu,
        "torch.aten.selu": _selu,
        "torch.aten.celu": _celu,
        "torch.aten.leaky_relu": _leaky_relu,
        "torch.aten.log_sigmoid": _log_sigmoid,
        "torch.aten.addcmul": _addcmul,
        "torch.aten.addcdiv": _addcdiv,
        "torch.aten.lerp.Scalar": _lerp,
        "torch.aten.lerp.Tensor": _lerp,
        "torch.aten.prelu": _prelu,
        "torch.aten.gelu": _gelu,
        "torch.aten.view.dtype": _view_as_type,
    }
