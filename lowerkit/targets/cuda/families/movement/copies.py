"""Concatenations, paddings, insertions and slices, one into another: each element is fetched from where it lies.

The value is walked from the result inwards. A place of an operand is a coordinate of the result times a step plus a
shift, and a chain of copies puts the two together, so that no tensor between them exists. A tile has as columns the
dims behind the last one that is cut: all of a row comes from one operand, in vectors.
"""

from __future__ import annotations

from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.targets.cuda.families.movement.copy_tree import MOVES, Choice, Coordinate, CopyReader, Tree
from lowerkit.targets.cuda.families.movement.slices import SliceTile, slice_tile
from lowerkit.targets.cuda.family import KernelFamily
from lowerkit.targets.cuda.planned import PlannedRegion, one_kernel
from lowerkit.targets.cuda.triton.epilogue import read_epilogue
from lowerkit.targets.cuda.triton.kernel import TritonKernel
from lowerkit.targets.cuda.triton.scalars import constant
from lowerkit.targets.cuda.triton.tensors import (
    Frame,
    coordinate_text,
    load,
    offset_text,
    pointer_types,
)
from lowerkit.targets.cuda.triton.writer import KernelWriter, render
from lowerkit.targets.plan import KernelExpr, Refusal, expression
from lowerkit.targets.region_view import RegionView

_VIEWS = (
    "tensor.expand_shape",
    "tensor.collapse_shape",
    "tensor.cast",
    "tensor.empty",
    "arith.constant",
    "linalg.fill",
)
_MOST_OPERANDS = 32


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
        others = {op.operation.name for op in region.body_ops if not _is_scalar(op.operation)}
        others -= {*MOVES, *_VIEWS, "linalg.generic"}
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
        reader = CopyReader(frame)
        first = [Coordinate(dim, 1, 0) for dim in range(len(sizes))]
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


def _is_scalar(op: ir.Operation) -> bool:
    """Whether an op makes no tensor: what places are computed of, which are looked at where they are used."""
    return not any(isinstance(result.type, ir.RankedTensorType) for result in op.results)


def _root_sizes(frame: Frame, root: ir.Operation) -> tuple[KernelExpr, ...] | None:
    """The sizes of what the root makes: static, or those of the result of the region."""
    type_ = ir.RankedTensorType(root.results[0].type)
    if type_.has_static_shape:
        return tuple(type_.shape)
    if frame.region.returned[0] == root.results[0]:
        return frame.results[0].sizes
    return None


def _write(writer: KernelWriter, tree: Tree, tile: SliceTile, mask: str | None) -> str:
    """Writes the values of a tile; where ``mask`` is not, nothing is read."""
    if isinstance(tree, Choice):
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


def _coordinate(writer: KernelWriter, where: Coordinate, tile: SliceTile) -> str:
    if where.dim is None:
        return render(where.shift)
    text = coordinate_text(writer, where.dim, tile.axes)
    text = text if where.step == 1 else f"({text}) * {where.step}"
    return writer.let(text if where.shift == 0 else f"{text} + {render(where.shift)}", "at")
