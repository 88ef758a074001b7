"""Raises softmax and log-softmax to ``lk.softmax``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.dialect import SoftmaxOp
from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.torch_dialect.table_pass import Rule, TablePass
from lowerkit.passes.raising.torch_dialect.torch_build import cast, view
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    RefusalError,
    bool_of,
    dtype_of_code,
    from_builtin,
    int_of,
    tensor_info,
    to_builtin,
)


def _build(op: ir.Operation, value: ir.Value, *, log: bool) -> Sequence[ir.Value]:
    info = tensor_info(value)
    if not info.is_float:
        raise RefusalError(f"a softmax of {info}")
    axis = info.normalized_axis(int_of(op.operands[1]))
    row = value if info.rank else view(value, [1])
    result = from_builtin(SoftmaxOp.build(to_builtin(row), axis=axis, log=log), tensor_info(row))
    return [result if info.rank else view(result, [])]


def _with_dtype(op: ir.Operation, *, log: bool) -> Sequence[ir.Value]:
    """softmax.int, log_softmax.int: (input, dim, dtype); the input is converted first."""
    dtype = dtype_of_code(op.operands[2])
    value = op.operands[0] if dtype is None else cast(op.operands[0], dtype)
    return _build(op, value, log=log)


def _with_flag(op: ir.Operation, *, log: bool) -> Sequence[ir.Value]:
    """_softmax, _log_softmax: (input, dim, half_to_float)."""
    to_float = bool_of(op.operands[2])
    return _build(op, cast(op.operands[0], "f32") if to_float else op.operands[0], log=log)


def _raise_softmax(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    return _with_dtype(op, log=False)


def _raise_log_softmax(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    return _with_dtype(op, log=True)


def _raise_private_softmax(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    return _with_flag(op, log=False)


def _raise_private_log_softmax(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    return _with_flag(op, log=True)


@dataclass(frozen=True)
class RaiseSoftmax(TablePass):
    """Raises softmax and log-softmax to ``lk.softmax``. Precondition: none.

    ``_safe_softmax``, which gives zeros for a row of -inf, is not a softmax of lk and stays.
    """

    name: ClassVar[str] = "raise-softmax"
    rules: ClassVar[Mapping[str, Rule]] = {
        "torch.aten.softmax.int": _raise_softmax,
        "torch.aten._softmax": _raise_private_softmax,
        "torch.aten.log_softmax.int": _raise_log_softmax,
        "torch.aten._log_softmax": _raise_private_log_softmax,
    }
