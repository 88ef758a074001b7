"""Raises topk, sort and argsort to ``lk.topk`` and ``lk.sort``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.dialect import SortOp, TopkOp
from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.torch_dialect.table_pass import Rule, TablePass
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    RefusalError,
    bool_of,
    from_builtin,
    int_of,
    tensor_info,
    to_builtin,
)


def _pair(op: ir.Operation, built: Sequence[ir.Value]) -> list[ir.Value]:
    return [from_builtin(value, tensor_info(result)) for value, result in zip(built, op.results, strict=True)]


def _raise_topk(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """topk: (input, k, dim, largest, sorted)."""
    value, k, dim, largest, in_order = op.operands
    axis = _axis(value, dim)
    built = TopkOp.build(to_builtin(value), k=int_of(k), axis=axis, largest=bool_of(largest), sorted=bool_of(in_order))
    return _pair(op, built)


def _sort(value: ir.Value, dim: ir.Value, descending: ir.Value, *, stable: bool) -> Sequence[ir.Value]:
    return SortOp.build(to_builtin(value), axis=_axis(value, dim), descending=bool_of(descending), stable=stable)


def _axis(value: ir.Value, dim: ir.Value) -> int:
    info = tensor_info(value)
    if info.rank == 0 or info.dtype in ("i1", "ui8"):
        raise RefusalError(f"an order of {info}")
    return info.normalized_axis(int_of(dim))


def _raise_sort(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """sort: (input, dim, descending)."""
    return _pair(op, _sort(op.operands[0], op.operands[1], op.operands[2], stable=False))


def _raise_stable_sort(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """sort.stable: (input, stable, dim, descending)."""
    value, stable, dim, descending = op.operands
    return _pair(op, _sort(value, dim, descending, stable=bool_of(stable, default=False)))


def _raise_argsort(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """argsort: (input, dim, descending)."""
    indices = _sort(op.operands[0], op.operands[1], op.operands[2], stable=False)[1]
    return [from_builtin(indices, tensor_info(op.results[0]))]


def _raise_stable_argsort(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """argsort.stable: (input, stable, dim, descending)."""
    value, stable, dim, descending = op.operands
    return [from_builtin(_sort(value, dim, descending, stable=bool_of(stable))[1], tensor_info(op.results[0]))]


@dataclass(frozen=True)
class RaiseSorting(TablePass):
    """Raises topk, sort and argsort. Precondition: none."""

    name: ClassVar[str] = "raise-sorting"
    rules: ClassVar[Mapping[str, Rule]] = {
        "torch.aten.topk": _raise_topk,
        "torch.aten.sort": _raise_sort,
        "torch.aten.sort.stable": _raise_stable_sort,
        "torch.aten.argsort": _raise_argsort,
        "torch.aten.argsort.stable": _raise_stable_argsort,
    }
