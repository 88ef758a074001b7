"""Raises running sums, products and extremes to ``lk.cumulative``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.dialect import CumulativeOp
from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.torch_dialect.dead_ops import is_unused
from lowerkit.passes.raising.torch_dialect.table_pass import Rule, TablePass
from lowerkit.passes.raising.torch_dialect.torch_build import cast
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    RefusalError,
    dtype_of_code,
    from_builtin,
    int_of,
    like_result,
    tensor_info,
    to_builtin,
)


def _cumulative(op: ir.Operation, value: ir.Value, kind: str) -> ir.Value:
    info = tensor_info(value)
    if info.rank == 0:  # one that runs over itself
        return like_result(value, op)[0]
    axis = info.normalized_axis(int_of(op.operands[1]))
    return from_builtin(CumulativeOp.build(to_builtin(value), kind=kind, axis=axis), tensor_info(op.results[0]))


def _raise_accumulation(kind: str) -> Rule:
    """cumsum, cumprod: (input, dim, dtype); integers and bools are summed in int64."""

    def rule(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
        info = tensor_info(op.operands[0])
        dtype = dtype_of_code(op.operands[2]) or (info.dtype if info.is_float else "si64")
        return [_cumulative(op, cast(op.operands[0], dtype), kind)]

    return rule


def _raise_running_extreme(kind: str) -> Rule:
    """cummax, cummin: (input, dim) -> (values, indices)."""

    def rule(op: ir.Operation, context: PassContext) -> Sequence[ir.Value | None]:
        if not is_unused(op.results[1]):
            raise RefusalError("the positions of the extremes are read")
        return [_cumulative(op, op.operands[0], kind), None]

    return rule


@dataclass(frozen=True)
class RaiseCumulative(TablePass):
    """Raises running values to ``lk.cumulative``. Precondition: none."""

    name: ClassVar[str] = "raise-cumulative"
    rules: ClassVar[Mapping[str, Rule]] = {
        "torch.aten.cumsum": _raise_accumulation("sum"),
        "torch.aten.cumprod": _raise_accumulation("prod"),
        "torch.aten.cummax": _raise_running_extreme("max"),
        "torch.aten.cummin": _raise_running_extreme("min"),
    }
