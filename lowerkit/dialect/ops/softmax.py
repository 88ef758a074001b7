"""lk.softmax: exponentials that sum to one along an axis."""

from __future__ import annotations

from lowerkit.dialect.base import Array, LkOperation, Operand, Result
from lowerkit.dialect.extents import Count, Shapes, static_shape
from lowerkit.dialect.lowering import rows as lowering
from lowerkit.dialect.reference import rows as numpy_rows
from lowerkit.dialect.reference.numeric import quiet
from lowerkit.dialect.shapes import axis_index, element_count, ranked, require_axis
from lowerkit.dialect.types import require_float
from lowerkit.mlir import ext, ir


class SoftmaxOp(LkOperation, name="softmax", traits=[ext.Pure]):
    """Softmax or its logarithm along one axis, computed in f32 (f64 for f64) and rounded once.

    ``result = exp(x - max) / sum(exp(x - max))``, or ``result = x - max - log(sum(exp(x - max)))`` with log; max and
    sum run along the axis. A NaN, or +inf, or -inf throughout, makes the row NaN.

    Operands:
        input: a float tensor.

    Results:
        result: of the type of the input.

    Attributes:
        axis: the dimension that is normalized, from 0.
        log: the logarithm of the softmax instead.

    FLOPs: 5 for each element: compare, subtract, exp, add, divide (log: subtract).

    Bytes: operand and result, each once.
    """

    input: Operand
    axis: ir.IntegerAttr
    log: ir.BoolAttr
    result: Result

    @classmethod
    def infer_result_types(cls, input: ir.Type, *, axis: int, log: bool = False) -> list[ir.Type]:
        """Returns the type of the input; see :meth:`LkOperation.infer_result_types`."""
        data = ranked("input", input)
        require_float("input", data.element_type)
        require_axis(axis, data.rank)
        return [data]

    @classmethod
    def build(
        cls,
        input: ir.Value,
        *,
        axis: int = -1,
        log: bool = False,
        loc: ir.Location | None = None,
        ip: ir.InsertionPoint | None = None,
    ) -> ir.Value:
        """Builds the op; a negative axis counts from the end."""
        axis = axis_index(axis, ranked("input", input.type).rank)
        return cls.create({"input": input}, {"axis": axis, "log": log}, loc=loc, ip=ip).result

    @quiet
    def reference(self, input: Array) -> tuple[Array, ...]:
        """Computes in float64 and rounds once."""
        return self.rounded(numpy_rows.softmax(input, self.axis.value, self.log.value))

    def build_linalg(self) -> list[ir.Value]:
        """Builds maximum, exponentials, sum and quotient."""
        return [lowering.softmax(self.input, **self.parameters())]

    def flops(self, shape: Shapes = static_shape) -> Count | None:
        """Returns 5 for each element."""
        count = element_count(shape(self.input))
        return None if count is None else 5 * count
