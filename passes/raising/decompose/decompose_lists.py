"""Spells lists of tensors out: split, chunk, unbind and meshgrid become slices and broadcasts.

The list disappears: whoever reads a piece of it reads the slice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.raising.torch_dialect.table_pass import Rule, TablePass
from lowerkit.passes.raising.torch_dialect.torch_build import (
    add_sizes,
    common_sizes,
    expand,
    size,
    slice_axis,
    slice_open,
    squeeze,
    view,
)
from lowerkit.passes.raising.torch_dialect.torch_ir import (
    RefusalError,
    build,
    int_of,
    like_result,
    list_items,
    string_of,
    tensor_info,
    try_int,
)
from lowerkit.passes.source_location import op_name


def _slices(op: ir.Operation, axis: int, sizes: Sequence[int], *, drop_axis: bool = False) -> list[ir.Value]:
    """Makes the list of pieces along ``axis`` one of slices."""
    pieces: list[ir.Value] = []
    start = 0
    for length in sizes:
        piece = slice_axis(op.operands[0], axis, start, start + length)
        pieces.append(squeeze(piece, axis) if drop_axis else piece)
        start += length
    return _pieces(op, pieces)


def _open_slices(op: ir.Operation, axis: int, sizes: Sequence[int | ir.Value]) -> list[ir.Value]:
    """As ``_slices``, of a dim whose size, or the sizes of whose pieces, are known at run time only."""
    pieces: list[ir.Value] = []
    start: int | ir.Value = 0
    for length in sizes:
        end = add_sizes(start, length)
        pieces.append(slice_open(op.operands[0], axis, start, end))
        start = end
    return _pieces(op, pieces)


def _count_of_pieces(op: ir.Operation) -> int:
    """How many pieces the readers of the list that ``op`` makes know of."""
    count = 0
    for use in op.results[0].uses:
        reader = use.owner.operation
        if op_name(reader) == "torch.prim.ListUnpack":
            count = max(count, len(reader.results))
        elif op_name(reader) == "torch.aten.__getitem__.t":
            count = max(count, int_of(reader.operands[1]) + 1)
    return count


def _pieces(op: ir.Operation, pieces: Sequence[ir.Value]) -> list[ir.Value]:
    """Replaces the reads of the list that ``op`` makes by ``pieces``."""
    for use in list(op.results[0].uses):
        reader = use.owner.operation
        if op_name(reader) == "torch.prim.ListUnpack" and len(reader.results) == len(pieces):
            replacements = dict(enumerate(pieces))
        elif op_name(reader) == "torch.aten.__getitem__.t":
            replacements = {0: pieces[int_of(reader.operands[1])]}
        else:
            raise RefusalError(f"the list of pieces is read by {op_name(reader)}")
        for index, piece in replacements.items():
            result = reader.results[index]
            # A piece dominates the reader of the list, but the cast that like_result may build must do so too.
            with ir.InsertionPoint(reader):
                result.replace_all_uses_with(like_result(piece, reader, index)[0])
        reader.erase()
    list_type = op.results[0].type
    return [build("torch.prim.ListConstruct", pieces, [list_type])[0]]


def _split(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """split.Tensor: (input, size, dim): pieces of ``size``, the last one shorter."""
    info = tensor_info(op.operands[0])
    axis = info.normalized_axis(int_of(op.operands[2]))
    size, total = try_int(op.operands[1]), info.shape[axis]
    if size is not None and total is not None:
        return _slices(op, axis, [min(size, total - start) for start in range(0, total, size)])
    # Export fixed the number of pieces, under a condition on the size.
    return _open_slices(op, axis, [op.operands[1] if size is None else size] * _count_of_pieces(op))


def _split_sizes(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """split_with_sizes: (input, sizes, dim)."""
    axis = tensor_info(op.operands[0]).normalized_axis(int_of(op.operands[2]))
    sizes = [(try_int(item), item) for item in list_items(op.operands[1])]
    if all(size is not None for size, _ in sizes):
        return _slices(op, axis, [size for size, _ in sizes if size is not None])
    return _open_slices(op, axis, [item if size is None else size for size, item in sizes])


def _chunk(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """chunk: (input, chunks, dim): at most ``chunks`` pieces of equal size, the last one shorter."""
    info = tensor_info(op.operands[0])
    axis = info.normalized_axis(int_of(op.operands[2]))
    total = info.static_dim(axis)
    size = max(1, -(-total // int_of(op.operands[1])))
    return _slices(op, axis, [min(size, total - start) for start in range(0, total, size)])


def _tensor_split(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """tensor_split.sections: (input, sections, dim): the first ones are one longer."""
    info = tensor_info(op.operands[0])
    axis = info.normalized_axis(int_of(op.operands[2]))
    total, count = info.static_dim(axis), int_of(op.operands[1])
    return _slices(op, axis, [total // count + (index < total % count) for index in range(count)])


def _unbind(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """unbind: (input, dim)."""
    info = tensor_info(op.operands[0])
    axis = info.normalized_axis(int_of(op.operands[1]))
    return _slices(op, axis, [1] * info.static_dim(axis), drop_axis=True)


def _meshgrid(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """meshgrid: (vectors[, indexing]): each vector along a dim of its own, broadcast over the others."""
    items = list_items(op.operands[0])
    swapped = len(op.operands) > 1 and string_of(op.operands[1]) == "xy" and len(items) > 1
    order = [1, 0, *range(2, len(items))] if swapped else list(range(len(items)))
    shape = [size(items[axis], 0) if tensor_info(items[axis]).rank else 1 for axis in order]
    grids: list[ir.Value] = []
    for item, axis in zip(items, order, strict=True):
        along: list[int | ir.Value] = [1] * len(items)
        along[axis] = shape[axis]
        grids.append(expand(view(item, along), shape))
    return _pieces(op, grids)


def _broadcast_tensors(op: ir.Operation, context: PassContext) -> Sequence[ir.Value]:
    """broadcast_tensors: (tensors): each expanded to their common shape."""
    items = list_items(op.operands[0])
    sizes = common_sizes(items)
    return _pieces(op, [expand(item, sizes) for item in items])


@dataclass(frozen=True)
class DecomposeLists(TablePass):
    """Replaces ops that give lists of tensors. Precondition: none."""

    name: ClassVar[str] = "decompose-lists"
    rules: ClassVar[Mapping[str, Rule]] = {
        "torch.aten.split.Tensor": _split,
        "torch.aten.split_with_sizes": _split_sizes,
        "torch.aten.split.sizes": _split_sizes,
        "torch.aten.chunk": _chunk,
        "torch.aten.tensor_split.sections": _tensor_split,
        "torch.aten.unbind.int": _unbind,
        "torch.aten.broadcast_tensors": _broadcast_tensors,
        "torch.aten.meshgrid": _meshgrid,
        "torch.aten.meshgrid.indexing": _meshgrid,
    }
