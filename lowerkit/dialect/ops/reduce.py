"""lk.reduce: reductions over some dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lowerkit.dialect.base import Array, LkOperation, Operand, Result
from lowerkit.dialect.extents import Count, Shapes, static_shape
from lowerkit.dialect.lowering import reduce as lowering
from lowerkit.dialect.reference import ordering as numpy_ordering
from lowerkit.dialect.reference.numeric import quiet
from lowerkit.dialect.shapes import axis_index, element_count, fail, ranked, tensor_type
from lowerkit.dialect.types import is_bool, require_float
from lowerkit.mlir import ext, ir

REDUCE_KINDS = ("sum", "prod", "max", "min", "mean", "any", "all", "argmax", "argmin")


class ReduceOp(LkOperation, name="reduce", traits=[ext.Pure]):
    """Combines all elements along some dimensions.

    sum, prod and mean of floats are carried in f32 (f64 for f64) and rounded once; of integers they wrap around in
    the element type. A NaN makes max, min and their positions NaN's: it counts as the extreme. argmax and argmin give
    the first position among equals.

    Operands:
        input: any tensor; numbers for all kinds but any and all, floats for mean.

    Results:
        result: without the reduced dimensions, or with size 1 in their place; i1 for any and all, i64 for argmax and
            argmin, the element type of the input otherwise.

    Attributes:
        kind: sum, prod, max, min, mean, any, all, argmax or argmin.
        axes: the reduced dimensions, from 0, rising; exactly one for argmax and argmin.
        keep_dims: reduced dimensions stay with size 1.

    FLOPs: 1 for each element of the input.

    Bytes: operand and result, each once.
    """

    input: Operand
    kind: ir.StringAttr
    axes: ir.DenseI64ArrayAttr
    keep_dims: ir.BoolAttr
    result: Result

    @classmethod
    def infer_result_types(
        cls, input: ir.Type, *, kind: str, axes: Sequence[int], keep_dims: bool = False
    ) -> list[ir.Type]:
        """Returns the reduced type; see :meth:`LkOperation.infer_result_types`."""
        data = ranked("input", input)
        if kind not in REDUCE_KINDS:
            fail(f"attribute kind must be one of {', '.join(REDUCE_KINDS)}, found {kind!r}")
        reduced = list(axes)
        if reduced != sorted(set(reduced)) or any(not 0 <= axis < data.rank for axis in reduced):
            fail(f"attribute axes must be rising dimensions of {data}, found {reduced}")
        if kind in ("argmax", "argmin") and len(reduced) != 1:
            fail(f"{kind} needs exactly one axis, found {reduced}")
        if kind == "mean":
            require_float("input", data.element_type)
        elif kind not in ("any", "all") and is_bool(data.element_type):
            fail(f"{kind} needs numbers, found {data.element_type}", hint="use any or all")
        if kind in ("max", "min", "argmax", "argmin") and any(data.shape[axis] == 0 for axis in reduced):
            fail(f"{kind} over an empty dimension of {data} has no value")
        if keep_dims:
            shape = [1 if axis in reduced else size for axis, size in enumerate(data.shape)]
        else:
            shape = [size for axis, size in enumerate(data.shape) if axis not in reduced]
        return [tensor_type(shape, _result_element(kind, data.element_type))]

    @classmethod
    def build(
        cls,
        input: ir.Value,
        *,
        kind: str,
        axes: Sequence[int] | None = None,
        keep_dims: bool = False,
        loc: ir.Location | None = None,
        ip: ir.InsertionPoint | None = None,
    ) -> ir.Value:
        """Builds the op; negative axes count from the end, None reduces all dimensions."""
        rank = ranked("input", input.type).rank
        reduced = list(range(rank)) if axes is None else sorted(axis_index(axis, rank) for axis in axes)
        parameters: dict[str, Any] = {"kind": kind, "axes": reduced, "keep_dims": keep_dims}
        return cls.create({"input": input}, parameters, loc=loc, ip=ip).result

    @quiet
    def reference(self, input: Array) -> tuple[Array, ...]:
        """Combines in float64 or int64 and rounds once."""
        parameters = self.parameters()
        axes = tuple(parameters["axes"])
        return self.rounded(numpy_ordering.reduce(input, parameters["kind"], axes, parameters["keep_dims"]))

    def build_linalg(self) -> list[ir.Value]:
        """Builds one linalg.generic, for mean a division after it."""
        return [lowering.reduce(self.input, **self.parameters())]

    def flops(self, shape: Shapes = static_shape) -> Count | None:
        """Returns 1 for each element of the input."""
        return element_count(shape(self.input))


def _result_element(kind: str, element: ir.Type) -> ir.Type:
    if kind in ("any", "all"):
        return ir.IntegerType.get_signless(1, element.context)
    if kind in ("argmax", "argmin"):
        return ir.IntegerType.get_signless(64, element.context)
    return element
