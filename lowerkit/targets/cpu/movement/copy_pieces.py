"""Reads what a copy region yields as pieces: boxes of the result with where each comes from.

The value is walked from the result inwards, so no intermediate tensor of a chain of slices, insertions, concatenations
and paddings exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lowerkit.mlir import ir
from lowerkit.targets.cpu.movement.index_values import index_of
from lowerkit.targets.cpu.text.kernel_frame import KernelFrame
from lowerkit.targets.cpu.text.kernel_text import Buffer, Index
from lowerkit.targets.cpu.text.region_values import Constant, Located, Unset, source_of
from lowerkit.targets.plan import Refusal

__all__ = ["Box", "Piece", "PieceReader"]

_DYNAMIC = -(2**63)


@dataclass(frozen=True)
class Box:
    """Where a value goes: corner in the result, the result's dimension of each of its dimensions, and its sizes."""

    corner: tuple[Index, ...]
    dims: tuple[int, ...]
    sizes: tuple[Index, ...]


@dataclass(frozen=True)
class Piece:
    """A box with its source; a number fills it."""

    box: Box
    source: Buffer | None
    offset: Index
    strides: tuple[Index, ...]
    number: float | int = 0


class PieceReader:
    """Turns the value that a region yields into pieces."""

    def __init__(self, frame: KernelFrame) -> None:
        self.frame = frame
        self.pieces: list[Piece] = []

    def place(self, value: ir.Value, box: Box) -> Refusal | None:
        """Adds the pieces that put ``value`` into ``box``, later ones over earlier ones."""
        text = self.frame.text
        source = source_of(value, self.frame)
        if isinstance(source, Located):
            self.pieces.append(Piece(box, source.buffer, 0, tuple(text.row_major(source.sizes))))
            return None
        if isinstance(source, Constant):
            self.pieces.append(Piece(box, None, 0, (), source.number))
            return None
        if isinstance(source, Unset):
            return None
        operation = value.owner.operation if not isinstance(value.owner, ir.Block) else None
        handlers = {
            "tensor.cast": self._cast,
            "tensor.extract_slice": self._extract,
            "tensor.insert_slice": self._insert,
            "tensor.concat": self._concat,
            "tensor.pad": self._pad,
        }
        if operation is None or operation.name not in handlers:
            return Refusal(f"{operation.name if operation else 'a block argument'} is more than a copy")
        return handlers[operation.name](operation, box)

    def _cast(self, operation: ir.Operation, box: Box) -> Refusal | None:
        return self.place(operation.operands[0], box)

    def _extract(self, operation: ir.Operation, box: Box) -> Refusal | None:
        text = self.frame.text
        source = source_of(operation.operands[0], self.frame)
        if not isinstance(source, Located):
            return Refusal("a slice of a computed tensor")
        parts = self._mixed(operation, ("offsets", "sizes", "strides"), 1)
        if parts is None:
            return Refusal("a slice at a position that the kernel cannot compute")
        offsets, sizes, steps = parts
        kept = _kept_dims(sizes, ir.RankedTensorType(operation.results[0].type))
        if kept is None:
            return Refusal("a slice that drops dimensions of unknown size")
        strides = text.row_major(source.sizes)
        moved = tuple(text.imul(strides[dim], steps[dim]) for dim in kept)
        self.pieces.append(Piece(box, source.buffer, text.dot(offsets, strides), moved))
        return None

    def _insert(self, operation: ir.Operation, box: Box) -> Refusal | None:
        text = self.frame.text
        parts = self._mixed(operation, ("offsets", "sizes", "strides"), 2)
        if parts is None:
            return Refusal("an insertion at a position that the kernel cannot compute")
        offsets, sizes, steps = parts
        if any(step != 1 for step in steps):
            return Refusal("an insertion with gaps")
        kept = _kept_dims(sizes, ir.RankedTensorType(operation.operands[0].type))
        if kept is None:
            return Refusal("an insertion that adds dimensions of unknown size")
        refusal = self.place(operation.operands[1], box)
        corner = list(box.corner)
        for dim, offset in zip(box.dims, offsets, strict=True):
            corner[dim] = text.iadd(corner[dim], offset)
        inner = Box(tuple(corner), tuple(box.dims[dim] for dim in kept), tuple(sizes[dim] for dim in kept))
        return refusal or self.place(operation.operands[0], inner)

    def _concat(self, operation: ir.Operation, box: Box) -> Refusal | None:
        axis = ir.IntegerAttr(operation.attributes["dim"]).value
        start: Index = 0
        for operand in operation.operands:
            sizes = list(box.sizes)
            size = self._size(operand, axis)
            if size is None:
                return Refusal("a concatenation of a computed tensor of dynamic size")
            sizes[axis] = size
            corner = list(box.corner)
            corner[box.dims[axis]] = self.frame.text.iadd(corner[box.dims[axis]], start)
            refusal = self.place(operand, Box(tuple(corner), box.dims, tuple(sizes)))
            if refusal is not None:
                return refusal
            start = self.frame.text.iadd(start, size)
        return None

    def _pad(self, operation: ir.Operation, box: Box) -> Refusal | None:
        text = self.frame.text
        operations = list(operation.regions[0].blocks[0].operations)
        number = source_of(operations[-1].operation.operands[0], self.frame)
        if not isinstance(number, Constant):
            return Refusal("padding with something that is not a constant")
        parts = self._mixed(operation, ("low", "high"), 1)
        if parts is None:
            return Refusal("padding by an amount that the kernel cannot compute")
        low, high = parts
        if any(isinstance(amount, int) and amount < 0 for amount in (*low, *high)):
            return Refusal("padding by a negative amount")
        corner, sizes = list(box.corner), list(box.sizes)
        # The border as slabs: below and above along each dimension, within what earlier dimensions left over.
        for axis, dim in enumerate(box.dims):
            inside = text.isub(text.isub(sizes[axis], low[axis]), high[axis])
            for start, amount in ((0, low[axis]), (text.iadd(low[axis], inside), high[axis])):
                if amount == 0:
                    continue
                slab_corner, slab = list(corner), list(sizes)
                slab_corner[dim], slab[axis] = text.iadd(corner[dim], start), amount
                self.pieces.append(Piece(Box(tuple(slab_corner), box.dims, tuple(slab)), None, 0, (), number.number))
            corner[dim], sizes[axis] = text.iadd(corner[dim], low[axis]), inside
        return self.place(operation.operands[0], Box(tuple(corner), box.dims, tuple(sizes)))

    def _size(self, value: ir.Value, axis: int) -> Index | None:
        type_ = ir.RankedTensorType(value.type)
        if not type_.is_dynamic_dim(axis):
            return type_.get_dim_size(axis)
        source = source_of(value, self.frame)
        if isinstance(source, Located):
            return source.sizes[axis]
        if not isinstance(value.owner, ir.Block) and value.owner.operation.name == "tensor.extract_slice":
            parts = self._mixed(value.owner.operation, ("offsets", "sizes", "strides"), 1)
            kept = None if parts is None else _kept_dims(parts[1], type_)
            return None if parts is None or kept is None else parts[1][kept[axis]]
        return None

    def _mixed(self, operation: ir.Operation, names: Sequence[str], first: int) -> list[list[Index]] | None:
        """Reads static numbers and dynamic operands (which start at operand ``first``) in their order."""
        position = first
        lists: list[list[Index]] = []
        for name in names:
            numbers: list[Index] = []
            for number in ir.DenseI64ArrayAttr(operation.attributes[f"static_{name}"]):
                if number != _DYNAMIC:
                    numbers.append(number)
                    continue
                found = index_of(operation.operands[position], self.frame)
                position += 1
                if found is None:
                    return None
                numbers.append(found)
            lists.append(numbers)
        return lists


def _kept_dims(sizes: Sequence[Index], type_: ir.RankedTensorType) -> list[int] | None:
    """Which dimensions of a slice its (possibly rank-reduced) type keeps: unit ones are dropped from the left."""
    surplus = len(sizes) - type_.rank
    if surplus == 0:
        return list(range(len(sizes)))
    kept: list[int] = []
    for dim, size in enumerate(sizes):
        at = len(kept)
        wanted = None if at >= type_.rank or type_.is_dynamic_dim(at) else type_.get_dim_size(at)
        fits = at < type_.rank and (wanted is None) == (not isinstance(size, int)) and wanted in (None, size)
        if fits and not (size == 1 and wanted == 1 and surplus > dim - at and _can_skip(sizes[dim + 1 :], type_, at)):
            kept.append(dim)
        elif size != 1:
            return None
    return kept if len(kept) == type_.rank else None


def _can_skip(rest: Sequence[Index], type_: ir.RankedTensorType, at: int) -> bool:
    """True when the dimensions from ``at`` on can still be found in ``rest``: dropping any unit one is the same."""
    wanted = [None if type_.is_dynamic_dim(dim) else type_.get_dim_size(dim) for dim in range(at, type_.rank)]
    position = 0
    for size in rest:
        if position < len(wanted) and (size if isinstance(size, int) else None) == wanted[position]:
            position += 1
        elif size != 1:
            return False
    return position == len(wanted)
