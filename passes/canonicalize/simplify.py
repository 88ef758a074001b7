"""Removes what computes nothing: dead ops, transposes that cancel or move nothing, casts, views of views.

Upstream ``canonicalize`` and ``cse`` fold shapes, views, casts and scalar constants; what they do not know is done
here: transposes of transposes, transposes that move extents of one only (views), ``tensor.reshape`` with a static
shape (two views), elementwise ``arith`` or ``math`` ops on whole tensors (a ``linalg.generic``), and squares and cubes
written as powers (products, which is how eager computes them).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lowerkit.mlir import arith, ir, run_pipeline, tensor
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.layout.propagate_transposes import push_transpose
from lowerkit.passes.rewriting import (
    DYNAMIC,
    constant_int,
    element_of,
    erase_dead,
    main_block,
    operations,
    replace,
    shape_of,
)

_UPSTREAM = "builtin.module(func.func(convert-elementwise-to-linalg),canonicalize,cse)"


@dataclass(frozen=True)
class Simplify(Pass):
    """Cleans up between other passes.

    Precondition: stage raised, canonical or layout (no regions yet).
    """

    name: ClassVar[str] = "simplify"

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Transforms in place; see :class:`Pass`."""
        block = main_block(module)
        before = [op.name for op in operations(block)]
        run_pipeline(module, _UPSTREAM)
        block = main_block(module)
        multiplied = sum([_expand_small_powers(op) for op in operations(block) if op.name == "linalg.generic"])
        for op in operations(block):
            with ir.InsertionPoint(op), op.location:
                if op.name == "linalg.transpose":
                    values = push_transpose(op)
                elif op.name == "tensor.reshape":
                    values = _static_reshape(op)
                else:
                    continue
            if values is not None:
                replace(op, values)
        erase_dead(block)
        return multiplied > 0 or [op.name for op in operations(block)] != before


def _expand_small_powers(generic: ir.Operation) -> int:
    """Writes ``math.fpowi`` with exponent 2 or 3 as products; returns how many."""
    count = 0
    for op in operations(generic.regions[0].blocks[0]):
        exponent = constant_int(op.operands[1]) if op.name == "math.fpowi" else None
        if exponent in (2, 3):
            base = op.operands[0]
            with ir.InsertionPoint(op), op.location:
                product = arith.MulFOp(base, base).result
                replace(op, [product if exponent == 2 else arith.MulFOp(product, base).result])
            count += 1
    return count


def _static_reshape(op: ir.Operation) -> list[ir.Value] | None:
    """Writes a reshape between static shapes as a collapse to one dimension and an expansion."""
    source = op.operands[0]
    old, new = shape_of(source), shape_of(op.results[0])
    if DYNAMIC in old + new or not old or not new:
        return None
    total = 1
    for extent in old:
        total *= extent
    flat = source
    if len(old) > 1:
        kind = ir.RankedTensorType.get([total], element_of(source))
        flat = tensor.CollapseShapeOp(kind, source, [list(range(len(old)))]).result
    if len(new) == 1:
        return [flat]
    kind = ir.RankedTensorType.get(new, element_of(source))
    return [tensor.ExpandShapeOp(kind, flat, [list(range(len(new)))], [], new).result]
