"""Extents that are not known at compile time, computed again of the extents of a program's arguments alone.

Every rank is given all arguments, so what is computed of their extents can be computed anywhere: in front of the op
that makes a tensor, and on ranks that do not make it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lowerkit.dialect import CollectiveStartOp
from lowerkit.mlir import arith, ir
from lowerkit.passes.canonicalize.origins import origin
from lowerkit.passes.layout.transposed_views import reassociation_of
from lowerkit.passes.rewriting import (
    DYNAMIC,
    captured_values,
    clone_op,
    constant_index,
    constant_int,
    defining_op,
    dimension,
    operations,
    shape_of,
    tensor_type,
)


def read_at_arguments(block: ir.Block, is_placed: Callable[[ir.Operation], bool]) -> None:
    """Replaces extents of what some ranks alone have by what they are of the extents of arguments.

    Extents that depend on data stay. So do those of tensors that every rank makes: it can ask these.

    Args:
        block: a program's.
        is_placed: whether some ranks alone run an op; they alone have what is computed of its results, too.
    """
    placed: set[ir.Value] = set()
    for op in operations(block):
        axis = constant_int(op.operands[1]) if op.name == "tensor.dim" else None
        if axis is not None and op.operands[0] in placed:
            with ir.InsertionPoint(op), op.location:
                known = open_extent(op.operands[0], axis)
            if known is not None:
                op.results[0].replace_all_uses_with(known)
                op.erase()
                continue
        if is_placed(op) or placed & {*op.operands, *captured_values(op)}:
            placed.update(op.results)


def open_shape(value: ir.Value) -> list[int | ir.Value] | None:
    """Returns the shape of a tensor, open extents built at the insertion point; None where one depends on data."""
    found: list[int | ir.Value] = []
    for axis, size in enumerate(shape_of(value)):
        extent = open_extent(value, axis) if size == DYNAMIC else size
        if extent is None:
            return None
        found.append(extent)
    return found


def open_extent(value: ir.Value, axis: int) -> ir.Value | None:
    """Builds an extent at the insertion point, of extents of arguments alone; None where it depends on data.

    Args:
        value: a tensor of a block that the insertion point is in; it may be made behind it.
        axis: of the tensor.
    """
    value, axis = origin(value, axis)
    extent = shape_of(value)[axis]
    if extent != DYNAMIC:
        return constant_index(extent)
    op = defining_op(value)
    if op is None:
        return dimension(value, axis)
    if op.name.startswith("linalg."):
        number = list(op.results).index(value)
        return open_extent(op.operands[len(op.operands) - len(op.results) + number], axis)
    match op.name:
        case "tensor.empty":
            return _number(_dynamic(shape_of(value), list(op.operands), axis))
        case "tensor.expand_shape":
            return _number(_dynamic(shape_of(value), list(op.operands)[1:], axis))
        case "tensor.extract_slice":
            return _of_slice(op, axis)
        case "tensor.collapse_shape":
            joined = [own for own in reassociation_of(op)[axis] if shape_of(op.operands[0])[own] != 1]
            return _combined(arith.MulIOp, [open_extent(op.operands[0], own) for own in joined])
        case "tensor.concat":
            return _combined(arith.AddIOp, [open_extent(operand, axis) for operand in op.operands])
        case "tensor.cast" | "lk.collective_done":
            return open_extent(op.operands[0], axis)
        case "tensor.insert_slice":
            return open_extent(op.operands[1], axis)
        case "lk.collective_start":
            own = CollectiveStartOp.result_shape(op, tuple(f"{place}" for place in range(_rank(op.operands[0]))))[axis]
            return open_extent(op.operands[0], int(own)) if isinstance(own, str) else constant_index(own)
        case _:
            return None


def _rank(value: ir.Value) -> int:
    return len(shape_of(value))


def _dynamic(shape: Sequence[int], sizes: Sequence[ir.Value], axis: int) -> ir.Value:
    """Returns the operand of an op that states the open extent of a dimension."""
    return sizes[sum(size == DYNAMIC for size in shape[:axis])]


def _of_slice(op: ir.Operation, axis: int) -> ir.Value | None:
    """The extent of a slice that has as many dimensions as what it is cut of."""
    sizes = list(ir.DenseI64ArrayAttr(op.attributes["static_sizes"]))
    if len(sizes) != len(shape_of(op.results[0])):
        return None
    source, offsets, *_ = ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])
    return _number(_dynamic(sizes, list(op.operands)[source + offsets :], axis))


def _combined(op: type[arith.MulIOp] | type[arith.AddIOp], extents: Sequence[ir.Value | None]) -> ir.Value | None:
    total: ir.Value | None = None
    for extent in extents:
        if extent is None:
            return None
        total = extent if total is None else op(total, extent).result
    return total


def _number(value: ir.Value) -> ir.Value | None:
    """Builds an index value again, of extents of arguments alone."""
    op = defining_op(value)
    if op is None or tensor_type(value) is not None:
        return None
    if op.name == "tensor.dim":
        axis = constant_int(op.operands[1])
        return None if axis is None else open_extent(op.operands[0], axis)
    if not op.name.startswith("arith."):
        return None
    mapping: dict[ir.Value, ir.Value] = {}
    for operand in op.operands:
        made = _number(operand)
        if made is None:
            return None
        mapping[operand] = made
    return clone_op(op, mapping).results[0]
