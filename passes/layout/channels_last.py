"""Turns convolutions and their companions to channels-last.

A vector register then holds neighbouring channels of one pixel: every load of a convolution, pooling or bias is
contiguous whatever the kernel size and stride, and 1x1 convolutions are plain matrix products.

Steps: each op with a ``channels_last`` attribute that is false gets its input transposed, the attribute set, and its
result transposed back. ``propagate-transposes`` then moves the pairs together until they cancel. Filters stay
[Cout, Cin/groups, k...]: they are packed at compile time.

A convolution that pads and whose filter holds NaN or infinities stays as it is: channels-last kernels leave out
the taps that lie outside the image, where eager multiplies zeros with them, which gives NaN.

Bytes: two per transpose and element that does not cancel; in ResNet-50 that is the image alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lowerkit.mlir import ir
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.layout.transposes import build_transpose, channels_to_last, channels_to_second
from lowerkit.passes.rewriting import main_block, operations, shape_of, weight_symbol

_CONVOLUTIONS = frozenset({"lk.conv", "lk.conv_transpose", "lk.integer_conv"})
_COMPANIONS = frozenset({"lk.max_pool", "lk.avg_pool", "lk.group_norm", "lk.resize"})


@dataclass(frozen=True)
class ChannelsLast(Pass):
    """Gives convolutions, pools, group norms and resizes the layout N spatial C.

    Precondition: stage canonical. A module without convolutions is left alone: there the transposes would not pay.
    """

    name: ClassVar[str] = "channels-last"

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Transforms in place; see :class:`Pass`."""
        block = main_block(module)
        snapshot = operations(block)
        if not any(op.name in _CONVOLUTIONS for op in snapshot):
            return False
        changed = False
        for op in snapshot:
            if op.name not in _CONVOLUTIONS | _COMPANIONS or ir.BoolAttr(op.attributes["channels_last"]).value:
                continue
            if len(shape_of(op.operands[0])) < 3:
                continue  # a group norm over [N, C] has nothing to move
            if op.name == "lk.conv" and _meets_zeros(op, context):
                continue
            _convert(op)
            changed = True
        return changed


def _meets_zeros(op: ir.Operation, context: PassContext) -> bool:
    """Whether padding meets a filter that makes NaN of it."""
    name = weight_symbol(op.operands[1])
    if name is None or not context.weights.has_data(name) or not any(ir.DenseI64ArrayAttr(op.attributes["padding"])):
        return False
    return not bool(np.isfinite(context.weights.get(name)).all())


def _convert(op: ir.Operation) -> None:
    rank = len(shape_of(op.operands[0]))
    result = op.results[0]
    readers = [(use.owner.operation, use.operand_number) for use in result.uses]
    kind = ir.RankedTensorType(result.type)
    with op.location:
        with ir.InsertionPoint(op):
            op.operands[0] = build_transpose(op.operands[0], channels_to_last(rank))
        op.attributes["channels_last"] = ir.BoolAttr.get(True)
        result.set_type(
            ir.RankedTensorType.get([kind.shape[axis] for axis in channels_to_last(rank)], kind.element_type)
        )
        with ir.InsertionPoint.after(op):
            restored = build_transpose(result, channels_to_second(rank))
    for reader, number in readers:
        reader.operands[number] = restored
