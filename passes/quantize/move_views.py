"""Brings quantization together with the products it belongs to: views and copies go out from between them.

    view(dequantize(x))            ->  dequantize(view(x))           reshapes and transposes of one scale for all
    gather(dequantize(x), i)       ->  dequantize(gather(x, i))      of one scale for all: a table of bytes stays one
    quantize(view(x))              ->  view(quantize(x))             where nothing else reads the view
    quantize(dequantize(x, p), p)  ->  x                             the same parameters: exact

The last holds because ``(x - z) * s`` rounded to f32 and divided by s is within 2^-22 of an integer of at most 16
bits. Exporters put a pair around every reshape.

Bytes: what was moved as floats is moved as integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lowerkit.dialect import GatherOp
from lowerkit.mlir import ir
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.layout.transposes import build_transpose, permutation_of
from lowerkit.passes.quantize.parameters import scaling_of
from lowerkit.passes.rewriting import (
    defined_by,
    defining_op,
    element_of,
    erase_dead,
    main_block,
    operations,
    replace,
    shape_of,
    users,
)

_VIEWS = frozenset({"tensor.expand_shape", "tensor.collapse_shape", "linalg.transpose"})
_SMALLEST_SCALE = 2.0**-100
"""Scales below would leave the normal floats on the way."""


@dataclass(frozen=True)
class MoveViews(Pass):
    """Moves views off the way between dequantize ops, computing ops and quantize ops, and drops pairs that cancel.

    Precondition: stage raised or canonical.
    """

    name: ClassVar[str] = "move-views"

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Transforms in place; see :class:`Pass`."""
        block = main_block(module)
        changed = False
        progress = True
        while progress:
            progress = False
            for op in operations(block):
                with ir.InsertionPoint(op), op.location:
                    value = _rewritten(op, context)
                if value is not None:
                    replace(op, [value])
                    progress = changed = True
            erase_dead(block)
        return changed


def _rewritten(op: ir.Operation, context: PassContext) -> ir.Value | None:
    if op.name in _VIEWS:
        return _below_dequantize(op)
    if op.name == "lk.gather":
        return _gathered(op)
    if op.name == "lk.quantize":
        return _cancelled(op, context) or _above_quantize(op)
    return None


def _below_dequantize(op: ir.Operation) -> ir.Value | None:
    dequantize = defined_by(op.operands[0], "lk.dequantize")
    if dequantize is None or not _has_one_scale(dequantize):
        return None
    if all(reader.name not in ("lk.matmul", "lk.conv", "lk.quantize", *_VIEWS) for reader in users(op.results[0])):
        return None  # floats are wanted; there the view belongs to whoever reads them
    moved = _apply(op, dequantize.operands[0])
    return None if moved is None else _again(dequantize, moved, shape_of(op.results[0]))


def _gathered(op: ir.Operation) -> ir.Value | None:
    dequantize = defined_by(op.operands[0], "lk.dequantize")
    if dequantize is None or not _has_one_scale(dequantize):
        return None
    axis = ir.IntegerAttr(op.attributes["axis"]).value
    return _again(
        dequantize, GatherOp.build(dequantize.operands[0], op.operands[1], axis=axis), shape_of(op.results[0])
    )


def _above_quantize(op: ir.Operation) -> ir.Value | None:
    view = defining_op(op.operands[0])
    if view is None or view.name not in _VIEWS or not _has_one_scale(op) or len(users(view.results[0])) != 1:
        return None
    source = view.operands[0]
    return _apply(view, _again(op, source, shape_of(source)))


def _cancelled(op: ir.Operation, context: PassContext) -> ir.Value | None:
    dequantize = defined_by(op.operands[0], "lk.dequantize")
    if dequantize is None or element_of(dequantize.operands[0]) != element_of(op.results[0]):
        return None
    if ir.IntegerType(element_of(op.results[0])).width > 16:
        return None
    before, after = scaling_of(dequantize, context), scaling_of(op, context)
    if before is None or after is None or not before.equals(after) or float(after.scale.min()) < _SMALLEST_SCALE:
        return None
    return dequantize.operands[0] if _is_full_range(op) else None


def _is_full_range(op: ir.Operation) -> bool:
    width = ir.IntegerType(element_of(op.results[0])).width
    low, high = (ir.IntegerAttr(op.attributes[name]).value for name in ("minimum", "maximum"))
    return high - low == (1 << width) - 1


def _has_one_scale(op: ir.Operation) -> bool:
    return not shape_of(op.operands[1])


def _again(op: ir.Operation, source: ir.Value, shape: list[int]) -> ir.Value:
    """Builds the quantize or dequantize op once more, on another source."""
    copy = op.clone().operation
    copy.operands[0] = source
    copy.results[0].set_type(ir.RankedTensorType.get(shape, element_of(op.results[0])))
    return copy.results[0]


def _apply(view: ir.Operation, source: ir.Value) -> ir.Value | None:
    """Builds the view of another source of the same shape."""
    if view.name == "linalg.transpose":
        return build_transpose(source, permutation_of(view))
    if len(view.operands) > 1:  # sizes that are known at run time only
        return None
    copy = view.clone().operation
    copy.operands[0] = source
    copy.results[0].set_type(ir.RankedTensorType.get(shape_of(view.results[0]), element_of(source)))
    return copy.results[0]
