"""Sizes: shapes and what an ONNX graph computes from them, followed element by element.

Exporters write a reshape as Shape, Gather, Concat and arithmetic on tensors of a few integers. Here each element is a
number or an int value of the IR, so that what reads the result finds the size of a dim, not the element of a tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from lowerkit.capture.onnx.literals import literal
from lowerkit.mlir import ir
from lowerkit.passes.raising.torch_dialect.torch_build import cast, concatenate, product, unsqueeze
from lowerkit.passes.raising.torch_dialect.torch_ir import TensorInfo, build, constant_int, defining_op, try_int
from lowerkit.program.dtypes import NUMPY_DTYPES

Size: TypeAlias = int | ir.Value
"""A number, or an int value of the torch dialect."""

LARGEST_SIZES = 64
"""Tensors of so many elements at most are followed: no rank is larger."""


@dataclass(frozen=True)
class Sizes:
    """The elements of an integer or bool tensor of rank 0 or 1."""

    items: Sequence[Size]
    rank: int

    @property
    def numbers(self) -> list[int] | None:
        """The elements where all are numbers."""
        found = [item for item in self.items if isinstance(item, int)]
        return found if len(found) == len(self.items) else None

    def spread(self, count: int) -> Sequence[Size]:
        """Returns ``count`` elements: one stands for all."""
        return list(self.items) * count if len(self.items) == 1 else self.items


def tensor_of(sizes: Sizes, dtype: str) -> ir.Value:
    """Builds the tensor of an integer type, or of bools, that holds ``sizes``."""
    if sizes.numbers is not None:
        numbers = np.asarray(sizes.numbers, np.int64).reshape(() if sizes.rank == 0 else (-1,))
        return literal(numbers.astype(NUMPY_DTYPES[dtype.removeprefix("s")]), dtype)
    scalar = TensorInfo((), "si64").torch_type()
    items = [build("torch.prim.NumToTensor.Scalar", [value_of(item)], [scalar])[0] for item in sizes.items]
    if sizes.rank:
        items = [concatenate([unsqueeze(item, 0) for item in items], 0)]
    return cast(items[0], dtype)


def value_of(size: Size) -> ir.Value:
    """Returns a size as an int value."""
    return constant_int(size) if isinstance(size, int) else size


def same(left: Size, right: Size) -> bool:
    """Whether two sizes are known to be equal: one number, one value, or the size of one dim."""
    if isinstance(left, int) or isinstance(right, int) or left == right:
        return left == right
    one, other = (defining_op(size, "torch.aten.size.int") for size in (left, right))
    if one is None or other is None or one.operands[0] != other.operands[0]:
        return False
    axes = [try_int(op.operands[1]) for op in (one, other)]
    return axes[0] is not None and axes[0] == axes[1]


def add(left: Size, right: Size) -> Size | None:
    """The sum."""
    if left == 0 or right == 0:
        return right if left == 0 else left
    return _binary("add", left, right, int.__add__)


def subtract(left: Size, right: Size) -> Size | None:
    """The difference."""
    return 0 if same(left, right) else left if right == 0 else _binary("sub", left, right, int.__sub__)


def multiply(left: Size, right: Size) -> Size | None:
    """The product."""
    return product([left, right])


def divide(left: Size, right: Size) -> Size | None:
    """The quotient, cut off; None where it cannot be told whether an operand is negative."""
    if right == 0 or (isinstance(right, int) and right < 0) or _may_be_negative(left) or _may_be_negative(right):
        if isinstance(left, int) and isinstance(right, int) and right:
            return int(math.copysign(abs(left) // abs(right), left * right))
        return None
    return left if right == 1 else _binary("floordiv", left, right, int.__floordiv__)


def equal(left: Size, right: Size) -> Size | None:
    """Whether both are equal: 0, 1, or None where it depends on sizes. No size is negative."""
    if isinstance(left, int) and isinstance(right, int):
        return int(left == right)
    if same(left, right):
        return 1
    number = left if isinstance(left, int) else right
    size = right if isinstance(left, int) else left
    return 0 if isinstance(number, int) and number < 0 and not _may_be_negative(size) else None


def smaller(left: Size, right: Size) -> Size | None:
    """The minimum."""
    return _extreme("min", left, right)


def larger(left: Size, right: Size) -> Size | None:
    """The maximum."""
    return _extreme("max", left, right)


ARITHMETIC: dict[str, Callable[[Size, Size], Size | None]] = {
    "Add": add,
    "Sub": subtract,
    "Mul": multiply,
    "Div": divide,
    "Equal": equal,
    "Min": smaller,
    "Max": larger,
}
"""ONNX operators on two sizes; None where the result is not followed."""


def _extreme(name: str, left: Size, right: Size) -> Size | None:
    if same(left, right):
        return left
    if isinstance(left, int) and isinstance(right, int):
        return min(left, right) if name == "min" else max(left, right)
    return build(f"torch.prim.{name}.int", [value_of(left), value_of(right)], [ir.Type.parse("!torch.int")])[0]


def _binary(name: str, left: Size, right: Size, number: Callable[[int, int], int]) -> Size:
    if isinstance(left, int) and isinstance(right, int):
        return number(left, right)
    return build(f"torch.aten.{name}.int", [value_of(left), value_of(right)], [ir.Type.parse("!torch.int")])[0]


_NEVER_NEGATIVE = ("torch.aten.mul.int", "torch.aten.add.int", "torch.aten.floordiv.int", "torch.prim.min.int")


def _may_be_negative(size: Size) -> bool:
    """Whether a size may be below zero: the extents of tensors are not, nor what is added up of them."""
    if isinstance(size, int):
        return size < 0
    if defining_op(size, "torch.aten.size.int") is not None:
        return False
    made = defining_op(size, *_NEVER_NEGATIVE)
    constant = defining_op(size, "torch.constant.int")
    if constant is not None:
        return ir.IntegerAttr(constant.attributes["value"]).value < 0
    return made is None or any(_may_be_negative(operand) for operand in made.operands)
