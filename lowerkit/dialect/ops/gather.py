"""lk.gather: rows of a table by index, as in an embedding."""

from __future__ import annotations

from lowerkit.dialect.base import Array, LkOperation, Operand, Result
from lowerkit.dialect.lowering import gather as lowering
from lowerkit.dialect.reference import ordering as numpy_ordering
from lowerkit.dialect.shapes import axis_index, fail, ranked, require_axis, tensor_type
from lowerkit.dialect.types import is_bool, is_integer, tensor_bytes
from lowerkit.mlir import ext, ir


class GatherOp(LkOperation, name="gather", traits=[ext.Pure]):
    """Takes slices of ``data`` along one axis at the given positions, as ``numpy.take`` does.

    ``result[a..., i..., b...] = data[a..., indices[i...], b...]``; an index below 0 counts from the end. An index
    outside ``-size ... size - 1`` is an error in the numpy reference; compiled code clamps it, so that it never
    reads outside of the table. ``lk.check_indices`` refuses it.

    Operands:
        data: the table.
        indices: integers, of any shape.

    Results:
        result: ``data.shape[:axis] + indices.shape + data.shape[axis + 1:]``, with the elements of data.

    Attributes:
        axis: the indexed dimension of data, from 0.

    FLOPs: 0.

    Bytes: the indices once, and the result twice: only the rows asked for are read.
    """

    data: Operand
    indices: Operand
    axis: ir.IntegerAttr
    result: Result

    @classmethod
    def infer_result_types(cls, data: ir.Type, indices: ir.Type, *, axis: int) -> list[ir.Type]:
        """Returns the gathered type; see :meth:`LkOperation.infer_result_types`."""
        table, positions = ranked("data", data), ranked("indices", indices)
        if not is_integer(positions.element_type) or is_bool(positions.element_type):
            fail(f"operand indices must have integer elements of 8 bits or more, found {positions.element_type}")
        require_axis(axis, table.rank)
        shape = [*table.shape[:axis], *positions.shape, *table.shape[axis + 1 :]]
        return [tensor_type(shape, table.element_type)]

    @classmethod
    def build(
        cls,
        data: ir.Value,
        indices: ir.Value,
        *,
        axis: int = 0,
        loc: ir.Location | None = None,
        ip: ir.InsertionPoint | None = None,
    ) -> ir.Value:
        """Builds the op; a negative axis counts from the end."""
        axis = axis_index(axis, ranked("data", data.type).rank)
        return cls.create({"data": data, "indices": indices}, {"axis": axis}, loc=loc, ip=ip).result

    def reference(self, data: Array, indices: Array) -> tuple[Array, ...]:
        """Takes slices; raises IndexError for an index outside of the axis."""
        return (numpy_ordering.gather(data, indices, self.axis.value),)

    def build_linalg(self) -> list[ir.Value]:
        """Builds one linalg.generic that extracts from the table."""
        return [lowering.gather(self.data, self.indices, **self.parameters())]

    def bytes_moved(self) -> int | None:
        """Returns the indices once and the result twice."""
        indices, result = tensor_bytes(self.indices.type), tensor_bytes(self.result.type)
        return None if indices is None or result is None else indices + 2 * result
