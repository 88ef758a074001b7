"""What a chain of concatenations, paddings, insertions and slices fetches for each element, as a tree of choices.

The value is walked from the result inwards. A place of an operand is a coordinate of the result times a step plus a
shift, and a chain of copies puts the two together. Offsets and sizes may be expressions over the open extents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lowerkit.mlir import ir
from lowerkit.targets.cuda.triton.tensors import Frame, Splat, Tensor, Unset
from lowerkit.targets.plan import KernelExpr, Refusal, expression

MOVES = ("tensor.concat", "tensor.pad", "tensor.insert_slice", "tensor.extract_slice")
_DYNAMIC = -(2**63)


@dataclass(frozen=True)
class Coordinate:
    """A coordinate of an operand: ``dim`` of the result times ``step``, plus ``shift``; no dim: the shift."""

    dim: int | None
    step: int
    shift: KernelExpr


@dataclass(frozen=True)
class Fetch:
    """Elements of a tensor, or a number."""

    tensor: Tensor | None
    number: Splat | None
    at: tuple[Coordinate, ...]


@dataclass(frozen=True)
class Choice:
    """``inside`` where all coordinates lie between two bounds, ``outside`` elsewhere."""

    bounds: tuple[tuple[Coordinate, KernelExpr | None, KernelExpr | None], ...]
    inside: Fetch | Choice
    outside: Fetch | Choice


Tree = Fetch | Choice


class CopyReader:
    """Reads values as trees; ``cut`` are the dims of the result along which something is chosen."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.fetched = 0
        self.cut: set[int] = set()

    def read(self, value: ir.Value, at: Sequence[Coordinate]) -> Tree | Refusal:
        """Reads what stands at a place of a value."""
        source = self.frame.source(value)
        self.fetched += 1
        if isinstance(source, Tensor):
            return Fetch(source, None, tuple(at))
        if isinstance(source, Splat):
            return Fetch(None, source, tuple(at))
        if isinstance(source, Unset):
            element = str(ir.RankedTensorType(value.type).element_type)
            return Fetch(None, Splat(0, element), tuple(at))
        op = None if isinstance(value.owner, ir.Block) else value.owner.operation
        if op is None or op.name not in (*MOVES, "tensor.cast"):
            return Refusal(f"{op.name if op is not None else 'a block argument'} is more than a copy")
        if op.name == "tensor.cast":
            return self.read(op.operands[0], at)
        if op.name == "tensor.concat":
            return self._concat(op, at)
        numbers = self._numbers(op)
        if numbers is None:
            return Refusal("a place that depends on data")
        if op.name == "tensor.pad":
            return self._pad(op, at, *numbers)
        if op.name == "tensor.insert_slice":
            return self._insert(op, at, *numbers)
        return self._extract(op, at, *numbers)

    def _numbers(self, op: ir.Operation) -> list[list[KernelExpr]] | None:
        """Offsets, sizes and steps of a slice, or what is padded; None where one is none of the open extents alone."""
        names = {"tensor.pad": ("low", "high")}.get(op.name, ("offsets", "sizes", "strides"))
        operands = iter(op.operands)
        segments = [
            [next(operands) for _ in range(count)]
            for count in ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])
        ]
        numbers: list[list[KernelExpr]] = []
        for name, values in zip(names, segments[-len(names) :], strict=True):
            open_ = iter(values)
            static = ir.DenseI64ArrayAttr(op.attributes[f"static_{name}"])
            found = [self.frame.index(next(open_)) if each == _DYNAMIC else each for each in static]
            known = [each for each in found if each is not None]
            if len(known) < len(found):
                return None
            numbers.append(known)
        return numbers

    def _concat(self, op: ir.Operation, at: Sequence[Coordinate]) -> Tree | Refusal:
        axis = ir.IntegerAttr(op.attributes["dim"]).value
        where = at[axis]
        parts: list[tuple[Tree, KernelExpr]] = []
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
            tree = Choice(((where, None, end),), part, tree)
        return tree

    def _pad(
        self, op: ir.Operation, at: Sequence[Coordinate], low: list[KernelExpr], high: list[KernelExpr]
    ) -> Tree | Refusal:
        last = list(op.regions[0].blocks[0].operations)[-1].operation
        number = self.frame.source(last.operands[0])
        if not isinstance(number, Splat):
            return Refusal("padding with something that is not a constant")
        if any(isinstance(each, int) and each < 0 for each in (*low, *high)):
            return Refusal("padding by a negative amount")
        moved, bounds = list(at), []
        for axis, where in enumerate(at):
            size = self._size(op.operands[0], axis)
            if size is None:
                return Refusal("padding of a computed tensor of open size")
            if low[axis] != 0 or high[axis] != 0:
                self._cut(where)
                end = expression("add", size, low[axis])
                bounds.append((where, None if low[axis] == 0 else low[axis], None if high[axis] == 0 else end))
                moved[axis] = replace(where, shift=expression("sub", where.shift, low[axis]))
        inside = self.read(op.operands[0], moved)
        if isinstance(inside, Refusal):
            return inside
        return Choice(tuple(bounds), inside, Fetch(None, number, tuple(at))) if bounds else inside

    def _insert(
        self,
        op: ir.Operation,
        at: Sequence[Coordinate],
        offsets: list[KernelExpr],
        sizes: list[KernelExpr],
        steps: list[KernelExpr],
    ) -> Tree | Refusal:
        if ir.RankedTensorType(op.operands[0].type).rank != len(offsets) or any(step != 1 for step in steps):
            return Refusal("an insertion with gaps, or of fewer dims")
        moved, bounds = list(at), []
        for axis, (where, offset, size) in enumerate(zip(at, offsets, sizes, strict=True)):
            if self._size(op.operands[1], axis) == size and offset == 0:
                continue
            self._cut(where)
            bounds.append((where, None if offset == 0 else offset, expression("add", offset, size)))
            moved[axis] = replace(where, shift=expression("sub", where.shift, offset))
        inside, outside = self.read(op.operands[0], moved), self.read(op.operands[1], at)
        if isinstance(inside, Refusal) or isinstance(outside, Refusal):
            return inside if isinstance(inside, Refusal) else outside
        return Choice(tuple(bounds), inside, outside) if bounds else inside

    def _extract(
        self,
        op: ir.Operation,
        at: Sequence[Coordinate],
        offsets: list[KernelExpr],
        sizes: list[KernelExpr],
        steps: list[KernelExpr],
    ) -> Tree | Refusal:
        kept = _kept(sizes, ir.RankedTensorType(op.results[0].type))
        if kept is None:
            return Refusal("a slice that drops dims in more than one way")
        moved: list[Coordinate] = []
        for axis, (offset, step) in enumerate(zip(offsets, steps, strict=True)):
            if axis not in kept:
                moved.append(Coordinate(None, 0, offset))
                continue
            where = at[kept.index(axis)]
            if not isinstance(step, int):
                return Refusal("a slice with gaps of an open size")
            shift = expression("add", expression("mul", where.shift, step), offset)
            moved.append(Coordinate(where.dim, where.step * step, shift))
        return self.read(op.operands[0], moved)

    def _cut(self, where: Coordinate) -> None:
        if where.dim is not None:
            self.cut.add(where.dim)

    def _size(self, value: ir.Value, axis: int) -> KernelExpr | None:
        type_ = ir.RankedTensorType(value.type)
        if not type_.is_dynamic_dim(axis):
            return type_.get_dim_size(axis)
        source = self.frame.source(value)
        sizes = source.sizes if isinstance(source, Tensor) else self.frame.shape(value)
        return None if sizes is None else sizes[axis]


def _kept(sizes: Sequence[KernelExpr], type_: ir.RankedTensorType) -> list[int] | None:
    """Which dims of a slice its type keeps; None where sizes of 1 leave several ways."""
    if len(sizes) == type_.rank:
        return list(range(len(sizes)))
    long = [axis for axis, size in enumerate(sizes) if size != 1]
    return long if len(long) == type_.rank else None
