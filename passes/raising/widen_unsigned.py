"""Computes elementwise ops on unsigned bytes in wider types: below, integers have no sign and are taken for signed.

An op that gives bytes is computed in 32-bit integers and cut off, which wraps as PyTorch does; one that gives another
type gets its bytes converted to that type first, which is exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.table_pass import Rule, TablePass
from lowerkit.passes.raising.torch_build import cast, concatenate, unsqueeze
from lowerkit.passes.raising.torch_ir import (
    NotConcernedError,
    build,
    constant_int,
    int_of,
    is_tensor,
    like_result,
    list_items,
    number_of,
    tensor_info,
)
from lowerkit.passes.source_location import op_name

_BYTE = "ui8"

_OF_SIGN = (
    *("div.Tensor", "div.Scalar", "div.Tensor_mode", "div.Scalar_mode", "floor_divide", "floor_divide.Scalar"),
    *("remainder.Tensor", "remainder.Scalar", "fmod.Tensor", "fmod.Scalar", "abs", "sign", "sgn"),
    *("add.Tensor", "add.Scalar", "sub.Tensor", "sub.Scalar", "rsub.Scalar", "mul.Tensor", "mul.Scalar"),
    *("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar", "square", "atan2", "lerp.Scalar", "lerp.Tensor"),
    *("addcmul", "addcdiv", "reciprocal", "rsqrt", "sqrt", "exp", "exp2", "expm1", "log", "log1p", "log2", "log10"),
    *("sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "erf", "sigmoid"),
)
_MIXED = (
    *("bitwise_and.Tensor", "bitwise_or.Tensor", "bitwise_xor.Tensor", "maximum", "minimum", "where.self"),
    *("where.ScalarOther", "where.ScalarSelf", "clamp", "clamp.Tensor", "masked_fill.Scalar", "masked_fill.Tensor"),
)
"""Bytes alone are computed rightly; they may give another type, that of the other operand."""
_COMPARISONS = tuple(f"{name}.{kind}" for name in ("gt", "ge", "lt", "le", "eq", "ne") for kind in ("Tensor", "Scalar"))


def _is_bytes(value: ir.Value) -> bool:
    return is_tensor(value) and tensor_info(value).dtype == _BYTE


def _converted(op: ir.Operation, wide: str) -> Sequence[ir.Value]:
    """Computes an op with its bytes in another type, and its result too if it is bytes."""
    info = tensor_info(op.results[0])
    operands = [cast(operand, wide) if _is_bytes(operand) else operand for operand in op.operands]
    computed = info.with_dtype(wide) if info.dtype == _BYTE else info
    result = build(op_name(op), operands, [computed.torch_type()])[0]
    return like_result(cast(result, info.dtype), op)


def _require_bytes(op: ir.Operation) -> None:
    if not any(_is_bytes(operand) for operand in op.operands):
        raise NotConcernedError("no operand is of bytes")


def _widen(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    _require_bytes(op)
    dtype = tensor_info(op.results[0]).dtype
    return _converted(op, "si32" if dtype == _BYTE else dtype)


def _widen_mixed(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    _require_bytes(op)
    dtype = tensor_info(op.results[0]).dtype
    if dtype == _BYTE:
        raise NotConcernedError("bytes give bytes")
    return _converted(op, dtype)


def _widen_comparison(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    _require_bytes(op)
    other = op.operands[1]
    if not is_tensor(other):
        number = number_of(other)
        if isinstance(number, float):
            return _converted(op, "f32")
        # PyTorch turns the number into a byte first, whatever is cut off.
        wide = cast(op.operands[0], "si32")
        return build(op_name(op), [wide, constant_int(number % 256)], [op.results[0].type])
    dtypes = {tensor_info(operand).dtype for operand in op.operands} - {_BYTE, "i1"}
    if not dtypes:
        raise NotConcernedError("bytes are compared with bytes")
    (dtype,) = dtypes
    return _converted(op, "si16" if dtype == "si8" else dtype)


def _widen_parts(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """cat, stack: (tensors, dim)."""
    parts, dim = list_items(op.operands[0]), op.operands[1]
    info = tensor_info(op.results[0])
    if info.dtype == _BYTE or not any(_is_bytes(part) for part in parts):
        raise NotConcernedError("no bytes become another type")
    axis = info.normalized_axis(int_of(dim))
    wide = [cast(part, info.dtype) for part in parts]
    if op_name(op) == "torch.aten.stack":
        wide = [unsqueeze(part, axis) for part in wide]
    return like_result(concatenate(wide, axis), op)


@dataclass(frozen=True)
class WidenUnsigned(TablePass):
    """Computes ops on unsigned bytes, whose sign would matter, in wider types. Precondition: none."""

    name: ClassVar[str] = "widen-unsigned"
    rules: ClassVar[Mapping[str, Rule]] = {
        **{f"torch.aten.{name}": _widen for name in _OF_SIGN},
        **{f"torch.aten.{name}": _widen_mixed for name in _MIXED},
        **{f"torch.aten.{name}": _widen_comparison for name in _COMPARISONS},
        "torch.aten.cat": _widen_parts,
        "torch.aten.stack": _widen_parts,
    }
