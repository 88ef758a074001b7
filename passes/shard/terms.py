"""Which ops give terms of their result from terms of their operands: those that are linear in them.

What follows is then done on each rank's own term, and the sum is made behind it. This is taken where it lowers what
the sum moves: two sums that are added are one sum, a part of a sum is a smaller one.
"""

from __future__ import annotations

from collections.abc import Collection

from lowerkit.mlir import ir
from lowerkit.passes.elementwise import as_elementwise
from lowerkit.passes.rewriting import constant_of, operations
from lowerkit.passes.shard.loops.structured import number_of

_VIEWS = frozenset(
    {
        "tensor.expand_shape",
        "tensor.collapse_shape",
        "tensor.cast",
        "tensor.extract_slice",
        "linalg.transpose",
    }
)
_BOTH = frozenset({"arith.addf", "arith.addi", "arith.subf", "arith.subi"})
_EITHER = frozenset({"arith.mulf", "arith.muli"})


def is_linear_in(op: ir.Operation, numbers: Collection[int]) -> bool:
    """Whether the result on terms of the operands with ``numbers``, the others whole, is a term of the result."""
    if op.name in _VIEWS:
        return list(numbers) == [0]
    if op.name == "tensor.concat":
        return len(numbers) == len(op.operands)
    if op.name == "tensor.pad":
        return list(numbers) == [0] and _pads_with_zero(op)
    if op.name == "lk.reduce":
        return ir.StringAttr(op.attributes["kind"]).value in ("sum", "mean")
    return op.name == "linalg.generic" and _is_linear_body(op, numbers)


def _pads_with_zero(op: ir.Operation) -> bool:
    ended = operations(op.regions[0].blocks[0])[-1]
    return number_of(constant_of(ended.operands[0])) == 0


def _is_linear_body(op: ir.Operation, numbers: Collection[int]) -> bool:
    view = as_elementwise(op)
    if view is None or any(number >= len(view.inputs) for number in numbers):
        return False
    terms = {view.body.arguments[number] for number in numbers}
    for inner in operations(view.body):
        read = [operand in terms for operand in inner.operands]
        if inner.name == "linalg.yield":
            return all(read)
        if not any(read):
            continue
        linear = (
            (inner.name in _BOTH and all(read))
            or (inner.name in _EITHER and not all(read))
            or inner.name in ("arith.negf", "arith.extf")
            or (inner.name == "arith.divf" and not read[1])
        )
        if not linear:
            return False
        terms.add(inner.results[0])
    return False
