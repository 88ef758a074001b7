"""Raises PyTorch's functional collectives to ``lk.collective_start`` and ``lk.collective_done``.

A collective begins where the graph calls it, and is done where it is waited for (``wait_tensor``); what stands in
between runs meanwhile. Capture wrote down the axis of the mesh that the process group is, and its ranks.

Shapes, of p ranks: PyTorch joins what it gathers along the first dimension, and cuts what it scatters there; ours stack
along a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.dialect import CollectiveDoneOp, CollectiveStartOp
from lowerkit.mlir import ir, tensor
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.torch_dialect.table_pass import Rule, TablePass
from lowerkit.passes.raising.torch_dialect.torch_build import binary_scalar
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    RefusalError,
    from_builtin,
    int_of,
    ints_of,
    string_of,
    tensor_info,
    to_builtin,
)
from lowerkit.passes.rewriting import DYNAMIC, defining_op, dimension, element_of, shape_of
from lowerkit.passes.source_location import op_name

_PREFIX = "torch._c10d_functional."
_WAIT = f"{_PREFIX}wait_tensor"
_REDUCTIONS = {"sum": "sum", "avg": "sum", "product": "product", "min": "min", "max": "max"}

Begin = Callable[[ir.Operation, str, int], ir.Value]
"""Builds the start of a collective, given its torch op, the axis and its ranks."""


def _collective(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    del context
    name = op_name(op).removeprefix(_PREFIX)
    if "lk.axis" not in op.attributes:
        raise RefusalError("capture found no axis of a mesh for its process group")
    waits = [use.owner.operation for use in op.results[0].uses]
    if [op_name(wait) for wait in waits] != [_WAIT]:
        raise RefusalError("it must be waited for once, and not be read before")
    axis, ranks = ir.StringAttr(op.attributes["lk.axis"]).value, ir.IntegerAttr(op.attributes["lk.ranks"]).value
    begun = _BEGIN[name](op, axis, ranks)
    with ir.InsertionPoint(waits[0]), op.location:
        done = CollectiveDoneOp.build(begun)
        info = tensor_info(op.results[0])
        stacked = name in ("all_gather_into_tensor", "all_to_all_single")
        result = from_builtin(_joined(done) if stacked else done, info)
        if name in ("all_reduce", "reduce_scatter_tensor") and string_of(op.operands[1]) == "avg":
            if not info.is_float:
                raise RefusalError("an average of integers")
            result = binary_scalar("div", result, ranks, info.dtype)
    return [result]


def _wait(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    del context
    owner = defining_op(op.operands[0])
    if owner is not None and op_name(owner).startswith(_PREFIX):
        raise RefusalError("what it waits for cannot be raised")
    return [op.operands[0]]


def _all_reduce(op: ir.Operation, axis: str, ranks: int) -> ir.Value:
    """(input, reduction, group)."""
    value = to_builtin(op.operands[0])
    return CollectiveStartOp.build(value, kind="all_reduce", axis=axis, ranks=ranks, reduction=_reduction(op))


def _all_gather(op: ir.Operation, axis: str, ranks: int) -> ir.Value:
    """(input, size of the group, group)."""
    _require_size(int_of(op.operands[1]), ranks)
    return CollectiveStartOp.build(to_builtin(op.operands[0]), kind="all_gather", axis=axis, ranks=ranks)


def _reduce_scatter(op: ir.Operation, axis: str, ranks: int) -> ir.Value:
    """(input, reduction, size of the group, group)."""
    _require_size(int_of(op.operands[2]), ranks)
    value = _apart(to_builtin(op.operands[0]), ranks)
    return CollectiveStartOp.build(value, kind="reduce_scatter", axis=axis, ranks=ranks, reduction=_reduction(op))


def _all_to_all(op: ir.Operation, axis: str, ranks: int) -> ir.Value:
    """(input, sizes that come, sizes that go, group)."""
    for splits in (ints_of(op.operands[1]), ints_of(op.operands[2])):
        if splits and len(set(splits)) != 1:
            raise RefusalError(f"slices of unlike sizes {splits}")
    value = _apart(to_builtin(op.operands[0]), ranks)
    return CollectiveStartOp.build(value, kind="all_to_all", axis=axis, ranks=ranks)


def _broadcast(op: ir.Operation, axis: str, ranks: int) -> ir.Value:
    """(input, rank in the group that gives, group)."""
    value, root = to_builtin(op.operands[0]), int_of(op.operands[1])
    return CollectiveStartOp.build(value, kind="broadcast", axis=axis, ranks=ranks, root=root)


_BEGIN: dict[str, Begin] = {
    "all_reduce": _all_reduce,
    "all_gather_into_tensor": _all_gather,
    "reduce_scatter_tensor": _reduce_scatter,
    "all_to_all_single": _all_to_all,
    "broadcast": _broadcast,
}


def _reduction(op: ir.Operation) -> str:
    name = string_of(op.operands[1]).lower()
    if name not in _REDUCTIONS:
        raise RefusalError(f"the reduction {name!r}")
    return _REDUCTIONS[name]


def _require_size(stated: int, ranks: int) -> None:
    if stated != ranks:
        raise RefusalError(f"the graph says that the group has {stated} ranks, and it has {ranks}")


def _apart(value: ir.Value, ranks: int) -> ir.Value:
    """Cuts the first dimension into ``ranks`` slices, which a new first dimension counts."""
    shape = shape_of(value)
    if not shape or shape[0] == DYNAMIC or shape[0] % ranks:
        raise RefusalError(f"{value.type} cannot be cut into {ranks} slices of one size")
    apart = [ranks, shape[0] // ranks, *shape[1:]]
    groups = [[0, 1], *([axis + 1] for axis in range(1, len(shape)))]
    sizes = [dimension(value, axis) for axis, extent in enumerate(shape) if extent == DYNAMIC]
    return tensor.ExpandShapeOp(ir.RankedTensorType.get(apart, element_of(value)), value, groups, sizes, apart).result


def _joined(stacked: ir.Value) -> ir.Value:
    """Joins the first dimension, which counts slices, with the first one of a slice."""
    shape = shape_of(stacked)
    if len(shape) < 2:
        return stacked  # of scalars
    first = DYNAMIC if DYNAMIC in shape[:2] else shape[0] * shape[1]
    groups = [[0, 1], *([axis] for axis in range(2, len(shape)))]
    kind = ir.RankedTensorType.get([first, *shape[2:]], element_of(stacked))
    return tensor.CollapseShapeOp(kind, stacked, groups).result


@dataclass(frozen=True)
class RaiseCollectives(TablePass):
    """Raises functional collectives that are waited for. Precondition: none."""

    name: ClassVar[str] = "raise-collectives"
    rules: ClassVar[Mapping[str, Rule]] = {**{f"{_PREFIX}{name}": _collective for name in _BEGIN}, _WAIT: _wait}
