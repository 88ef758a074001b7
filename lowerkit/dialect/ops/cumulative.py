"""lk.cumulative: running sums, products and extremes."""

from __future__ import annotations

from typing import Any

from lowerkit.dialect.base import Array, LkOperation, Operand, Result
from lowerkit.dialect.extents import Count, Shapes, static_shape
from lowerkit.dialect.lowering import cumulative as lowering
from lowerkit.dialect.reference import ordering as numpy_ordering
from lowerkit.dialect.reference.numeric import quiet
from lowerkit.dialect.shapes import axis_index, element_count, fail, ranked, require_axis
from lowerkit.dialect.types import is_bool
from lowerkit.mlir import ext, ir

CUMULATIVE_KINDS = ("sum", "prod", "max", "min")


class CumulativeOp(LkOperation, name="cumulative", traits=[ext.Pure]):
    """Combines each element with all before it along one axis.

    The running value of a float is carried in f32 (f64 for f64) and rounded at each output; integers wrap around. A
    NaN makes all later values NaN.

    Operands:
        input: any tensor of numbers, of rank 1 or more.

    Results:
        result: of the type of the input.

    Attributes:
        kind: sum, prod, max or min.
        axis: the dimension, from 0.
        exclusive: an element is not part of its own result; the first is 0 for sum, 1 for prod, the smallest or
            largest value for max and min.
        reverse: runs from the end.

    FLOPs: 1 for each element.

    Bytes: operand and result, each once.
    """

    input: Operand
    kind: ir.StringAttr
    axis: ir.IntegerAttr
    exclusive: ir.BoolAttr
    reverse: ir.BoolAttr
    result: Result

    @classmethod
    def infer_result_types(
        cls, input: ir.Type, *, kind: str, axis: int, exclusive: bool = False, reverse: bool = False
    ) -> list[ir.Type]:
        """Returns the type of the input; see :meth:`LkOperation.infer_result_types`."""
        data = ranked("input", input)
        if kind not in CUMULATIVE_KINDS:
            fail(f"attribute kind must be one of {', '.join(CUMULATIVE_KINDS)}, found {kind!r}")
        if is_bool(data.element_type):
            fail(f"operand input must have numbers as elements, found {data.element_type}")
        require_axis(axis, data.rank)
        return [data]

    @classmethod
    def build(
        cls,
        input: ir.Value,
        *,
        kind: str = "sum",
        axis: int = -1,
        exclusive: bool = False,
        reverse: bool = False,
        loc: ir.Location | None = None,
        ip: ir.InsertionPoint | None = None,
    ) -> ir.Value:
        """Builds the op; a negative axis counts from the end."""
        axis = axis_index(axis, ranked("input", input.type).rank)
        parameters: dict[str, Any] = {"kind": kind, "axis": axis, "exclusive": exclusive, "reverse": reverse}
        return cls.create({"input": input}, parameters, loc=loc, ip=ip).result

    @quiet
    def reference(self, input: Array) -> tuple[Array, ...]:
        """Runs in float64 or int64 and rounds each output."""
        return self.rounded(numpy_ordering.cumulative(input, **self.parameters()))

    def build_linalg(self) -> list[ir.Value]:
        """Builds a loop along the axis inside loops over the rows."""
        return [lowering.cumulative(self.input, **self.parameters())]

    def flops(self, shape: Shapes = static_shape) -> Count | None:
        """Returns 1 for each element."""
        return element_count(shape(self.input))
