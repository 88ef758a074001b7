"""Computes compound elementwise ops of 16-bit floats in f32, and rounds once.

PyTorch's CPU kernels load bf16 and f16, compute an activation or an op with a Python scalar in f32, and round the
result. torch-mlir would round after each step inside the op, and round the scalar. A sum, product or quotient of two
tensors needs nothing: f32 has more than twice the digits of bf16 and f16, so that rounding once or twice is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.torch_dialect.table_pass import Rule, TablePass
from lowerkit.passes.raising.torch_dialect.torch_build import cast
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    LOW_PRECISION_FLOATS,
    NotConcernedError,
    build,
    is_tensor,
    like_result,
    tensor_info,
)
from lowerkit.passes.source_location import op_name

_COMPOUND = (
    *("gelu", "silu", "sigmoid", "hardsigmoid", "hardswish", "softplus", "mish", "elu", "selu", "celu", "log_sigmoid"),
    *("leaky_relu", "prelu", "glu", "addcmul", "addcdiv", "lerp.Scalar", "lerp.Tensor", "logaddexp", "hardtanh"),
    *("softshrink", "hardshrink", "tanhshrink", "softsign", "rrelu"),
    *("mul.Scalar", "add.Scalar", "sub.Scalar", "rsub.Scalar", "div.Scalar", "pow.Tensor_Scalar", "pow.Scalar"),
    *("pow.Tensor_Tensor", "clamp", "clamp_min", "clamp_max", "reciprocal", "rsqrt", "remainder.Scalar"),
    *("tanh", "exp", "expm1", "log", "log1p", "erf", "sin", "cos", "tan", "atan", "sqrt", "exp2", "log2", "log10"),
    *("fmod.Tensor", "fmod.Scalar", "remainder.Tensor", "atan2", "div.Tensor_mode", "cosh", "sinh"),
    *("floor_divide", "floor_divide.Scalar", "div.Scalar_mode", "threshold"),
)


def _widen(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    info = tensor_info(op.results[0])
    if info.dtype not in LOW_PRECISION_FLOATS:
        raise NotConcernedError(f"{info} is not a 16-bit float")
    operands = [
        cast(operand, "f32") if is_tensor(operand) and tensor_info(operand).dtype in LOW_PRECISION_FLOATS else operand
        for operand in op.operands
    ]
    wide = build(op_name(op), operands, [info.with_dtype("f32").torch_type()])[0]
    return like_result(cast(wide, info.dtype), op)


@dataclass(frozen=True)
class WidenElementwise(TablePass):
    """Computes compound elementwise ops of f16 and bf16 in f32. Precondition: none; runs before they are decomposed."""

    name: ClassVar[str] = "widen-elementwise"
    rules: ClassVar[Mapping[str, Rule]] = {f"torch.aten.{name}": _widen for name in _COMPOUND}
