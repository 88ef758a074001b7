"""Index arithmetic of a region's body as kernel text: sizes, offsets and positions that slices are taken at."""

from __future__ import annotations

from lowerkit.mlir import ir
from lowerkit.targets.cpu.text.kernel_frame import KernelFrame
from lowerkit.targets.cpu.text.kernel_text import Index
from lowerkit.targets.cpu.text.region_values import Located, source_of

__all__ = ["index_of"]

_BINARY = {
    "arith.addi": "iadd",
    "arith.subi": "isub",
    "arith.muli": "imul",
    "arith.minsi": "imin",
    "arith.maxsi": "imax",
    "arith.divui": "idiv",
    "arith.remui": "irem",
}
_COMPARISONS = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")


def index_of(value: ir.Value, frame: KernelFrame) -> Index | None:
    """Returns an ``index`` or integer value of the body; None where an op has no form here.

    Reads elements of operands (a position in a KV cache) where the body does: call this in the head of the kernel.
    """
    owner = value.owner
    if isinstance(owner, ir.Block):
        return None
    operation, text = owner.operation, frame.text
    operands = list(operation.operands)
    if operation.name == "arith.constant":
        attribute = operation.attributes["value"]
        if isinstance(attribute, ir.BoolAttr):
            return int(attribute.value)
        return attribute.value if isinstance(attribute, ir.IntegerAttr) else None
    if operation.name == "tensor.dim":
        source, axis = source_of(operands[0], frame), index_of(operands[1], frame)
        if isinstance(source, Located) and isinstance(axis, int) and axis < len(source.sizes):
            return source.sizes[axis]
        return None
    if operation.name == "tensor.extract":
        source = source_of(operands[0], frame)
        place = [index_of(operand, frame) for operand in operands[1:]]
        if not isinstance(source, Located) or source.buffer.element not in ("i64", "i32", "i16", "i8"):
            return None
        if any(coordinate is None for coordinate in place):
            return None
        at = text.dot([p for p in place if p is not None], text.row_major(source.sizes))
        element = text.read(source.buffer, at)
        return element if element.element == "i64" else text.cast("arith.extsi", element, "i64")
    if operation.name in ("arith.index_cast", "arith.extsi"):
        return index_of(operands[0], frame) if _wide(value.type) else None
    parts = [index_of(operand, frame) for operand in operands]
    if any(part is None for part in parts):
        return None
    known = [part for part in parts if part is not None]
    if operation.name in _BINARY and _wide(value.type):
        result: Index = getattr(text, _BINARY[operation.name])(known[0], known[1])
        return result
    if operation.name == "arith.select" and _wide(value.type):
        condition = text.compare("ne", text.as_value(known[0]), text.i64(0))
        return text.select(condition, text.as_value(known[1]), text.as_value(known[2]))
    if operation.name == "arith.cmpi":
        predicate = _COMPARISONS[ir.IntegerAttr(operation.attributes["predicate"]).value]
        found = text.compare(predicate, text.as_value(known[0]), text.as_value(known[1]))
        return text.cast("arith.extui", found, "i64")
    return None


def _wide(type_: ir.Type) -> bool:
    return str(type_) in ("index", "i64")
