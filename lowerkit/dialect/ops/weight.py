"""lk.weight: a constant tensor by reference."""

from __future__ import annotations

from typing import ClassVar

from lowerkit.dialect.base import LkOperation, Result
from lowerkit.dialect.shapes import fail, is_dynamic
from lowerkit.mlir import ext, ir


class WeightOp(LkOperation, name="weight", traits=[ext.Pure]):
    """A constant tensor, named; its data lives in the weight store and never in the IR.

    Results:
        result: the tensor; its shape is static.

    Attributes:
        symbol: the name in the weight store of the program.

    FLOPs: 0.

    Bytes: 0; the op that reads the weight counts it.
    """

    symbol: ir.StringAttr
    result: Result

    infers_results: ClassVar[bool] = False

    @classmethod
    def build(
        cls, symbol: str, type: ir.Type, *, loc: ir.Location | None = None, ip: ir.InsertionPoint | None = None
    ) -> ir.Value:
        """Builds the op; ``type`` is the ranked tensor type of the weight."""
        return cls.create({}, {"symbol": symbol}, result_types=[type], loc=loc, ip=ip).result

    def check(self) -> None:
        """The name is not empty and the type is a static tensor."""
        if not self.symbol.value:
            fail("attribute symbol must name a weight, found an empty string")
        kind = self.result.type
        if not isinstance(kind, ir.RankedTensorType) or any(is_dynamic(size) for size in kind.shape):
            fail(f"a weight must be a ranked tensor of static shape, found {kind}")

    def bytes_moved(self) -> int | None:
        """Returns 0: the op that reads the weight counts it."""
        return 0
