"""Raises topk, sort and argsort to ``lk.topk`` and ``lk.sort``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.dialect import SortOp, TopkOp
from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.torch_dialect.table_pass import Rule, TablePass
from lowerkit.passes.raising.torch_dialect.torch_build import from_ordered, ordered, scalar_tensor
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    RefusalError,
    bool_of,
    from_builtin,
    int_of,
    tensor_info,
    to_builtin,
)


def _in_order(op: ir.Operation, given: ir.Value, built: Sequence[ir.Value]) -> list[ir.Value]:
    """The values as elements of the operand, and their positions; ``argsort`` has positions alone."""
    places = from_builtin(built[1], tensor_info(op.results[-1]))
    if len(op.results) == 1:
        return [places]
    result = tensor_info(op.results[0])
    found = from_builtin(built[0], tensor_info(given).with_shape(result.shape))
    return [from_ordered(found, result.dtype), places]


def _raise_topk(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """topk: (input, k, dim, largest, sorted)."""
    value, k, dim, largest, in_order = op.operands
    if not tensor_info(value).rank:
        if int_of(k) != 1:
            raise RefusalError(f"{int_of(k)} of one element")
        return _alone(op)
    given = ordered(value)
    built = TopkOp.build(
        to_builtin(given),
        k=int_of(k),
        axis=tensor_info(value).normalized_axis(int_of(dim)),
        largest=bool_of(largest),
        sorted=bool_of(in_order),
    )
    return _in_order(op, given, built)


def _alone(op: ir.Operation) -> list[ir.Value]:
    """An element of rank 0 is the first of itself."""
    return [op.operands[0], scalar_tensor(0, "si64")][-len(op.results) :]


def _raise_order(*, has_stable: bool) -> Rule:
    """sort, argsort: (input, dim, descending), with ``stable`` behind the input in one overload of each."""

    def rule(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
        value, *stable, dim, descending = op.operands
        if not tensor_info(value).rank:
            return _alone(op)
        given = ordered(value)
        built = SortOp.build(
            to_builtin(given),
            axis=tensor_info(value).normalized_axis(int_of(dim)),
            descending=bool_of(descending),
            stable=has_stable and bool_of(stable[0], default=False),
        )
        return _in_order(op, given, built)

    return rule


@dataclass(frozen=True)
class RaiseSorting(TablePass):
    """Raises topk, sort and argsort. Precondition: none."""

    name: ClassVar[str] = "raise-sorting"
    rules: ClassVar[Mapping[str, Rule]] = {
        "torch.aten.topk": _raise_topk,
        "torch.aten.sort": _raise_order(has_stable=False),
        "torch.aten.sort.stable": _raise_order(has_stable=True),
        "torch.aten.argsort": _raise_order(has_stable=False),
        "torch.aten.argsort.stable": _raise_order(has_stable=True),
    }
