"""Spells out limits, thresholds and equality as comparisons and choices that keep NaN where PyTorch keeps it.

``where(x < low, low, x)`` gives x for a NaN, and is one instruction (``maxps`` with x second) all the same. torch-mlir
chooses the limit where the comparison is unordered, and takes ``x == x`` for true.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.torch_dialect.table_pass import Rule, TablePass
from lowerkit.passes.raising.torch_dialect.torch_build import binary, binary_scalar, cast
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    NotConcernedError,
    build,
    constant_number,
    is_none,
    like_result,
    number_of,
    tensor_info,
)
from lowerkit.passes.source_location import op_name


def _number_where(condition: ir.Value, number: float, otherwise: ir.Value) -> ir.Value:
    operands = [condition, constant_number(number), otherwise]
    return build("torch.aten.where.ScalarSelf", operands, [otherwise.type])[0]


def _tensor_where(condition: ir.Value, then: ir.Value, otherwise: ir.Value, kind: ir.Type) -> ir.Value:
    return build("torch.aten.where.self", [condition, then, otherwise], [kind])[0]


def _limited(value: ir.Value, low: float | None, high: float | None) -> ir.Value:
    """``min(max(value, low), high)``; everything is NaN where a limit is."""
    if any(limit is not None and math.isnan(limit) for limit in (low, high)):
        return binary_scalar("mul", value, math.nan)
    if low is not None:
        value = _number_where(binary_scalar("lt", value, low, "i1"), low, value)
    if high is not None:
        value = _number_where(binary_scalar("gt", value, high, "i1"), high, value)
    return value


def _clamp(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """clamp, hardtanh: (input, low, high)."""
    low, high = (None if is_none(limit) else number_of(limit) for limit in list(op.operands)[1:3])
    return like_result(_limited(op.operands[0], low, high), op)


def _clamp_min(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    return like_result(_limited(op.operands[0], number_of(op.operands[1]), None), op)


def _clamp_max(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    return like_result(_limited(op.operands[0], None, number_of(op.operands[1])), op)


def _relu(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """relu: a zero keeps its sign, as in eager, where torch-mlir's choice gives +0."""
    return like_result(_limited(op.operands[0], 0.0 if tensor_info(op.operands[0]).is_float else 0, None), op)


def _relu6(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    is_float = tensor_info(op.operands[0]).is_float
    return like_result(_limited(op.operands[0], 0.0 if is_float else 0, 6.0 if is_float else 6), op)


def _chosen(name: str, left: ir.Value, right: ir.Value) -> ir.Value:
    """The larger or smaller of two of one type; NaN where either is NaN."""
    wins = binary("gt" if name == "maximum" else "lt", left, right, "i1")
    info = tensor_info(wins).with_dtype(tensor_info(left).dtype)
    chosen = _tensor_where(wins, left, right, info.torch_type())
    if not info.is_float:
        return chosen
    return _tensor_where(binary("ne", left, left, "i1"), left, chosen, chosen.type)


def _extreme(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """maximum, minimum: (a, b); torch-mlir's choice forgets a NaN of the first."""
    info = tensor_info(op.results[0])
    if not info.is_float:
        raise NotConcernedError("integers are lowered well")
    name = "maximum" if "max" in op_name(op) else "minimum"
    return like_result(_chosen(name, cast(op.operands[0], info.dtype), cast(op.operands[1], info.dtype)), op)


def _clamp_by_one_tensor(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """clamp_min.Tensor, clamp_max.Tensor: (input, limit), from ONNX models; torch.export's are decomposed."""
    dtype = tensor_info(op.results[0]).dtype
    name = "maximum" if "clamp_min" in op_name(op) else "minimum"
    return like_result(_chosen(name, cast(op.operands[0], dtype), cast(op.operands[1], dtype)), op)


def _clamp_by_tensors(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """clamp.Tensor: (input, low, high), either of which may be None."""
    value, low, high = op.operands
    dtype = tensor_info(op.results[0]).dtype
    value = cast(value, dtype)
    if not is_none(low):
        value = _chosen("maximum", value, cast(low, dtype))
    if not is_none(high):
        value = _chosen("minimum", value, cast(high, dtype))
    return like_result(value, op)


def _threshold(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """threshold: (input, threshold, value): ``value if x <= threshold else x``."""
    value, limit, number = op.operands[0], number_of(op.operands[1]), number_of(op.operands[2])
    return like_result(_number_where(binary_scalar("le", value, limit, "i1"), number, value), op)


def _threshold_backward(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """threshold_backward: (gradient, input, threshold): ``0 if x <= threshold else gradient``."""
    gradient, value, limit = op.operands
    dtype = tensor_info(op.results[0]).dtype
    below = binary_scalar("le", cast(value, dtype), number_of(limit), "i1")
    zero = 0.0 if tensor_info(op.results[0]).is_float else 0
    operands = [below, constant_number(zero), cast(gradient, dtype)]
    return build("torch.aten.where.ScalarSelf", operands, [op.results[0].type])


def _hardshrink(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """hardshrink: (input, lambd): zero within lambda."""
    value, amount = op.operands[0], float(number_of(op.operands[1]))
    inside = binary(
        "bitwise_and", binary_scalar("ge", value, -amount, "i1"), binary_scalar("le", value, amount, "i1"), "i1"
    )
    return like_result(_number_where(inside, 0.0, value), op)


def _softshrink(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """softshrink: (input, lambd): towards zero by lambda, and zero within it. torch-mlir has the sign wrong."""
    value, amount = op.operands[0], float(number_of(op.operands[1]))
    above, below = binary_scalar("gt", value, amount, "i1"), binary_scalar("lt", value, -amount, "i1")
    inside = binary_scalar("mul", value, 0.0)  # NaN for NaN
    low = _tensor_where(below, binary_scalar("add", value, amount), inside, value.type)
    return like_result(_tensor_where(above, binary_scalar("sub", value, amount), low, value.type), op)


def _equal(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """``not (a != b)``: torch-mlir folds ``x == x``, which is false for NaN."""
    left, right = op.operands
    if not tensor_info(left).is_float:
        raise NotConcernedError("an integer equals itself")
    return like_result(build("torch.aten.logical_not", [binary("ne", left, right, "i1")], [op.results[0].type])[0], op)


@dataclass(frozen=True)
class DecomposeLimits(TablePass):
    """Spells out limits, thresholds and equality. Precondition: operands of one type (promote-operands)."""

    name: ClassVar[str] = "decompose-limits"
    rules: ClassVar[Mapping[str, Rule]] = {
        "torch.aten.clamp": _clamp,
        "torch.aten.hardtanh": _clamp,
        "torch.aten.clamp_min": _clamp_min,
        "torch.aten.clamp_max": _clamp_max,
        "torch.aten.clamp.Tensor": _clamp_by_tensors,
        "torch.aten.clamp_min.Tensor": _clamp_by_one_tensor,
        "torch.aten.clamp_max.Tensor": _clamp_by_one_tensor,
        "torch.aten.relu": _relu,
        "torch.aten.relu6": _relu6,
        "torch.aten.maximum": _extreme,
        "torch.aten.minimum": _extreme,
        "torch.aten.max.other": _extreme,
        "torch.aten.min.other": _extreme,
        "torch.aten.threshold": _threshold,
        "torch.aten.threshold_backward": _threshold_backward,
        "torch.aten.hardshrink": _hardshrink,
        "torch.aten.softshrink": _softshrink,
        "torch.aten.eq.Tensor": _equal,
    }
