"""The work of one op of canonical IR: operations, and bytes between the device and its memory.

Steps:
    lk ops     state their operations and bytes themselves
    linalg     the points of the loop nest times the arithmetic of the body; each input and result moves once
    tensor     views nothing; a copy reads and writes what it copies, into a part of a tensor only that part
    data       weights, constants and states nothing: the op that reads them counts them; states change in place
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from lowerkit.dialect.base import LkOperation
from lowerkit.dialect.types import element_bytes
from lowerkit.errors import UnsupportedError
from lowerkit.mlir import ir
from lowerkit.passes.rewriting import DYNAMIC
from lowerkit.passes.source_location import describe

_NO_WORK = frozenset(
    {
        *(
            "tensor.expand_shape",
            "tensor.collapse_shape",
            "tensor.cast",
            "tensor.dim",
            "tensor.empty",
            "tensor.extract",
        ),
        *("tensor.from_elements", "lk.weight", "lk.state_read", "lk.state_write", "lk.collective_start"),
        *("lk.collective_done", "lk.cond", "lk.while", "lk.yield"),
    }
)
_INTO_A_PART = frozenset({"tensor.insert_slice", "lk.scatter"})
"""Ops that change a part of a tensor, in place where nobody reads it as it was."""
_FREE = frozenset({"arith.constant", "arith.index_cast", "arith.extf", "arith.truncf", "linalg.index", "linalg.yield"})


@dataclass(frozen=True)
class Work:
    """What an op does.

    Attributes:
        flops: arithmetic operations.
        moved: bytes read and written.
    """

    flops: int
    moved: int


class WorkCounter:
    """Counts the work of ops.

    Args:
        dynamic: what an extent counts as that the IR does not know as a number; None refuses it.
    """

    def __init__(self, dynamic: int | None = None) -> None:
        self._dynamic = dynamic

    def of(self, op: ir.Operation, in_memory: Callable[[ir.Value], bool] = lambda _: True) -> Work:
        """Returns the work of an op, bodies of branches and loops left out.

        Args:
            op: of canonical IR.
            in_memory: whether a value goes through memory; others cost no bytes.

        Raises:
            UnsupportedError: LK4002, an extent is not a number and no value was given for it.
        """
        name = op.name
        if name in _NO_WORK or not name.startswith(("lk.", "linalg.", "tensor.")):
            return Work(0, 0)
        return Work(self._flops(op), self._moved(op, in_memory))

    def nbytes(self, value: ir.Value) -> int:
        """Returns the bytes of a tensor; 0 of what is none.

        Raises:
            UnsupportedError: LK4002, as :meth:`of`.
        """
        if not isinstance(value.type, ir.RankedTensorType):
            return 0
        element = ir.RankedTensorType(value.type).element_type
        return math.prod(self._shape(value)) * element_bytes(element)

    def _shape(self, value: ir.Value) -> list[int]:
        shape = list(ir.RankedTensorType(value.type).shape)
        if DYNAMIC not in shape:
            return shape
        if self._dynamic is None:
            owner = value.owner
            place = "an input" if isinstance(owner, ir.Block) else str(describe(owner.operation))
            raise UnsupportedError(
                "LK4002",
                f"the cost of {value.type} is no number: {place} has a symbolic extent",
                hint="plan the model for one size: leave --dynamic out",
            )
        return [self._dynamic if extent == DYNAMIC else extent for extent in shape]

    def _flops(self, op: ir.Operation) -> int:
        view = op.opview
        if isinstance(view, LkOperation):
            count = view.flops(self._shape)
            assert isinstance(count, int), f"{op.name} counts its operations over numbers"
            return count
        if op.name == "linalg.generic":
            return self._points(op) * _arithmetic(op)
        return 0

    def _points(self, op: ir.Operation) -> int:
        """The points of the loop nest of a linalg.generic."""
        maps = [ir.AffineMapAttr(each).value for each in ir.ArrayAttr(op.attributes["indexing_maps"])]
        extents: dict[int, int] = {}
        for operand, indexing in zip(op.operands, maps, strict=True):
            for extent, expression in zip(self._shape(operand), indexing.results, strict=True):
                if isinstance(expression, ir.AffineDimExpr):
                    extents[ir.AffineDimExpr(expression).position] = extent
        return math.prod(extents.values())

    def _moved(self, op: ir.Operation, in_memory: Callable[[ir.Value], bool]) -> int:
        name = op.name
        values = [value for value in (*op.operands, *op.results) if in_memory(value)]
        if name in _INTO_A_PART:
            part = self.nbytes(op.operands[0] if name == "tensor.insert_slice" else op.operands[2])
            return 2 * part
        if name in ("tensor.extract_slice", "lk.gather"):
            return sum(self.nbytes(value) for value in op.results) * 2
        if name.startswith("linalg."):
            inputs = list(op.operands)[: len(op.operands) - len(op.results)]
            return sum(self.nbytes(value) for value in (*inputs, *op.results) if value in values)
        return sum(map(self.nbytes, values))


def _arithmetic(op: ir.Operation) -> int:
    """The operations of the body of a linalg.generic, at one point."""
    return sum(
        inner.operation.name not in _FREE and inner.operation.name.startswith(("arith.", "math."))
        for inner in op.regions[0].blocks[0].operations
    )
