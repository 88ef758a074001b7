"""lk.collective_start and lk.collective_done: what the ranks along an axis of a mesh compute together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import numpy as np

from lowerkit.dialect.base import Array, LkOperation, Operand, Result
from lowerkit.dialect.reference.numeric import quiet, round_to, widen
from lowerkit.dialect.shapes import compatible, fail, ranked, tensor_type
from lowerkit.dialect.types import is_bool, tensor_bytes
from lowerkit.mlir import ir

T = TypeVar("T")

KINDS = ("all_reduce", "all_gather", "reduce_scatter")
REDUCTIONS = {"sum": np.sum, "product": np.prod, "min": np.min, "max": np.max}


class CollectiveStartOp(LkOperation, name="collective_start"):
    """Begins what all ranks along an axis of the mesh compute together; each of them runs the same op.

    ``all_reduce`` gives every rank the reduction of all operands; ``all_gather`` gives every rank all operands, stacked
    along a new first dimension; of ``reduce_scatter`` the first dimension of the operand counts the ranks, and rank r
    gets the reduction of their slices number r. What stands between start and done runs meanwhile.

    Operands:
        value: this rank's tensor.

    Results:
        result: what is being computed; ``lk.collective_done`` alone may read it.

    Attributes:
        kind: ``all_reduce``, ``all_gather`` or ``reduce_scatter``.
        axis: the axis of the mesh.
        ranks: how many ranks lie along it.
        reduction: ``sum``, ``product``, ``min`` or ``max``; ``all_gather`` does not read it.

    FLOPs: ``ranks - 1`` for each element of the result of a reduction, in all.

    Bytes: operand and result, each once.
    """

    value: Operand
    kind: ir.StringAttr
    axis: ir.StringAttr
    ranks: ir.IntegerAttr
    reduction: ir.StringAttr
    result: Result

    @classmethod
    def infer_result_types(
        cls, value: ir.Type, *, kind: str, axis: str, ranks: int, reduction: str = "sum"
    ) -> list[ir.Type]:
        """Returns the type of the operand, stacked or sliced; see :meth:`LkOperation.infer_result_types`."""
        tensor = ranked("value", value)
        if kind not in KINDS or reduction not in REDUCTIONS:
            fail(f"kind is one of {', '.join(KINDS)} and reduction of {', '.join(REDUCTIONS)}")
        if not axis or ranks < 1:
            fail(f"attribute axis must name an axis of the mesh and ranks count its ranks, found {axis!r} of {ranks}")
        if kind != "all_gather" and is_bool(tensor.element_type):
            fail("a reduction needs numbers, found elements of i1")
        if kind == "all_reduce":
            return [tensor]
        if kind == "all_gather":
            return [tensor_type([ranks, *tensor.shape], tensor.element_type)]
        if tensor.rank < 1 or not compatible(tensor.shape[0], ranks):
            fail(f"the first dimension of {tensor} must count the {ranks} ranks of {axis!r}")
        return [tensor_type(tensor.shape[1:], tensor.element_type)]

    @classmethod
    def build(
        cls,
        value: ir.Value,
        *,
        kind: str,
        axis: str,
        ranks: int,
        reduction: str = "sum",
        loc: ir.Location | None = None,
        ip: ir.InsertionPoint | None = None,
    ) -> ir.Value:
        """Builds the op."""
        parameters: dict[str, Any] = {"kind": kind, "axis": axis, "ranks": ranks, "reduction": reduction}
        return cls.create({"value": value}, parameters, loc=loc, ip=ip).result

    def check(self) -> None:
        """The shape rule, and one done as the only reader."""
        super().check()
        readers = [use.owner.operation.name for use in self.result.uses]
        if readers != ["lk.collective_done"]:
            fail(f"the result must be read by one lk.collective_done, found {', '.join(readers) or 'no reader'}")

    @staticmethod
    def result_shape(op: ir.Operation, shape: tuple[T, ...]) -> tuple[T | int, ...]:
        """Returns the shape of the result of an op whose operand has ``shape``, extents of any kind."""
        kind, ranks = ir.StringAttr(op.attributes["kind"]).value, ir.IntegerAttr(op.attributes["ranks"]).value
        return {"all_reduce": shape, "all_gather": (ranks, *shape), "reduce_scatter": shape[1:]}[kind]

    @quiet
    def combine(self, values: Sequence[Array]) -> list[Array]:
        """Computes in numpy what each rank gets, given the operand of each: in float64, rounded once."""
        kind, stacked = self.kind.value, np.stack([np.asarray(value) for value in values])
        if kind == "all_gather":
            return [stacked] * len(values)
        total = REDUCTIONS[self.reduction.value](widen(stacked), axis=0)
        rounded = round_to(np.asarray(total), stacked.dtype)
        return list(rounded) if kind == "reduce_scatter" else [rounded] * len(values)

    def bytes_moved(self) -> int | None:
        """Returns the bytes of operand and result."""
        sizes = [tensor_bytes(self.value.type), tensor_bytes(self.result.type)]
        return None if None in sizes else sum(size for size in sizes if size is not None)


class CollectiveDoneOp(LkOperation, name="collective_done"):
    """Waits for an ``lk.collective_start`` and gives what it computed.

    Operands:
        pending: the result of the start.

    Results:
        result: the same tensor, to be read.

    FLOPs: 0.

    Bytes: 0; the start counts them.
    """

    pending: Operand
    result: Result

    infers_results: ClassVar[bool] = False

    @classmethod
    def build(
        cls, pending: ir.Value, *, loc: ir.Location | None = None, ip: ir.InsertionPoint | None = None
    ) -> ir.Value:
        """Builds the op."""
        return cls.create({"pending": pending}, {}, result_types=[pending.type], loc=loc, ip=ip).result

    def check(self) -> None:
        """The operand is a start's, and the result has its type."""
        owner = self.pending.owner
        if isinstance(owner, ir.Block) or owner.operation.name != "lk.collective_start":
            fail("operand pending must be the result of an lk.collective_start")
        if self.result.type != self.pending.type:
            fail(f"the result has type {self.result.type}, the operand {self.pending.type}")

    def bytes_moved(self) -> int | None:
        """Returns 0: the start counts them."""
        return 0
