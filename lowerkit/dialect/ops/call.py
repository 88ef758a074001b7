"""lk.call: a kernel by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from lowerkit.dialect.base import LkOperation, Operands, Results
from lowerkit.dialect.extents import Count, Shapes, static_shape
from lowerkit.dialect.ragged import OPERAND_RUNS, RESULT_RUNS, create_ragged, ragged_fields
from lowerkit.dialect.shapes import fail
from lowerkit.mlir import ir


class CallOp(LkOperation, name="call"):
    """Calls a kernel or a custom op that is known by name only.

    Nothing is assumed about its effects: calls keep their order and are never removed.

    Operands:
        inputs: the arguments.

    Results:
        outputs: what the callee returns.

    Attributes:
        callee: the name of the kernel.

    FLOPs: unknown.

    Bytes: operands and results, each once.
    """

    __annotations__.update(ragged_fields("inputs", Operands, OPERAND_RUNS))
    callee: ir.StringAttr
    __annotations__.update(ragged_fields("outputs", Results, RESULT_RUNS))

    infers_results: ClassVar[bool] = False

    @classmethod
    def build(
        cls,
        inputs: Sequence[ir.Value],
        callee: str,
        result_types: Sequence[ir.Type],
        *,
        loc: ir.Location | None = None,
        ip: ir.InsertionPoint | None = None,
    ) -> tuple[ir.Value, ...]:
        """Builds the op and returns its results."""
        attributes = {"callee": ir.StringAttr.get(callee)}
        op = create_ragged(cls.OPERATION_NAME, inputs, result_types, attributes, loc=loc, ip=ip)
        return tuple(op.operation.results)

    def check(self) -> None:
        """The callee is named."""
        if not self.callee.value:
            fail("attribute callee must name a kernel, found an empty string")

    def flops(self, shape: Shapes = static_shape) -> Count | None:
        """Returns None: the callee is unknown."""
        return None
