"""lk.sort and lk.topk: values in order, with their positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lowerkit.dialect.base import Array, LkOperation, Operand, Result
from lowerkit.dialect.extents import Count, Shapes, static_shape
from lowerkit.dialect.lowering import sort as lowering
from lowerkit.dialect.reference import ordering as numpy_ordering
from lowerkit.dialect.reference.numeric import quiet
from lowerkit.dialect.shapes import axis_index, element_count, fail, is_dynamic, ranked, require_axis, tensor_type
from lowerkit.mlir import ext, ir


class SortOp(LkOperation, name="sort", traits=[ext.Pure]):
    """Orders the elements along one axis. A NaN is larger than every number.

    Operands:
        input: any tensor of rank 1 or more.

    Results:
        values: the elements in order.
        indices: i64, where each of them stood.

    Attributes:
        axis: the sorted dimension, from 0.
        descending: largest first.
        stable: equal elements keep their order; every implementation here does so in any case.

    FLOPs: ``n * ceil(log2 n)`` comparisons for each row of n.

    Bytes: operand and results, each once.
    """

    input: Operand
    axis: ir.IntegerAttr
    descending: ir.BoolAttr
    stable: ir.BoolAttr
    values: Result
    indices: Result

    @classmethod
    def infer_result_types(
        cls, input: ir.Type, *, axis: int, descending: bool = False, stable: bool = True
    ) -> list[ir.Type]:
        """Returns the types of values and indices; see :meth:`LkOperation.infer_result_types`."""
        data = ranked("input", input)
        require_axis(axis, data.rank)
        return [data, tensor_type(data.shape, ir.IntegerType.get_signless(64, data.context))]

    @classmethod
    def build(
        cls,
        input: ir.Value,
        *,
        axis: int = -1,
        descending: bool = False,
        stable: bool = True,
        loc: ir.Location | None = None,
        ip: ir.InsertionPoint | None = None,
    ) -> tuple[ir.Value, ir.Value]:
        """Builds the op and returns (values, indices)."""
        axis = axis_index(axis, ranked("input", input.type).rank)
        parameters: dict[str, Any] = {"axis": axis, "descending": descending, "stable": stable}
        op = cls.create({"input": input}, parameters, loc=loc, ip=ip)
        return op.values, op.indices

    @quiet
    def reference(self, input: Array) -> tuple[Array, ...]:
        """Sorts in stable order."""
        return self.rounded(*numpy_ordering.sort(input, self.axis.value, self.descending.value))

    def build_linalg(self) -> list[ir.Value]:
        """Builds a bottom-up merge sort."""
        return lowering.sort(self.input, self.axis.value, self.descending.value)

    def flops(self, shape: Shapes = static_shape) -> Count | None:
        """Returns ``n * ceil(log2 n)`` for each row of n."""
        return _comparisons(shape(self.input), self.axis.value)


class TopkOp(LkOperation, name="topk", traits=[ext.Pure]):
    """The k largest or smallest elements along one axis. A NaN is larger than every number.

    Among equal elements the one at the lower position comes first. The results are always in order.

    Operands:
        input: any tensor of rank 1 or more.

    Results:
        values: the elements, k along the axis.
        indices: i64, where each of them stood.

    Attributes:
        k: how many, at most the size of the axis.
        axis: the dimension, from 0.
        largest: the largest, otherwise the smallest.
        sorted: the caller relies on the order; kept for the sake of targets that can do less.

    FLOPs: ``n * ceil(log2 n)`` comparisons for each row of n.

    Bytes: operand and results, each once.
    """

    input: Operand
    k: ir.IntegerAttr
    axis: ir.IntegerAttr
    largest: ir.BoolAttr
    sorted: ir.BoolAttr
    values: Result
    indices: Result

    @classmethod
    def infer_result_types(
        cls, input: ir.Type, *, k: int, axis: int, largest: bool = True, sorted: bool = True
    ) -> list[ir.Type]:
        """Returns the types of values and indices; see :meth:`LkOperation.infer_result_types`."""
        data = ranked("input", input)
        require_axis(axis, data.rank)
        size = data.shape[axis]
        if k < 1 or (not is_dynamic(size) and k > size):
            fail(f"attribute k is {k}, which must lie between 1 and the size {size} of axis {axis} of {data}")
        shape = [*data.shape[:axis], k, *data.shape[axis + 1 :]]
        index = ir.IntegerType.get_signless(64, data.context)
        return [tensor_type(shape, data.element_type), tensor_type(shape, index)]

    @classmethod
    def build(
        cls,
        input: ir.Value,
        *,
        k: int,
        axis: int = -1,
        largest: bool = True,
        sorted: bool = True,
        loc: ir.Location | None = None,
        ip: ir.InsertionPoint | None = None,
    ) -> tuple[ir.Value, ir.Value]:
        """Builds the op and returns (values, indices)."""
        axis = axis_index(axis, ranked("input", input.type).rank)
        parameters: dict[str, Any] = {"k": k, "axis": axis, "largest": largest, "sorted": sorted}
        op = cls.create({"input": input}, parameters, loc=loc, ip=ip)
        return op.values, op.indices

    @quiet
    def reference(self, input: Array) -> tuple[Array, ...]:
        """Sorts in stable order and keeps the first k."""
        return self.rounded(*numpy_ordering.topk(input, self.k.value, self.axis.value, self.largest.value))

    def build_linalg(self) -> list[ir.Value]:
        """Builds a bottom-up merge sort and keeps the first k."""
        return lowering.topk(self.input, self.k.value, self.axis.value, self.largest.value)

    def flops(self, shape: Shapes = static_shape) -> Count | None:
        """Returns ``n * ceil(log2 n)`` for each row of n."""
        return _comparisons(shape(self.input), self.axis.value)


def _comparisons(shape: Sequence[Any], axis: int) -> Count | None:
    count, length = element_count(shape), shape[axis]
    # The logarithm of a symbolic length is no expression of the artifact.
    return None if count is None or not isinstance(length, int) else count * math.ceil(math.log2(max(length, 1)))
