"""Keeps look-ups inside their tensor: clamps computed positions of ``tensor.extract``.

torch-mlir lowers indexing by tensors to ``tensor.extract`` in the body of a ``linalg.generic``, with an assertion that
compiled code does not keep. A position that comes out of data is clamped, so that a wrong index gives a wrong element
and never reads outside of the tensor, as ``lk.gather`` does. What the user indexes by is refused before
(``lk.check_indices``).
"""

from __future__ import annotations

from lowerkit.mlir import ir, walk


def guard_look_ups(module: ir.Module) -> bool:
    """Clamps each position that is read out of data; returns whether there was one."""
    found: list[tuple[ir.Operation, int]] = []

    def collect(op: ir.Operation) -> None:
        if op.name == "tensor.extract":
            found.extend((op, axis) for axis in range(len(op.operands) - 1) if _comes_from_data(op.operands[axis + 1]))

    walk(module.operation, collect)
    for op, axis in found:
        with ir.InsertionPoint(op), op.location:
            op.operands[axis + 1] = _clamped(op.operands[axis + 1], op.operands[0], axis)
    return bool(found)


def _comes_from_data(position: ir.Value) -> bool:
    """Whether a position is an integer element made an index; loop counters and constants are in range as they are."""
    owner = position.owner
    return not isinstance(owner, ir.Block) and owner.operation.name == "arith.index_cast"


def _clamped(position: ir.Value, tensor: ir.Value, axis: int) -> ir.Value:
    index = ir.IndexType.get()
    kind = ir.RankedTensorType(tensor.type)
    zero = _constant(0)
    if kind.is_dynamic_dim(axis):
        size = ir.Operation.create("tensor.dim", results=[index], operands=[tensor, _constant(axis)]).results[0]
        last = ir.Operation.create("arith.subi", results=[index], operands=[size, _constant(1)]).results[0]
    else:
        last = _constant(kind.get_dim_size(axis) - 1)
    low = ir.Operation.create("arith.maxsi", results=[index], operands=[position, zero]).results[0]
    return ir.Operation.create("arith.minsi", results=[index], operands=[low, last]).results[0]


def _constant(number: int) -> ir.Value:
    index = ir.IndexType.get()
    attribute = ir.IntegerAttr.get(index, number)
    return ir.Operation.create("arith.constant", results=[index], attributes={"value": attribute}).results[0]
