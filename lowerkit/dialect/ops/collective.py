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

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send", "receive")
REDUCING = ("all_reduce", "reduce_scatter", "reduce")
SCATTERING = ("reduce_scatter", "all_to_all")
MESSAGES = ("send", "receive")
REDUCTIONS = {"sum": np.sum, "product": np.prod, "min": np.min, "max": np.max}
_OTHERS = {"root": ("broadcast", "reduce"), "peer": MESSAGES}
"""The kinds that name a rank: attribute -> kinds that have it."""


class CollectiveStartOp(LkOperation, name="collective_start"):
    """Begins what all ranks along an axis of the mesh compute together; each of them runs the same op.

    ``all_reduce`` gives every rank the reduction of all operands; ``all_gather`` gives every rank all operands, stacked
    along a new first dimension; of ``reduce_scatter`` the first dimension of the operand counts the ranks, and rank r
    gets the reduction of their slices number r. ``all_to_all``: likewise, and slice r of the result is the one that
    rank r has for this rank. ``broadcast`` gives every rank the operand of the root; ``reduce`` gives the root the
    reduction of all operands, and the others zeros. What stands between start and done runs meanwhile.

    Two kinds are of two ranks alone. ``send`` gives the operand to the peer, and has a result without elements;
    ``receive`` gives what the peer sends, which has the type of the operand: that is not read. Messages match in the
    order in which they are started, along an axis, between two ranks, and each way. The others need not run the same
    op: where ranks send and receive, they run programs of their own.

    ``broadcast`` and ``reduce`` have an attribute ``root``, ``send`` and ``receive`` an attribute ``peer`` (i64): a
    rank, by its place along the axis.

    Operands:
        value: this rank's tensor.

    Results:
        result: what is being computed; ``lk.collective_done`` alone may read it.

    Attributes:
        kind: ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all``, ``broadcast``, ``reduce``, ``send`` or
            ``receive``.
        axis: the axis of the mesh.
        ranks: how many ranks lie along it.
        reduction: ``sum``, ``product``, ``min`` or ``max``; kinds that do not reduce do not read it.

    FLOPs: ``ranks - 1`` for each element of the result of a reduction, in all.

    Bytes: operand and result, each once; what is not read does not count.
    """

    value: Operand
    kind: ir.StringAttr
    axis: ir.StringAttr
    ranks: ir.IntegerAttr
    reduction: ir.StringAttr
    result: Result

    # Not annotated: a field would have to be there.
    optional_kinds = dict.fromkeys(_OTHERS, ir.IntegerAttr)

    @classmethod
    def infer_result_types(
        cls,
        value: ir.Type,
        *,
        kind: str,
        axis: str,
        ranks: int,
        reduction: str = "sum",
        root: int = -1,
        peer: int = -1,
    ) -> list[ir.Type]:
        """Returns the type of the operand, stacked or sliced; see :meth:`LkOperation.infer_result_types`."""
        tensor = ranked("value", value)
        if kind not in KINDS or reduction not in REDUCTIONS:
            fail(f"kind is one of {', '.join(KINDS)} and reduction of {', '.join(REDUCTIONS)}")
        if not axis or ranks < 1:
            fail(f"attribute axis must name an axis of the mesh and ranks count its ranks, found {axis!r} of {ranks}")
        for name, found in (("root", root), ("peer", peer)):
            if kind in _OTHERS[name] and not 0 <= found < ranks:
                fail(f"attribute {name} of {kind} must be one of the {ranks} ranks of {axis!r}, found {found}")
            if kind not in _OTHERS[name] and found != -1:
                fail(f"{kind} has no {name}, found {found}")
        if kind in REDUCING and is_bool(tensor.element_type):
            fail("a reduction needs numbers, found elements of i1")
        if kind in SCATTERING and (tensor.rank < 1 or not compatible(tensor.shape[0], ranks)):
            fail(f"the first dimension of {tensor} must count the {ranks} ranks of {axis!r}")
        match kind:
            case "all_gather":
                return [tensor_type([ranks, *tensor.shape], tensor.element_type)]
            case "reduce_scatter":
                return [tensor_type(tensor.shape[1:], tensor.element_type)]
            case "send":
                return [tensor_type([0], ir.IntegerType.get_signless(8, tensor.context))]
            case _:
                return [tensor]

    @classmethod
    def build(
        cls,
        value: ir.Value,
        *,
        kind: str,
        axis: str,
        ranks: int,
        reduction: str = "sum",
        root: int = -1,
        peer: int = -1,
        loc: ir.Location | None = None,
        ip: ir.InsertionPoint | None = None,
    ) -> ir.Value:
        """Builds the op.

        Raises:
            VerifyError: the operand and the parameters do not fit together.
        """
        parameters: dict[str, Any] = {"kind": kind, "axis": axis, "ranks": ranks, "reduction": reduction}
        others = {name: place for name, place in (("root", root), ("peer", peer)) if place != -1}
        return cls.create({"value": value}, {**parameters, **others}, loc=loc, ip=ip).result

    def other(self, name: str) -> int:
        """Returns ``root`` or ``peer``, by name; -1 where the kind has none."""
        attributes = self.operation.attributes
        return ir.IntegerAttr(attributes[name]).value if name in attributes else -1

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
        match kind:
            case "all_gather":
                return (ranks, *shape)
            case "reduce_scatter":
                return shape[1:]
            case "send":
                return (0,)
            case _:
                return shape

    @quiet
    def combine(self, values: Sequence[Array]) -> list[Array]:
        """Computes in numpy what each rank gets, given the operand of each: in float64, rounded once.

        Of a message ``values`` has the operands of the two ranks alone, the sender's first.
        """
        kind = self.kind.value
        if kind in MESSAGES:
            return [np.zeros(0, np.int8), np.asarray(values[0])]
        stacked = np.stack([np.asarray(value) for value in values])
        match kind:
            case "all_gather":
                return [stacked] * len(values)
            case "all_to_all":
                return [stacked[:, rank] for rank in range(len(values))]
            case "broadcast":
                return [stacked[self.other("root")]] * len(values)
            case _:
                total = REDUCTIONS[self.reduction.value](widen(stacked), axis=0)
                rounded = round_to(np.asarray(total), stacked.dtype)
        if kind == "reduce":
            root = self.other("root")
            return [rounded if rank == root else np.zeros_like(rounded) for rank in range(len(values))]
        return list(rounded) if kind == "reduce_scatter" else [rounded] * len(values)

    def bytes_moved(self) -> int | None:
        """Returns the bytes of operand and result; of a receive, those of the result."""
        read = [] if self.kind.value == "receive" else [self.value]
        sizes = [tensor_bytes(value.type) for value in (*read, self.result)]
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
