"""Replaces each op that gives only tensors without elements: such values need no computing.

A conversion of torch-mlir may divide by the extent 0 and end the process, and no kernel has anything to do. What checks
indices stands beside its op by now (``raise-index-checks``) and stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lowerkit.mlir import arith, ir, linalg, tensor, walk
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    TORCH_DTYPE_CODES,
    TensorInfo,
    from_builtin,
    is_tensor,
    tensor_info,
)
from lowerkit.passes.rewriting import replace

_COMPUTING = ("torch.aten.", "torch.prims.")


@dataclass(frozen=True)
class FoldEmptyTensors(Pass):
    """Replaces every op whose results all are tensors of a static shape with an extent of 0. Precondition: captured."""

    name: ClassVar[str] = "fold-empty-tensors"

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Rewrites in place."""
        found: list[ir.Operation] = []

        def collect(op: ir.Operation) -> None:
            if op.name.startswith(_COMPUTING) and len(op.results) and all(map(_holds_nothing, op.results)):
                found.append(op)

        walk(module.operation, collect)
        for op in found:
            with module.context, ir.InsertionPoint(op), op.location:
                replace(op, [_without_elements(tensor_info(result)) for result in op.results])
        return bool(found)


def _holds_nothing(value: ir.Value) -> bool:
    if not is_tensor(value):
        return False
    info = tensor_info(value)
    return None not in info.shape and 0 in info.shape and info.dtype in TORCH_DTYPE_CODES


def _without_elements(info: TensorInfo) -> ir.Value:
    kind = info.builtin_type()
    element = kind.element_type
    zero = ir.FloatAttr.get(element, 0.0) if info.is_float else ir.IntegerAttr.get(element, 0)
    empty = tensor.EmptyOp(kind.shape, element).result
    # A constant tensor would be folded through the cast; a filled one is not.
    fill = linalg.FillOp([kind], [arith.ConstantOp(element, zero).result], [empty])
    linalg.fill_builtin_region(fill.operation)
    return from_builtin(fill.results[0], info)
