"""Spells out division that rounds, and its remainders: exactly, of integers and of floats.

torch-mlir goes through float64 for integers, which has too few digits for int64, and takes the sign of a remainder from
the wrong operand where the divisor is negative. It rounds the quotient of floats: ``1.0 // 0.1`` would be 10, where the
divisor is a little more than a tenth. PyTorch starts from ``fmod``, which is exact, and so do the rules here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.torch_dialect.table_pass import Rule, TablePass
from lowerkit.passes.raising.torch_dialect.torch_build import (
    binary,
    binary_scalar,
    broadcast_shape,
    cast,
    scalar_tensor,
    unary,
)
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    NotConcernedError,
    RefusalError,
    build,
    constant_string,
    int_of,
    is_none,
    is_tensor,
    like_result,
    number_of,
    string_of,
    tensor_info,
)


@dataclass(frozen=True)
class _Truncated:
    """``a / b`` rounded towards zero, what remains, and where rounding down would give one less."""

    quotient: ir.Value
    remainder: ir.Value
    is_above_floor: ir.Value


def _truncated(op: ir.Operation) -> _Truncated:
    value, divisor = op.operands[0], op.operands[1]
    mode = constant_string("trunc")
    if is_tensor(divisor):
        dtype = tensor_info(op.results[0]).dtype
        value, divisor = cast(value, dtype), cast(divisor, dtype)
        left, right = tensor_info(value), tensor_info(divisor)
        kind = left.with_shape(broadcast_shape(left.shape, right.shape)).torch_type()
        quotient = build("torch.aten.div.Tensor_mode", [value, divisor, mode], [kind])[0]
        rest = binary("sub", value, binary("mul", quotient, divisor))
        # The signs differ where exactly one of the two is negative.
        signs = binary("bitwise_xor", binary_scalar("lt", rest, 0, "i1"), binary_scalar("lt", divisor, 0, "i1"), "i1")
    else:
        number = int_of(divisor)
        quotient = build("torch.aten.div.Scalar_mode", [value, divisor, mode], [value.type])[0]
        rest = binary("sub", value, binary_scalar("mul", quotient, number))
        signs = binary_scalar("lt" if number > 0 else "gt", rest, 0, "i1")
    apart = binary("bitwise_and", signs, binary_scalar("ne", rest, 0, "i1"), "i1")
    return _Truncated(quotient, rest, apart)


def _where(condition: ir.Value, then: ir.Value, otherwise: ir.Value) -> ir.Value:
    return build("torch.aten.where.self", [condition, then, otherwise], [otherwise.type])[0]


@dataclass(frozen=True)
class _Modulo:
    """Two floats of one type, ``fmod`` of them, and where its sign is not that of the divisor."""

    value: ir.Value
    divisor: ir.Value
    remainder: ir.Value
    has_other_sign: ir.Value


def _modulo(op: ir.Operation) -> _Modulo:
    dtype = tensor_info(op.results[0]).dtype
    value, divisor = op.operands[0], op.operands[1]
    value = cast(value, dtype)
    divisor = cast(divisor, dtype) if is_tensor(divisor) else scalar_tensor(float(number_of(divisor)), dtype)
    shape = broadcast_shape(tensor_info(value).shape, tensor_info(divisor).shape)
    kind = tensor_info(value).with_shape(shape).torch_type()
    # Of magnitudes, torch-mlir's remainder is `arith.remf`, which is exact; its sign is that of the value, even of 0.
    size = build("torch.aten.remainder.Tensor", [unary("abs", value), unary("abs", divisor)], [kind])[0]
    signed = _where(binary_scalar("lt", value, 0.0, "i1"), unary("neg", size), size)
    remainder = _where(binary_scalar("eq", size, 0.0, "i1"), binary_scalar("mul", value, 0.0), signed)
    signs = binary(
        "bitwise_xor", binary_scalar("lt", remainder, 0.0, "i1"), binary_scalar("lt", divisor, 0.0, "i1"), "i1"
    )
    apart = binary("bitwise_and", signs, binary_scalar("ne", remainder, 0.0, "i1"), "i1")
    return _Modulo(value, divisor, remainder, apart)


def _divide_floats(op: ir.Operation) -> Sequence[ir.Value]:
    """PyTorch's ``div_floor_floating``: what the remainder leaves, divided, is whole but for rounding."""
    parts = _modulo(op)
    plain = binary("div", parts.value, parts.divisor)
    quotient = binary("div", binary("sub", parts.value, parts.remainder), parts.divisor)
    quotient = _where(parts.has_other_sign, binary_scalar("sub", quotient, 1.0), quotient)
    down = unary("floor", quotient)
    up = binary_scalar("gt", binary("sub", quotient, down), 0.5, "i1")
    whole = _where(up, binary_scalar("add", down, 1.0), down)
    # A quotient of 0 has the sign of the exact one.
    zero = binary_scalar("mul", plain, 0.0)
    whole = _where(binary_scalar("ne", quotient, 0.0, "i1"), whole, zero)
    by_zero = binary_scalar("eq", parts.divisor, 0.0, "i1")
    return like_result(_where(by_zero, plain, whole), op)


def _floor_divide(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """floor_divide: (a, b); div.Tensor_mode, div.Scalar_mode: (a, b, rounding_mode)."""
    info = tensor_info(op.results[0])
    if len(op.operands) > 2 and (is_none(op.operands[2]) or string_of(op.operands[2]) != "floor"):
        raise NotConcernedError("another rounding")
    if info.is_float:
        return _divide_floats(op)
    if info.dtype == "ui8":
        raise RefusalError("a division of unsigned integers: promote-operands comes first")
    parts = _truncated(op)
    return like_result(binary("sub", parts.quotient, cast(parts.is_above_floor, info.dtype)), op)


def _remainder(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """remainder: (a, b), with the sign of b."""
    info = tensor_info(op.results[0])
    if info.is_float:
        raise NotConcernedError("torch-mlir starts from `arith.remf`, which is exact")
    if info.dtype == "ui8":
        raise RefusalError("a division of unsigned integers: promote-operands comes first")
    parts = _truncated(op)
    divisor = op.operands[1]
    if is_tensor(divisor):
        raised = binary("add", parts.remainder, cast(divisor, info.dtype))
    else:
        raised = binary_scalar("add", parts.remainder, int_of(divisor))
    return like_result(_where(parts.is_above_floor, raised, parts.remainder), op)


def _truncated_remainder(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """fmod: (a, b), with the sign of a: of integers, what is left by the quotient rounded towards zero."""
    info = tensor_info(op.results[0])
    if info.is_float:
        return like_result(_modulo(op).remainder, op)
    return like_result(_truncated(op).remainder, op)


@dataclass(frozen=True)
class DecomposeDivisions(TablePass):
    """Spells out rounded divisions and remainders. Precondition: operands of one type (promote-operands)."""

    name: ClassVar[str] = "decompose-divisions"
    rules: ClassVar[Mapping[str, Rule]] = {
        "torch.aten.div.Tensor_mode": _floor_divide,
        "torch.aten.div.Scalar_mode": _floor_divide,
        "torch.aten.floor_divide": _floor_divide,
        "torch.aten.floor_divide.Scalar": _floor_divide,
        "torch.aten.remainder.Tensor": _remainder,
        "torch.aten.remainder.Scalar": _remainder,
        "torch.aten.fmod.Tensor": _truncated_remainder,
        "torch.aten.fmod.Scalar": _truncated_remainder,
    }
