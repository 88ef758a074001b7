"""Lets convolutions and pools read past the edge themselves instead of reading a padded copy.

``tensor.pad`` with a constant value becomes padding of the op that reads it, where that op pads with the same value:
    conv       zero; an integer_conv without padding of its own takes any value
    max_pool   -infinity, which never wins
    avg_pool   zero, where padding counts as elements of the mean (or the divisor is given)

Bytes: the padded copy, two per element, is saved.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.passes.base import Pass, PassContext
from lowerkit.passes.rewriting import DYNAMIC, constant_of, defined_by, erase_dead, main_block, operations, shape_of

_PADDING_VALUES = {"lk.conv": 0.0, "lk.max_pool": -math.inf, "lk.avg_pool": 0.0}


@dataclass(frozen=True)
class FoldPadding(Pass):
    """Folds ``tensor.pad`` into convolutions and pools.

    Precondition: stage raised, canonical or layout (no regions yet).
    """

    name: ClassVar[str] = "fold-padding"

    def run(self, module: ir.Module, context: PassContext) -> bool:
        """Transforms in place; see :class:`Pass`."""
        block = main_block(module)
        changed = False
        for op in operations(block):
            if op.name in _PADDING_VALUES or op.name == "lk.integer_conv":
                with op.location:
                    changed = _fold(op) or changed
        return erase_dead(block) > 0 or changed


def _fold(op: ir.Operation) -> bool:
    pad = defined_by(op.operands[0], "tensor.pad")
    if pad is None:
        return False
    around = _padding_value(pad)
    is_conv = op.name in ("lk.conv", "lk.integer_conv")
    if op.name == "lk.integer_conv":
        if not isinstance(around, int) or any(ir.DenseI64ArrayAttr(op.attributes["padding"])):
            return False
    elif isinstance(around, int) or around != _PADDING_VALUES[op.name]:
        return False
    if op.name == "lk.avg_pool" and not _counts_padding(op):
        return False
    low = list(ir.DenseI64ArrayAttr(pad.attributes["static_low"]))
    high = list(ir.DenseI64ArrayAttr(pad.attributes["static_high"]))
    rank = len(low)
    channels_last = ir.BoolAttr(op.attributes["channels_last"]).value
    spatial = list(range(1, rank - 1)) if channels_last else list(range(2, rank))
    others = [axis for axis in range(rank) if axis not in spatial]
    if DYNAMIC in low + high or any(low[axis] or high[axis] for axis in others) or min(low + high) < 0:
        return False
    old = list(ir.DenseI64ArrayAttr(op.attributes["padding"]))
    new = [
        amount
        for index, axis in enumerate(spatial)
        for amount in (old[2 * index] + low[axis], old[2 * index + 1] + high[axis])
    ]
    if not is_conv and _windows_in_padding(op, new, [shape_of(pad.operands[0])[axis] for axis in spatial]):
        return False
    op.attributes["padding"] = ir.DenseI64ArrayAttr.get(new)
    if isinstance(around, int):
        number = around & 255 if ir.BoolAttr(op.attributes["unsigned"]).value else around
        op.attributes["padding_value"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), number)
    op.operands[0] = pad.operands[0]
    return True


def _padding_value(pad: ir.Operation) -> float | int | None:
    """Returns the constant that ``tensor.pad`` writes around its source."""
    inner = operations(pad.regions[0].blocks[0])
    attribute = constant_of(inner[-1].operands[0])
    number = getattr(attribute, "value", None)
    return number if isinstance(number, (float, int)) else None


def _counts_padding(op: ir.Operation) -> bool:
    """Whether the elements of the padding count in the average, so that more of them change nothing else."""
    automatic = ir.IntegerAttr(op.attributes["divisor"]).value == 0
    return not automatic or ir.BoolAttr(op.attributes["count_include_pad"]).value


def _windows_in_padding(op: ir.Operation, padding: list[int], extents: list[int]) -> bool:
    """Whether a window could lie in the padding wholly: pools leave that case to the padded copy."""
    kernel = list(ir.DenseI64ArrayAttr(op.attributes["kernel"]))
    dilation = list(ir.DenseI64ArrayAttr(op.attributes["dilation"]))
    reach = [(size - 1) * step for size, step in zip(kernel, dilation, strict=True)]
    return any(
        padding[2 * axis] > reach[axis] or padding[2 * axis + 1] > reach[axis] or extent == DYNAMIC
        for axis, extent in enumerate(extents)
    )
