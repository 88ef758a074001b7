"""Raises arithmetic of numbers, sizes above all, to arith on i64, f64 and i1.

An op whose operands are constants gives a constant, the size of a static dim too, so that the rules after this pass
know it. Division and remainder of ints round down, as Python's do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.dialect import scalar_builder as scalar
from lowerkit.dialect.linalg_builder import constant_index
from lowerkit.dialect.types import is_float
from lowerkit.mlir import arith, ir, tensor
from lowerkit.mlir import math as math_dialect
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.core.numbers import constant_like, f64, from_scalar, i64, scalar_as, to_scalar
from lowerkit.passes.raising.torch_dialect.table_pass import Rule, TablePass
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    RefusalError,
    constant_int,
    defining_op,
    int_list,
    int_of,
    is_tensor,
    like_result,
    list_items,
    tensor_info,
    to_builtin,
    try_number,
)
from lowerkit.passes.source_location import op_name

_Number = float | int


@dataclass(frozen=True)
class Arithmetic:
    """What an op computes: of Python numbers, and of scalars of one type."""

    known: Callable[..., _Number]
    built: Callable[..., ir.Value]
    in_floats: bool = False


def _floor_divide(left: ir.Value, right: ir.Value) -> ir.Value:
    if is_float(left.type):
        return math_dialect.FloorOp(arith.DivFOp(left, right).result).result
    return arith.FloorDivSIOp(left, right).result


def _remainder(left: ir.Value, right: ir.Value) -> ir.Value:
    return scalar.subtract(left, scalar.multiply(_floor_divide(left, right), right))


def _negate(value: ir.Value) -> ir.Value:
    return arith.NegFOp(value).result if is_float(value.type) else scalar.subtract(scalar.constant(0, i64()), value)


def _absolute(value: ir.Value) -> ir.Value:
    return scalar.maximum(value, _negate(value))


def _comparison(predicate: str) -> Callable[[ir.Value, ir.Value], ir.Value]:
    def compare(left: ir.Value, right: ir.Value) -> ir.Value:
        # Only NaN is unlike itself, and "ne" of floats is ordered.
        return (
            scalar.negate(scalar.compare("eq", left, right))
            if predicate == "ne"
            else scalar.compare(predicate, left, right)
        )

    return compare


_ARITHMETIC = {
    "add": Arithmetic(lambda a, b: a + b, scalar.add),
    "sub": Arithmetic(lambda a, b: a - b, scalar.subtract),
    "mul": Arithmetic(lambda a, b: a * b, scalar.multiply),
    "floordiv": Arithmetic(lambda a, b: a // b, _floor_divide),
    "remainder": Arithmetic(lambda a, b: a % b, _remainder),
    "neg": Arithmetic(lambda a: -a, _negate),
    "abs": Arithmetic(lambda a: max(a, -a), _absolute),
    "max": Arithmetic(max, scalar.maximum),
    "min": Arithmetic(min, scalar.minimum),
    "div": Arithmetic(lambda a, b: a / b, scalar.divide, in_floats=True),
    "pow": Arithmetic(lambda a, b: a**b, lambda a, b: math_dialect.PowFOp(a, b).result, in_floats=True),
    "sqrt": Arithmetic(math.sqrt, scalar.sqrt, in_floats=True),
    "log": Arithmetic(math.log, scalar.log, in_floats=True),
    "ceil": Arithmetic(math.ceil, scalar.ceil, in_floats=True),
    "floor": Arithmetic(math.floor, scalar.floor, in_floats=True),
    "eq": Arithmetic(lambda a, b: a == b, _comparison("eq")),
    "ne": Arithmetic(lambda a, b: a != b, _comparison("ne")),
    "lt": Arithmetic(lambda a, b: a < b, _comparison("lt")),
    "le": Arithmetic(lambda a, b: a <= b, _comparison("le")),
    "gt": Arithmetic(lambda a, b: a > b, _comparison("gt")),
    "ge": Arithmetic(lambda a, b: a >= b, _comparison("ge")),
    "__and__": Arithmetic(lambda a, b: a & b, scalar.both),
    "__or__": Arithmetic(lambda a, b: a | b, scalar.either),
    "__not__": Arithmetic(lambda a: not a, scalar.negate),
}
_OVERLOADS = {
    **dict.fromkeys(("add", "sub", "mul", "eq", "ne", "lt", "le"), ("int", "float", "int_float", "float_int")),
    **dict.fromkeys(("gt", "ge", "div", "pow", "floordiv"), ("int", "float", "int_float", "float_int")),
    **dict.fromkeys(("remainder", "neg", "sqrt", "log", "ceil", "floor"), ("int", "float")),
}


def _compute(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """Computes in ints where all operands are ints, in bools of bools, else in f64."""
    kind = _ARITHMETIC[op_name(op).split(".")[2]]
    numbers = [try_number(operand) for operand in op.operands]
    known = [number for number in numbers if number is not None]
    if len(known) == len(numbers):
        try:
            return [constant_like(kind.known(*known), op.results[0].type)]
        except (ArithmeticError, ValueError) as error:
            raise RefusalError(f"the number cannot be computed: {error}") from None
    values = [to_scalar(operand) for operand in op.operands]
    types = {str(value.type) for value in values}
    if kind.in_floats or len(types) > 1:
        values = [scalar_as(value, f64()) for value in values]
    return [_as_result(kind.built(*values), op)]


def _as_result(value: ir.Value, op: ir.Operation) -> ir.Value:
    wanted = {"!torch.int": i64(), "!torch.float": f64()}.get(str(op.results[0].type))
    return from_scalar(value if wanted is None else scalar_as(value, wanted))


def _convert(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """Int, Float, Bool of numbers: floats are cut off toward zero, a bool says whether the number is not zero."""
    number = try_number(op.operands[0])
    if number is not None:
        return [constant_like(number, op.results[0].type)]
    value = to_scalar(op.operands[0])
    if str(op.results[0].type) == "!torch.bool":
        return [from_scalar(scalar.is_nonzero(value))]
    return [_as_result(value, op)]


def _size(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """size.int: (input, dim)."""
    info = tensor_info(op.operands[0])
    axis = info.normalized_axis(int_of(op.operands[1]))
    return [_extent(op.operands[0], axis)]


def _extent(value: ir.Value, axis: int) -> ir.Value:
    known = tensor_info(value).shape[axis]
    if known is not None:
        return constant_int(known)
    return from_scalar(tensor.DimOp(to_builtin(value), constant_index(axis)).result)


def _sizes(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """size: (input): a list."""
    value = op.operands[0]
    return [int_list([_extent(value, axis) for axis in range(tensor_info(value).rank)])]


def _element_count(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """numel: (input)."""
    value = op.operands[0]
    known = [size for size in tensor_info(value).shape if size is not None]
    total = scalar.constant(math.prod(known), i64())
    for axis, size in enumerate(tensor_info(value).shape):
        if size is None:
            dim = tensor.DimOp(to_builtin(value), constant_index(axis)).result
            total = scalar.multiply(scalar.convert(dim, i64()), total)
    return [constant_int(math.prod(known)) if len(known) == tensor_info(value).rank else from_scalar(total)]


def _rank(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """dim: (input)."""
    return [constant_int(tensor_info(op.operands[0]).rank)]


def _length(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """len.t: (list)."""
    return [constant_int(len(list_items(op.operands[0])))]


def _item_of_list(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """__getitem__.t: (list, position)."""
    item = list_items(op.operands[0])[int_of(op.operands[1])]
    return like_result(item, op) if is_tensor(item) else [item]


def _unpack(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """ListUnpack of a list that is spelled out."""
    items = list_items(op.operands[0])
    if len(items) != len(op.results):
        raise RefusalError(f"a list of {len(items)} for {len(op.results)} values")
    return [like_result(item, op, index)[0] if is_tensor(item) else item for index, item in enumerate(items)]


def _element(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """item and Int, Float, Bool of a tensor of one element, as a number."""
    source = defining_op(op.operands[0], "torch.prim.NumToTensor.Scalar")
    if source is not None:
        number = try_number(source.operands[0])
        if number is not None:
            return [constant_like(number, op.results[0].type)]
        value = to_scalar(source.operands[0])
    else:
        info = tensor_info(op.operands[0])
        read = to_builtin(op.operands[0])
        value = tensor.ExtractOp(read, [constant_index(0)] * info.rank).result
        if info.dtype in ("i1", "ui8", "ui16", "ui32"):
            value = arith.ExtUIOp(i64(), value).result
    if str(op.results[0].type) == "!torch.bool":
        return [from_scalar(scalar.is_nonzero(value))]
    if str(op.results[0].type) not in ("!torch.int", "!torch.float"):
        raise RefusalError(f"an element as {op.results[0].type}")
    return [_as_result(value, op)]


@dataclass(frozen=True)
class RaiseNumbers(TablePass):
    """Raises numbers. Precondition: none; a number that is no int, float or bool is refused."""

    name: ClassVar[str] = "raise-numbers"
    rules: ClassVar[Mapping[str, Rule]] = {
        **{
            f"torch.aten.{name}.{overload}": _compute
            for name, overloads in _OVERLOADS.items()
            for overload in overloads
        },
        **{f"torch.aten.{name}": _compute for name in ("add", "sub", "mul", "div", "neg.Scalar", "ceil.Scalar")},
        **{f"torch.aten.{name}.bool": _compute for name in ("eq", "ne", "__and__", "__or__")},
        "torch.aten.__not__": _compute,
        **{f"torch.prim.{name}.int": _compute for name in ("max", "min")},
        "torch.prim.abs.Scalar": _compute,
        **{
            f"torch.aten.{name}.{kind}": _convert
            for name in ("Int", "Float", "Bool")
            for kind in ("int", "float", "bool", "Scalar")
        },
        "torch.aten.size.int": _size,
        "torch.aten.size": _sizes,
        "torch.aten.numel": _element_count,
        "torch.aten.dim": _rank,
        "torch.aten.len.t": _length,
        "torch.aten.__getitem__.t": _item_of_list,
        "torch.prim.ListUnpack": _unpack,
        **{
            f"torch.aten.{name}": _element
            for name in ("item", "Int.Tensor", "Float.Tensor", "Bool.Tensor", "IntImplicit", "FloatImplicit")
        },
        "torch.aten.ScalarImplicit": _element,
        "torch.aten._local_scalar_dense": _element,
    }
