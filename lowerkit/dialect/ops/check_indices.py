"""lk.check_indices: what an op says of its indices, checked before it looks up by them."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from lowerkit.dialect.base import Array, LkOperation, Operand, Operands
from lowerkit.dialect.shapes import fail, ranked
from lowerkit.dialect.types import is_bool, is_integer, tensor_bytes
from lowerkit.errors import VerifyError
from lowerkit.mlir import ir


class CheckIndicesOp(LkOperation, name="check_indices"):
    """Ends the run where an index is out of range: nothing that comes after it is computed.

    Element number p of the indices, in row-major order, is in range if it is at least 0 and below extent number
    ``p mod n`` of the n extents; with ``wraps`` also if it is at least minus that extent. Indices of two and more
    extents have them side by side in the last dimension, as in ONNX's GatherND.

    Operands:
        indices: integers, of any shape.
        extents: index values, one or more: how many elements the indexed dimension has.

    Attributes:
        wraps: whether an index below 0 counts from the end.
        exempt: no value, or one that is in range whatever the extent, such as the class that a loss ignores.
        operator: the op that looks up, by the name that the user knows.

    FLOPs: 0.

    Bytes: the indices, once.
    """

    indices: Operand
    extents: Operands
    wraps: ir.BoolAttr
    exempt: ir.DenseI64ArrayAttr
    operator: ir.StringAttr

    infers_results: ClassVar[bool] = False

    @classmethod
    def build(
        cls,
        indices: ir.Value,
        extents: list[ir.Value],
        *,
        wraps: bool,
        operator: str,
        exempt: int | None = None,
        loc: ir.Location | None = None,
        ip: ir.InsertionPoint | None = None,
    ) -> CheckIndicesOp:
        """Builds the op."""
        parameters = {"wraps": wraps, "exempt": [] if exempt is None else [exempt], "operator": operator}
        return cls.create({"indices": indices, "extents": extents}, parameters, result_types=[], loc=loc, ip=ip)

    def check(self) -> None:
        """Integers, and extents that go into the last dimension."""
        kind = ranked("indices", self.indices.type)
        if not is_integer(kind.element_type) or is_bool(kind.element_type):
            fail(f"operand indices must have integer elements of 8 bits or more, found {kind.element_type}")
        count = len(self.extents)
        if not count or any(not isinstance(extent.type, ir.IndexType) for extent in self.extents):
            fail(f"operands extents must be one index value or more, found {[str(item.type) for item in self.extents]}")
        if count > 1 and (kind.rank == 0 or kind.shape[-1] != count):
            fail(f"{count} extents for indices of type {kind}, whose last dimension must have as many")
        if len(list(self.exempt)) > 1:
            fail(f"attribute exempt must have at most one value, found {list(self.exempt)}")

    def require(self, indices: Array, extents: list[int]) -> None:
        """Does what the op says, in numpy.

        Raises:
            VerifyError: LK3002, an index is out of range.
        """
        found = indices.astype(np.int64).reshape(-1, len(extents))
        limits = np.asarray(extents, np.int64)
        inside = (found >= (-limits if self.wraps.value else 0)) & (found < limits)
        wrong = ~(inside | np.isin(found, list(self.exempt)))
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            raise VerifyError(
                "LK3002",
                f"{self.operator.value}: index {found[row, column]} is out of range for {limits[column]} elements",
            )

    def bytes_moved(self) -> int | None:
        """Returns the bytes of the indices."""
        return tensor_bytes(self.indices.type)
