"""What the values inside a region's body are to a kernel: a buffer, a constant, the anchor's result, or nothing."""

from __future__ import annotations

from dataclasses import dataclass

from lowerkit.mlir import ir
from lowerkit.targets.cpu.text.kernel_frame import KernelFrame
from lowerkit.targets.cpu.text.kernel_text import Buffer, Index

__all__ = ["AnchorResult", "Constant", "Located", "Source", "Unset", "source_of"]


@dataclass(frozen=True)
class Located:
    """A contiguous tensor in a kernel buffer, seen with these sizes."""

    buffer: Buffer
    sizes: tuple[Index, ...]
    operand: int


@dataclass(frozen=True)
class Constant:
    """A tensor with one number in every place, or a scalar."""

    number: float | int


@dataclass(frozen=True)
class AnchorResult:
    """The result of the region's anchor, which lives in registers."""


@dataclass(frozen=True)
class Unset:
    """A ``tensor.empty``: nobody reads it."""


Source = Located | Constant | AnchorResult | Unset

# Ops that show the same contiguous elements under another shape.
_VIEWS = ("tensor.cast", "tensor.expand_shape", "tensor.collapse_shape")


def source_of(value: ir.Value, frame: KernelFrame, anchor: ir.Operation | None = None) -> Source | None:
    """Returns what ``value`` is; None where it is something that a register-level kernel cannot read."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        number = ir.BlockArgument(value).arg_number
        return Located(frame.buffers[number], tuple(frame.sizes[number]), number)
    operation = owner.operation
    if anchor is not None and operation == anchor:
        return AnchorResult()
    if operation.name == "tensor.empty":
        return Unset()
    if operation.name == "linalg.fill":
        inner = source_of(operation.operands[0], frame)
        return inner if isinstance(inner, Constant) else None
    if operation.name == "arith.constant":
        return _constant(operation.attributes["value"])
    if operation.name in _VIEWS:
        inner = source_of(operation.operands[0], frame)
        if isinstance(inner, Constant):
            return inner
        type_ = ir.RankedTensorType(value.type)
        if isinstance(inner, Located) and type_.has_static_shape:
            return Located(inner.buffer, tuple(type_.shape), inner.operand)
    return None


def _constant(attribute: ir.Attribute) -> Constant | None:
    if isinstance(attribute, ir.DenseElementsAttr):
        if not attribute.is_splat:
            return None
        attribute = attribute.get_splat_value()
    if isinstance(attribute, ir.BoolAttr):
        return Constant(int(attribute.value))
    if isinstance(attribute, ir.FloatAttr | ir.IntegerAttr):
        return Constant(attribute.value)
    return None
