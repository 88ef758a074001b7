"""lk.state_read and lk.state_write: tensors that outlive one inference, such as a KV cache."""

from __future__ import annotations

from typing import Any, ClassVar

from lowerkit.dialect.base import LkOperation, Operand, Result
from lowerkit.dialect.shapes import fail
from lowerkit.mlir import ir


class StateReadOp(LkOperation, name="state_read"):
    """Reads the current value of a state of the program.

    It is not pure: reads and writes of states keep their order.

    Results:
        result: the value of the state.

    Attributes:
        symbol: the name of the state in the signature.

    FLOPs: 0.

    Bytes: the state, once.
    """

    symbol: ir.StringAttr
    result: Result

    infers_results: ClassVar[bool] = False

    @classmethod
    def build(
        cls, symbol: str, type: ir.Type, *, loc: ir.Location | None = None, ip: ir.InsertionPoint | None = None
    ) -> ir.Value:
        """Builds the op; ``type`` is the ranked tensor type of the state."""
        return cls.create({}, {"symbol": symbol}, result_types=[type], loc=loc, ip=ip).result

    def check(self) -> None:
        """The name is not empty and the result is a tensor."""
        _check_state(self.symbol.value, self.result.type)


class StateWriteOp(LkOperation, name="state_write"):
    """Replaces the value of a state of the program; later reads, and the next inference, see the new one.

    Operands:
        value: the new value, of the type of the state.

    Attributes:
        symbol: the name of the state in the signature.

    FLOPs: 0.

    Bytes: the state, once.
    """

    value: Operand
    symbol: ir.StringAttr

    infers_results: ClassVar[bool] = False

    @classmethod
    def build(
        cls,
        value: ir.Value,
        symbol: str,
        *,
        loc: ir.Location | None = None,
        ip: ir.InsertionPoint | None = None,
    ) -> StateWriteOp:
        """Builds the op."""
        return cls.create({"value": value}, {"symbol": symbol}, result_types=[], loc=loc, ip=ip)

    def check(self) -> None:
        """The name is not empty and the value is a tensor."""
        _check_state(self.symbol.value, self.value.type)


def _check_state(symbol: str, kind: Any) -> None:
    if not symbol:
        fail("attribute symbol must name a state, found an empty string")
    if not isinstance(kind, ir.RankedTensorType):
        fail(f"state {symbol} must be a ranked tensor, found {kind}")
