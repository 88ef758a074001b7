"""Reads arithmetic of the torch dialect as patterns want to see it, however a model spelled it.

Vocabulary. A *scalar* is a constant number: a Python number, or a tensor of one element whose value is known (ONNX has
no other kind). A *product* is a tree of multiplications, divisions by scalars, small whole powers and negations,
flattened into its factors that are no scalars and one scalar coefficient; so that ``0.5 * x * (1 + y)`` reads the same
in every order and grouping.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.torch_dialect.dead_ops import erase_unread
from lowerkit.passes.raising.torch_dialect.scalars import as_element, splat
from lowerkit.passes.raising.torch_dialect.torch_build import of_type_of
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    LOW_PRECISION_FLOATS,
    RefusalError,
    axes_of,
    bool_of,
    defining_op,
    int_of,
    is_tensor,
    tensor_info,
    try_number,
)

_SHAPE_ONLY = (
    "torch.aten.view",
    "torch.aten.reshape",
    "torch.aten.unsqueeze",
    "torch.aten.squeeze.dim",
    "torch.aten.expand",
    "torch.aten.broadcast_to",
)
_FILLS = {"torch.aten.full": 1, "torch.aten.full_like": 1, "torch.aten.new_full": 2}
"""Ops that fill a tensor with a number, and the operand that holds it."""


class Reader:
    """Reads values of one module; knows the weights, for the scalars among them."""

    def __init__(self, context: PassContext) -> None:
        self._weights = context.weights

    def scalar(self, value: ir.Value) -> float | None:
        """Returns the number that ``value`` is, if it is a constant scalar."""
        number = try_number(value)
        if number is not None:
            return float(number)
        if not is_tensor(value):
            return None
        op = defining_op(value)
        if op is None:
            return None
        if op.name in _SHAPE_ONLY or op.name == "torch.prim.NumToTensor.Scalar":
            return self.scalar(op.operands[0])
        if op.name == "torch.aten.to.dtype":
            return as_element(self.scalar(op.operands[0]), tensor_info(value).dtype)
        if op.name in _FILLS:
            return as_element(self.scalar(op.operands[_FILLS[op.name]]), tensor_info(value).dtype)
        if op.name == "torch.vtensor.literal":
            return splat(op.attributes["value"])
        if op.name == "torch_c.from_builtin_tensor":
            return self._builtin_scalar(op.operands[0])
        return None

    def _builtin_scalar(self, value: ir.Value) -> float | None:
        op = defining_op(value, "lk.weight", "arith.constant")
        if op is None:
            return None
        if op.name == "arith.constant":
            return splat(op.attributes["value"])
        if math.prod(ir.RankedTensorType(value.type).shape) != 1:
            return None
        symbol = ir.StringAttr(op.attributes["symbol"]).value
        if not self._weights.has_data(symbol):
            return None
        array = self._weights.get(symbol)
        return float(np.asarray(array).astype(np.float64).reshape(()))

    # Arithmetic.

    def sum_terms(self, value: ir.Value) -> tuple[list[ir.Value], float] | None:
        """Returns the two terms of an addition: those that are no scalars, and the sum of the others."""
        op = defining_op(value, "torch.aten.add.Tensor", "torch.aten.add.Scalar")
        if op is None or self.scalar(op.operands[2]) != 1:
            return None
        terms: list[ir.Value] = []
        constant = 0.0
        for operand in op.operands[:2]:
            number = self.scalar(operand)
            if number is None:
                terms.append(operand)
            else:
                constant += number
        return terms, constant

    def plus_scalar(self, value: ir.Value) -> tuple[ir.Value, float] | None:
        """Returns x and c of ``x + c``."""
        found = self.sum_terms(value)
        return (found[0][0], found[1]) if found is not None and len(found[0]) == 1 else None

    def difference(self, value: ir.Value) -> tuple[ir.Value, ir.Value] | None:
        """Returns x and y of ``x - y``, both tensors."""
        op = defining_op(value, "torch.aten.sub.Tensor")
        return (op.operands[0], op.operands[1]) if op is not None and self.scalar(op.operands[2]) == 1 else None

    def product(self, value: ir.Value) -> Product:
        """Returns the factors of ``value``; a value that is no product is its own only factor."""
        op = defining_op(value)
        number = self.scalar(value)
        if number is not None:
            return Product([], number)
        if op is None:
            return Product([value], 1.0)
        match op.name:
            case "torch.aten.mul.Tensor" | "torch.aten.mul.Scalar":
                return self.product(op.operands[0]).times(self.product(op.operands[1]))
            case "torch.aten.div.Tensor" | "torch.aten.div.Scalar":
                divisor = self.scalar(op.operands[1])
                if divisor:
                    return self.product(op.operands[0]).times(Product([], 1.0 / divisor))
            case "torch.aten.neg":
                return self.product(op.operands[0]).times(Product([], -1.0))
            case "torch.aten.square":
                return self.product(op.operands[0]).power(2)
            case "torch.aten.pow.Tensor_Scalar" | "torch.aten.pow.Tensor_Tensor":
                exponent = self.scalar(op.operands[1])
                if exponent in (2.0, 3.0):
                    return self.product(op.operands[0]).power(int(exponent))
            case _:
                pass
        return Product([value], 1.0)

    def square_of(self, value: ir.Value) -> ir.Value | None:
        """Returns x of ``x * x`` or ``x ** 2``, where x may itself be a product."""
        op = defining_op(value)
        if op is None:
            return None
        if op.name == "torch.aten.mul.Tensor" and op.operands[0] == op.operands[1]:
            return op.operands[0]
        if op.name == "torch.aten.square":
            return op.operands[0]
        if op.name in ("torch.aten.pow.Tensor_Scalar", "torch.aten.pow.Tensor_Tensor"):
            return op.operands[0] if self.scalar(op.operands[1]) == 2 else None
        return None

    def reciprocal_root_of(self, value: ir.Value) -> ir.Value | None:
        """Returns x of ``rsqrt(x)``, ``1 / sqrt(x)`` or ``x ** -0.5``."""
        op = defining_op(value)
        if op is None:
            return None
        if op.name == "torch.aten.rsqrt":
            return op.operands[0]
        if op.name == "torch.aten.reciprocal":
            return self.root_of(op.operands[0])
        if op.name == "torch.aten.div.Tensor" and self.scalar(op.operands[0]) == 1:
            return self.root_of(op.operands[1])
        if op.name in ("torch.aten.pow.Tensor_Scalar", "torch.aten.pow.Tensor_Tensor"):
            return op.operands[0] if self.scalar(op.operands[1]) == -0.5 else None
        return None

    def root_of(self, value: ir.Value) -> ir.Value | None:
        """Returns x of ``sqrt(x)`` or ``x ** 0.5``."""
        op = defining_op(value)
        if op is None:
            return None
        if op.name == "torch.aten.sqrt":
            return op.operands[0]
        if op.name in ("torch.aten.pow.Tensor_Scalar", "torch.aten.pow.Tensor_Tensor"):
            return op.operands[0] if self.scalar(op.operands[1]) == 0.5 else None
        return None

    def mean_over_last(self, value: ir.Value) -> tuple[ir.Value, int] | None:
        """Returns x and n of a mean of x over its last n dims, kept with size 1."""
        op = defining_op(value, "torch.aten.mean.dim")
        if op is None:
            return None
        info = tensor_info(op.operands[0])
        try:
            axes, keep_dims = axes_of(op.operands[1], info), bool_of(op.operands[2])
        except RefusalError:
            return None
        count = len(axes)
        trailing = axes == list(range(info.rank - count, info.rank))
        same_type = tensor_info(value).dtype == info.dtype
        return (op.operands[0], count) if keep_dims and trailing and same_type else None


@dataclass(frozen=True)
class Product:
    """Factors that are no scalars, and a coefficient."""

    factors: list[ir.Value]
    coefficient: float

    def times(self, other: Product) -> Product:
        """Returns the product of both."""
        return Product([*self.factors, *other.factors], self.coefficient * other.coefficient)

    def power(self, exponent: int) -> Product:
        """Returns the product with itself, ``exponent`` times."""
        return Product(self.factors * exponent, self.coefficient**exponent)

    def without(self, factor: ir.Value) -> Product | None:
        """Returns the rest after one occurrence of ``factor``; None if there is none."""
        if factor not in self.factors:
            return None
        position = self.factors.index(factor)
        return replace(self, factors=[*self.factors[:position], *self.factors[position + 1 :]])

    def is_power_of(self, factor: ir.Value, exponent: int) -> bool:
        """Whether the factors are ``factor``, ``exponent`` times."""
        return len(self.factors) == exponent and all(each == factor for each in self.factors)


def close(found: float, wanted: float, dtype: str) -> bool:
    """Whether a constant is ``wanted``, rounded to the precision of ``dtype``.

    Tight, so that a model that means another constant keeps it: one rounding in 16 bits, the four of an expression in
    f32 and f64.
    """
    allowed = {"bf16": 2.0**-8, "f16": 2.0**-11, "f64": 4 * 2.0**-53}.get(dtype, 4 * 2.0**-24)
    return abs(found - wanted) <= allowed * abs(wanted)


def through_casts(value: ir.Value) -> ir.Value:
    """Looks through conversions between float types."""
    while (op := defining_op(value, "torch.aten.to.dtype")) is not None:
        if not (tensor_info(op.operands[0]).is_float and tensor_info(value).is_float):
            break
        value = op.operands[0]
    return value


def widened_from(value: ir.Value) -> ir.Value | None:
    """Returns the 16-bit tensor that ``value`` is the f32 copy of."""
    op = defining_op(value, "torch.aten.to.dtype")
    if op is None or tensor_info(value).dtype != "f32":
        return None
    return op.operands[0] if tensor_info(op.operands[0]).dtype in LOW_PRECISION_FLOATS else None


def only_user(value: ir.Value, *names: str) -> ir.Operation | None:
    """Returns the op that alone reads ``value``, once, if it is one of ``names``."""
    uses = list(value.uses)
    if len(uses) != 1:
        return None
    user = uses[0].owner.operation
    return user if user.name in names else None


def slice_of(value: ir.Value) -> tuple[ir.Value, int, int, int] | None:
    """Returns source, axis, start and end (within the dim) of a slice with step 1."""
    op = defining_op(value, "torch.aten.slice.Tensor")
    if op is None:
        return None
    info = tensor_info(op.operands[0])
    try:
        axis = info.normalized_axis(int_of(op.operands[1]))
        size = info.static_dim(axis)
        start = 0 if str(op.operands[2].type) == "!torch.none" else int_of(op.operands[2])
        end = size if str(op.operands[3].type) == "!torch.none" else int_of(op.operands[3])
        step = int_of(op.operands[4])
    except RefusalError:
        return None
    start, end, _ = slice(start, end).indices(size)
    return (op.operands[0], axis, start, end) if step == 1 else None


def root_ops(block: ir.Block, names: Sequence[str]) -> list[ir.Operation]:
    """Returns a snapshot of the ops called ``names``, last first: the largest pattern is met before its parts."""
    return [op.operation for op in reversed(list(block.operations)) if op.operation.name in names]


Matcher = Callable[[ir.Operation, Reader], ir.Value | None]
"""Returns the replacement of the only result of an op, built before it, or None if the pattern is not there."""


def recognize(module: ir.Module, names: Sequence[str], matcher: Matcher, context: PassContext) -> int:
    """Offers each op called ``names`` to ``matcher``; returns how often it replaced one.

    What only a replaced op has read goes with it.
    """
    reader = Reader(context)
    count = 0
    for function in module.body.operations:
        for block in function.operation.regions[0].blocks:
            for op in root_ops(block, names):
                try:
                    with module.context, ir.InsertionPoint(op), op.location:
                        value = matcher(op, reader)
                except RefusalError:
                    continue
                if value is None:
                    continue
                op.results[0].replace_all_uses_with(of_type_of(op.results[0], value))
                count += 1
            erase_unread(block)
    return count
