"""lk.scatter: slices written into a table by index, as in index_put and the dispatch of experts."""

from __future__ import annotations

from lowerkit.dialect.base import Array, LkOperation, Operand, Result
from lowerkit.dialect.extents import Count, Shapes, static_shape
from lowerkit.dialect.lowering import scatter as lowering
from lowerkit.dialect.reference import ordering as numpy_ordering
from lowerkit.dialect.shapes import axis_index, compatible_types, element_count, fail, ranked, require_axis, tensor_type
from lowerkit.dialect.types import is_bool, is_integer, tensor_bytes
from lowerkit.mlir import ext, ir

KINDS = ("set", "add", "mul", "max", "min")


class ScatterOp(LkOperation, name="scatter", traits=[ext.Pure]):
    """Combines slices of ``updates`` into a copy of ``data`` along one axis at the given positions.

    ``result[a..., indices[i...], b...] = combine(result[a..., indices[i...], b...], updates[a..., i..., b...])`` for
    each i in row-major order, so that of equal indices the last one stands under ``set``, and the sum of ``add`` is
    rounded to the element type after each term, in that order. The inverse of ``lk.gather``. An index below 0 counts
    from the end. An index outside ``-size ... size - 1`` is an error in the numpy reference; compiled code leaves its
    update out, so that it never writes outside of the table. ``lk.check_indices`` refuses it.

    Operands:
        data: the table.
        indices: integers, of any shape.
        updates: ``data.shape[:axis] + indices.shape + data.shape[axis + 1:]``, with elements of data's type.

    Results:
        result: as data.

    Attributes:
        axis: the indexed dimension of data, from 0.
        kind: ``set``, ``add``, ``mul``, ``max`` or ``min``; a NaN on either side wins ``max`` and ``min``.

    FLOPs: one for each element of updates, 0 for ``set``.

    Bytes: data and the result once, the indices once, and the updates three times: each is read, and the slice of the
    result that it meets is read and written.
    """

    data: Operand
    indices: Operand
    updates: Operand
    axis: ir.IntegerAttr
    kind: ir.StringAttr
    result: Result

    @classmethod
    def infer_result_types(
        cls, data: ir.Type, indices: ir.Type, updates: ir.Type, *, axis: int, kind: str = "set"
    ) -> list[ir.Type]:
        """Returns the type of data; see :meth:`LkOperation.infer_result_types`."""
        table, positions, values = ranked("data", data), ranked("indices", indices), ranked("updates", updates)
        if not is_integer(positions.element_type) or is_bool(positions.element_type):
            fail(f"operand indices must have integer elements of 8 bits or more, found {positions.element_type}")
        require_axis(axis, table.rank)
        if kind not in KINDS:
            fail(f"attribute kind is {kind!r}, which must be one of {', '.join(KINDS)}")
        if kind != "set" and is_bool(table.element_type):
            fail(f"kind {kind} of bools; only set combines them")
        wanted = tensor_type([*table.shape[:axis], *positions.shape, *table.shape[axis + 1 :]], table.element_type)
        if not compatible_types(wanted, values):
            fail(f"operand updates has type {values}, but data, indices and axis give {wanted}")
        return [table]

    @classmethod
    def build(
        cls,
        data: ir.Value,
        indices: ir.Value,
        updates: ir.Value,
        *,
        axis: int = 0,
        kind: str = "set",
        loc: ir.Location | None = None,
        ip: ir.InsertionPoint | None = None,
    ) -> ir.Value:
        """Builds the op; a negative axis counts from the end."""
        axis = axis_index(axis, ranked("data", data.type).rank)
        operands = {"data": data, "indices": indices, "updates": updates}
        return cls.create(operands, {"axis": axis, "kind": kind}, loc=loc, ip=ip).result

    def reference(self, data: Array, indices: Array, updates: Array) -> tuple[Array, ...]:
        """Combines slice by slice; raises IndexError for an index outside of the axis."""
        return (numpy_ordering.scatter(data, indices, updates, self.axis.value, self.kind.value),)

    def build_linalg(self) -> list[ir.Value]:
        """Builds a copy of the table and loops over the updates."""
        return [lowering.scatter(self.data, self.indices, self.updates, self.axis.value, self.kind.value)]

    def flops(self, shape: Shapes = static_shape) -> Count | None:
        """Returns the number of combined elements."""
        return 0 if self.kind.value == "set" else element_count(shape(self.updates))

    def bytes_moved(self) -> int | None:
        """Returns twice the table, the indices, and three times the updates."""
        sizes = [tensor_bytes(value.type) for value in (self.data, self.indices, self.updates)]
        if any(size is None for size in sizes):
            return None
        table, positions, values = (size or 0 for size in sizes)
        return 2 * table + positions + 3 * values
