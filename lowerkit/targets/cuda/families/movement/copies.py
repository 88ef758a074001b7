"""Concatenations, paddings, insertions and slices, one into another: each element is fetched from where it lies.

The value is walked from the result inwards. A place of an operand is a coordinate of the result times a step plus a
shift, and a chain of copies puts the two together, so that no tensor between them exists. A tile has as columns the
dims behind the last one that is cut: all of a row comes from one operand, in vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.targets.cuda.families.movement.slices import SliceTile, slice_tile
from lowerkit.targets.cuda.family import KernelFamily
from lowerkit.targets.cuda.planned import PlannedRegion, one_kernel
from lowerkit.targets.cuda.triton.epilogue import read_epilogue
from lowerkit.targets.cuda.triton.kernel import TritonKernel
from lowerkit.targets.cuda.triton.scalars import constant
from lowerkit.targets.cuda.triton.tensors import (
    Frame,
    Splat,
    Tensor,
    Unset,
    coordinate_text,
    load,
    offset_text,
    pointer_types,
)
from lowerkit.targets.cuda.triton.writer import KernelWriter, render
from lowerkit.targets.plan import KernelExpr, Refusal, expression
from lowerkit.targets.region_view import RegionView

MOVES = ("tensor.concat", "tensor.pad", "tensor.insert_slice", "tensor.extract_slice")
_VIEWS = (
    "tensor.expand_shape",
    "tensor.collapse_shape",
    "tensor.cast",
    "tensor.empty",
    "arith.constant",
    "linalg.fill",
)
_MOST_OPERANDS = 32
_DYNAMIC = -(2**63)


class CopyFamily(KernelFamily):
    """Regions that put tensors together or cut them out, at places that do not depend on data, with an epilogue."""

    name: ClassVar[str] = "copy"

    def plan(self, region: RegionView, level: str) -> PlannedRegion | Refusal:
        """See :meth:`KernelFamily.plan`."""
        moves = [op.operation for op in region.body_ops if op.operation.name in MOVES]
        owners = [value.owner for move in moves for value in move.operands]
        inner = [owner.operation for owner in owners if not isinstance(owner, ir.Block)]
        roots = [move for move in moves if move not in inner]
        if len(roots) != 1:
            return Refusal("there is no single op that concatenates, pads, inserts or slices")
        others = {op.operation.name for op in region.body_ops} - {*MOVES, *_VIEWS, "linalg.generic", "tensor.dim"}
        others -= {"affine.apply", "tensor.yield"}
        if others:
            return Refusal(f"{', '.join(sorted(others))}: more than a copy")
        (root,) = roots
        frame = Frame(region)
        sizes = _root_sizes(frame, root)
        if sizes is None or 0 in sizes:
            return Refusal("a result without elements, or of a size that is not known")
        epilogue = read_epilogue(region, frame, root)
        if isinstance(epilogue, Refusal):
            return epilogue
        reader = _Reader(frame)
        first = [_Coordinate(dim, 1, 0) for dim in range(len(sizes))]
        tree = reader.read(root.results[0], first)
        if isinstance(tree, Refusal):
            return tree
        if reader.fetched > _MOST_OPERANDS:
            return Refusal(f"{reader.fetched} operands; at most {_MOST_OPERANDS}")
        writer = KernelWriter()
        cut = max(reader.cut, default=-1) + 1
        tile = slice_tile(writer, sizes, cut, wide=frame.wide)
        value = _write(writer, tree, tile, None)
        epilogue.write(writer, value, tile.axes)
        source = writer.source(len(frame.buffers), frame.dims)
        kernel = TritonKernel(self.name, source, pointer_types(frame), frame.dims, tile.warps)
        bytes_ = [buffer.bytes for buffer in frame.buffers]
        written = bytes_[-1]
        return one_kernel(
            kernel, bytes_, len(region.operands), tile.blocks, note=tile.words, read=written, written=written
        )


def _root_sizes(frame: Frame, root: ir.Operation) -> tuple[KernelExpr, ...] | None:
    """The sizes of what the root makes: static, or those of the result of the region."""
    type_ = ir.RankedTensorType(root.results[0].type)
    if type_.has_static_shape:
        return tuple(type_.shape)
    if frame.region.returned[0] == root.results[0]:
        return frame.results[0].sizes
    return None


@dataclass(frozen=True)
class _Coordinate:
    """A coordinate of an operand: ``dim`` of the result times ``step``, plus ``shift``; no dim: the shift."""

    dim: int | None
    step: int
    shift: KernelExpr


@dataclass(frozen=True)
class _Fetch:
    """Elements of a tensor, or a number."""

    tensor: Tensor | None
    number: Splat | None
    at: tuple[_Coordinate, ...]


@dataclass(frozen=True)
class _Choice:
    """``inside`` where all coordinates lie between two bounds, ``outside`` elsewhere."""

    bounds: tuple[tuple[_Coordinate, KernelExpr | None, KernelExpr | None], ...]
    inside: _Fetch | _Choice
    outside: _Fetch | _Choice


_Tree = _Fetch | _Choice


class _Reader:
    """Reads values as trees; ``cut`` are the dims of the result along which something is chosen."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.fetched = 0
        self.cut: set[int] = set()

    def read(self, value: ir.Value, at: Sequence[_Coordinate]) -> _Tree | Refusal:
        """Reads what stands at a place of a value."""
        source = self.frame.source(value)
        self.fetched += 1
        if isinstance(source, Tensor):
            return _Fetch(source, None, tuple(at))
        if isinstance(source, Splat):
            return _Fetch(None, source, tuple(at))
        if isinstance(source, Unset):
            element = str(ir.RankedTensorType(value.type).element_type)
            return _Fetch(None, Splat(0, element), tuple(at))
        op = None if isinstance(value.owner, ir.Block) else value.owner.operation
        if op is None or op.name not in (*MOVES, "tensor.cast"):
            return Refusal(f"{op.name if op is not None else 'a block argument'} is more than a copy")
        if op.name == "tensor.cast":
            return self.read(op.operands[0], at)
        if op.name == "tensor.concat":
            return self._concat(op, at)
        names = {"tensor.pad": ("low", "high")}.get(op.name, ("offsets", "sizes", "strides"))
        numbers = [list(ir.DenseI64ArrayAttr(op.attributes[f"static_{name}"])) for name in names]
        if any(_DYNAMIC in each for each in numbers):
            return Refusal("a place that is known at run time alone")
        if op.name == "tensor.pad":
            return self._pad(op, at, *numbers)
        if op.name == "tensor.insert_slice":
            return self._insert(op, at, *numbers)
        return self._extract(op, at, *numbers)

    def _concat(self, op: ir.Operation, at: Sequence[_Coordinate]) -> _Tree | Refusal:
        axis = ir.IntegerAttr(op.attributes["dim"]).value
        where = at[axis]
        parts: list[tuple[_Tree, KernelExpr]] = []
        start: KernelExpr = 0
        for operand in op.operands:
            size = self._size(operand, axis)
            if size is None:
                return Refusal("a concatenation of a computed tensor of open size")
            moved = list(at)
            moved[axis] = replace(where, shift=expression("sub", where.shift, start))
            part = self.read(operand, moved)
            if isinstance(part, Refusal):
                return part
            start = expression("add", start, size)
            parts.append((part, start))
        if len(parts) > 1:
            self._cut(where)
        tree = parts[-1][0]
        for part, end in reversed(parts[:-1]):
            tree = _Choice(((where, None, end),), part, tree)
        return tree

    def _pad(self, op: ir.Operation, at: Sequence[_Coordinate], low: list[int], high: list[int]) -> _Tree | Refusal:
        last = list(op.regions[0].blocks[0].operations)[-1].operation
        number = self.frame.source(last.operands[0])
        if not isinstance(number, Splat):
            return Refusal("padding with something that is not a constant")
        if min((*low, *high), default=0) < 0:
            return Refusal("padding by a negative amount")
        moved, bounds = list(at), []
        for axis, where in enumerate(at):
            size = self._size(op.operands[0], axis)
            if size is None:
                return Refusal("padding of a computed tensor of open size")
            if low[axis] or high[axis]:
                self._cut(where)
                end = expression("add", size, low[axis])
                bounds.append((where, low[axis] or None, end if high[axis] else None))
                moved[axis] = replace(where, shift=expression("sub", where.shift, low[axis]))
        inside = self.read(op.operands[0], moved)
        if isinstance(inside, Refusal):
            return inside
        return _Choice(tuple(bounds), inside, _Fetch(None, number, tuple(at))) if bounds else inside

    def _insert(
        self, op: ir.Operation, at: Sequence[_Coordinate], offsets: list[int], sizes: list[int], steps: list[int]
    ) -> _Tree | Refusal:
        if ir.RankedTensorType(op.operands[0].type).rank != len(offsets) or any(step != 1 for step in steps):
            return Refusal("an insertion with gaps, or of fewer dims")
        moved, bounds = list(at), []
        for axis, (where, offset, size) in enumerate(zip(at, offsets, sizes, strict=True)):
            if self._size(op.operands[1], axis) == size and offset == 0:
                continue
            self._cut(where)
            bounds.append((where, offset or None, offset + size))
            moved[axis] = replace(where, shift=expression("sub", where.shift, offset))
        inside, outside = self.read(op.operands[0], moved), self.read(op.operands[1], at)
        if isinstance(inside, Refusal) or isinstance(outside, Refusal):
            return inside if isinstance(inside, Refusal) else outside
        return _Choice(tuple(bounds), inside, outside) if bounds else inside

    def _extract(
        self, op: ir.Operation, at: Sequence[_Coordinate], offsets: list[int], sizes: list[int], steps: list[int]
    ) -> _Tree | Refusal:
        kept = _kept(sizes, ir.RankedTensorType(op.results[0].type))
        if kept is None:
            return Refusal("a slice that drops dims in more than one way")
        moved: list[_Coordinate] = []
        for axis, (offset, step) in enumerate(zip(offsets, steps, strict=True)):
            if axis not in kept:
                moved.append(_Coordinate(None, 0, offset))
                continue
            where = at[kept.index(axis)]
            shift = expression("add", expression("mul", where.shift, step), offset)
            moved.append(_Coordinate(where.dim, where.step * step, shift))
        return self.read(op.operands[0], moved)

    def _cut(self, where: _Coordinate) -> None:
        if where.dim is not None:
            self.cut.add(where.dim)

    def _size(self, value: ir.Value, axis: int) -> KernelExpr | None:
        type_ = ir.RankedTensorType(value.type)
        if not type_.is_dynamic_dim(axis):
            return type_.get_dim_size(axis)
        source = self.frame.source(value)
        return source.sizes[axis] if isinstance(source, Tensor) else None


def _kept(sizes: Sequence[int], type_: ir.RankedTensorType) -> list[int] | None:
    """Which dims of a slice its type keeps; None where sizes of 1 leave several ways."""
    if len(sizes) == type_.rank:
        return list(range(len(sizes)))
    long = [axis for axis, size in enumerate(sizes) if size != 1]
    return long if len(long) == type_.rank else None


def _write(writer: KernelWriter, tree: _Tree, tile: SliceTile, mask: str | None) -> str:
    """Writes the values of a tile; where ``mask`` is not, nothing is read."""
    if isinstance(tree, _Choice):
        tests = [
            f"({_coordinate(writer, where, tile)} {sign} {render(bound)})"
            for where, low, high in tree.bounds
            for sign, bound in ((">=", low), ("<", high))
            if bound is not None
        ]
        inside = writer.let(" & ".join(tests), "inside")
        here = inside if mask is None else writer.let(f"{mask} & {inside}")
        elsewhere = f"({inside} == 0)" if mask is None else f"({mask} & ({inside} == 0))"
        values = [_write(writer, tree.inside, tile, here), _write(writer, tree.outside, tile, writer.let(elsewhere))]
        return writer.let(f"tl.where({inside}, {values[0]}, {values[1]})")
    if tree.number is not None:
        return writer.let(constant(tree.number.number, tree.number.element))
    tensor = tree.tensor
    assert tensor is not None, "a fetch has a tensor or a number"
    strides: list[KernelExpr] = [0] * (1 + max((each for axis in tile.axes for each in axis.dims), default=-1))
    offset = tensor.offset
    for where, stride in zip(tree.at, tensor.strides, strict=True):
        offset = expression("add", offset, expression("mul", where.shift, stride))
        if where.dim is not None:
            strides[where.dim] = expression("add", strides[where.dim], expression("mul", stride, where.step))
    masks = [each for each in (*(axis.mask for axis in tile.axes), mask) if each is not None]
    together = writer.let(" & ".join(masks), "mask") if masks else None
    return load(writer, tensor, offset_text(writer, strides, offset, tile.axes), together)


def _coordinate(writer: KernelWriter, where: _Coordinate, tile: SliceTile) -> str:
    if where.dim is None:
        return render(where.shift)
    text = coordinate_text(writer, where.dim, tile.axes)
    text = text if where.step == 1 else f"({text}) * {where.step}"
    return writer.let(text if where.shift == 0 else f"{text} + {render(where.shift)}", "at")
