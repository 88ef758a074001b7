"""What the values inside a region are to a kernel, and where their elements lie.

Vocabulary
    tensor     a buffer seen with sizes and strides, in elements
    axis       coordinates of a tile along one or several iteration dims that follow each other: their flat number, row
               by row, as text that broadcasts to the tile
    point      one coordinate for each iteration dim; several axes make one
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lowerkit.codegen.shapes import ShapeTable, result_shapes
from lowerkit.errors import UnsupportedError
from lowerkit.mlir import ir
from lowerkit.targets.cpu.text.linear_access import linear_terms
from lowerkit.targets.cuda.triton.scalars import POINTERS
from lowerkit.targets.cuda.triton.tensor import (
    AnchorResult,
    Source,
    Splat,
    Tensor,
    Unset,
    element_bytes,
    row_major,
)
from lowerkit.targets.cuda.triton.views import VIEWS, view_of
from lowerkit.targets.cuda.triton.writer import KernelWriter, render
from lowerkit.targets.plan import KernelExpr, dim, expression, product
from lowerkit.targets.region_view import RegionView

__all__ = [
    "AnchorResult", "Axis", "Frame", "Source", "Splat", "Tensor", "Unset", "coordinate_text", "element_bytes", "load",
    "map_strides", "maps_of", "offset_text", "pointer_types", "row_major", "store",
]  # fmt: skip

_FITS = 1 << 31


@dataclass(frozen=True)
class Axis:
    """Coordinates along iteration dims ``dims`` of ``sizes``, as one flat number.

    ``mask`` says which of them there are, in the shape of ``text``; None for all.
    """

    text: str
    dims: tuple[int, ...]
    sizes: tuple[KernelExpr, ...]
    mask: str | None = None


@dataclass(frozen=True)
class _Run:
    """Dims whose strides continue one another: coordinates are ``flat // below % count``, ``reach`` the next stride."""

    below: KernelExpr
    count: KernelExpr
    stride: KernelExpr
    reach: KernelExpr

    def longer(self, size: KernelExpr) -> _Run:
        """Returns the run with a dim of ``size`` in front."""
        return _Run(self.below, expression("mul", self.count, size), self.stride, expression("mul", self.reach, size))


class Frame:
    """The buffers of a region as a kernel gets them: pointers of operands, then of results, then all open extents.

    Attributes:
        region: the region.
        buffers: operands, then results.
        dims: how many open extents there are.
        wide: whether coordinates need 64 bits.
    """

    def __init__(self, region: RegionView) -> None:
        self.region = region
        self.dims = sum(type_.is_dynamic_dim(axis) for type_ in region.buffer_types for axis in range(type_.rank))
        shapes = _buffer_shapes(region)
        self.buffers = [
            Tensor(number, str(type_.element_type), shape, row_major(shape))
            for number, (type_, shape) in enumerate(zip(region.buffer_types, shapes, strict=True))
        ]
        counts = [product(buffer.sizes) for buffer in self.buffers]
        self.wide = any(not isinstance(count, int) or count >= _FITS for count in counts)

    def precision(self, element: str) -> str:
        """Returns the argument by which ``tl.dot`` multiplies elements of a type as exactly as it is asked to."""
        if element != "f32":
            return ""
        return f', input_precision="{"tf32" if "tf32" in self.region.allowed else "ieee"}"'

    @property
    def results(self) -> list[Tensor]:
        """The results."""
        return self.buffers[len(self.region.operands) :]

    def source(self, value: ir.Value, anchor: ir.Operation | None = None) -> Source | None:
        """Returns what a value is; None where it is computed in a way that no kernel reads through."""
        owner = value.owner
        if isinstance(owner, ir.Block):
            return self.buffers[ir.BlockArgument(value).arg_number]
        op = owner.operation
        if anchor is not None and op == anchor:
            return AnchorResult(self.sizes_of(value))
        if op.name == "tensor.empty":
            return Unset()
        if op.name == "arith.constant":
            return _splat(op.attributes["value"], value.type)
        if op.name == "linalg.fill":
            inner = self.source(op.operands[0])
            return inner if isinstance(inner, Splat) else None
        return self._view(op, anchor)

    def index(self, value: ir.Value) -> KernelExpr | None:
        """Returns an integer as an expression over the open extents; None where it depends on data, or may wrap."""
        if str(value.type) not in ("index", "i64", "i32"):
            return None
        try:
            found = self._table().index(value)
        except UnsupportedError:
            return None
        return found if _is_same_in_triton(found) else None

    def shape(self, value: ir.Value) -> tuple[KernelExpr, ...] | None:
        """Returns the sizes of a value inside that no lk op computes; None where they are not known."""
        try:
            return self._table().shape(value)
        except UnsupportedError:
            return None

    def _table(self) -> ShapeTable:
        arguments = list(self.region.block.arguments)
        return ShapeTable({each: self.buffers[number].sizes for number, each in enumerate(arguments)})

    def sizes_of(self, value: ir.Value) -> tuple[KernelExpr, ...]:
        """Returns the sizes of a value inside: open ones are those of the result that it becomes; () if unknown."""
        type_ = ir.RankedTensorType(value.type)
        for result in self.results:
            if len(result.sizes) == type_.rank and all(
                type_.is_dynamic_dim(axis) or type_.get_dim_size(axis) == size for axis, size in enumerate(result.sizes)
            ):
                return result.sizes
        if type_.has_static_shape:
            return tuple(type_.shape)
        return ()

    def _view(self, op: ir.Operation, anchor: ir.Operation | None) -> Source | None:
        if op.name not in VIEWS:
            return None
        inner = self.source(op.operands[0], anchor)
        if isinstance(inner, Splat):
            return inner
        return view_of(op, inner) if isinstance(inner, Tensor) else None


def offset_text(writer: KernelWriter, strides: Sequence[KernelExpr], offset: KernelExpr, axes: Sequence[Axis]) -> str:
    """Returns the number of an element: the sum of coordinates times ``strides`` (one for each iteration dim).

    Dims of an axis whose strides continue one another are one coordinate; only what is left is divided.
    """
    terms = [] if offset == 0 else [render(offset)]
    for axis in axes:
        runs: list[_Run] = []
        inner: KernelExpr = 1
        for number, size in zip(reversed(axis.dims), reversed(axis.sizes), strict=True):
            stride = strides[number]
            if size != 1:
                last = runs[-1] if runs else None
                if last is not None and (stride == last.reach or stride == last.stride == 0):
                    runs[-1] = last.longer(size)
                else:
                    runs.append(_Run(inner, size, stride, expression("mul", stride, size)))
                inner = expression("mul", inner, size)
        if not runs and (not axis.dims or any(strides[number] != 0 for number in axis.dims)):
            terms.append(f"{axis.text} * 0")  # one place, in the shape of the axis: masks have it
        for run in runs:
            if run.stride == 0:
                continue
            text = axis.text if run.below == 1 else writer.let(f"{axis.text} // {render(run.below)}")
            if run is not runs[-1]:
                text = writer.let(f"{text} % {render(run.count)}")
            terms.append(text if run.stride == 1 else f"{text} * {render(run.stride)}")
    return " + ".join(terms) or "0"


def coordinate_text(writer: KernelWriter, number: int, axes: Sequence[Axis]) -> str:
    """Returns the coordinate along one iteration dim."""
    strides: list[KernelExpr] = [0] * (1 + max(each for axis in axes for each in axis.dims))
    strides[number] = 1
    return offset_text(writer, strides, 0, axes)


def maps_of(generic: ir.Operation) -> list[ir.AffineMap]:
    """Returns the maps of a ``linalg.generic``."""
    return [ir.AffineMapAttr(each).value for each in ir.ArrayAttr(generic.attributes["indexing_maps"])]


def map_strides(map_: ir.AffineMap, tensor: Tensor) -> tuple[list[KernelExpr], KernelExpr] | None:
    """Returns strides over the iteration dims of an operand, and its offset; None where the map is not linear."""
    strides: list[KernelExpr] = [0] * map_.n_dims
    offset = tensor.offset
    for result, stride in zip(map_.results, tensor.strides, strict=True):
        terms = linear_terms(result, map_.n_dims)
        if terms is None:
            return None
        for number, coefficient in enumerate(terms[0]):
            if coefficient:
                strides[number] = expression("add", strides[number], expression("mul", stride, coefficient))
        offset = expression("add", offset, expression("mul", stride, terms[1]))
    return strides, offset


def load(writer: KernelWriter, tensor: Tensor, offset: str, mask: str | None, other: str = "") -> str:
    """Returns the name of loaded elements; booleans are ``int1``. One element at a known place is there for all."""
    arguments = [f"p{tensor.pointer} + ({offset})"]
    if offset.isdecimal():
        mask = None
    if mask is not None:
        arguments.append(f"mask={mask}")
        if other:
            arguments.append(f"other={other}")
    loaded = writer.let(f"tl.load({', '.join(arguments)})", "x")
    return writer.let(f"{loaded} != 0") if tensor.element == "i1" else loaded


def store(writer: KernelWriter, tensor: Tensor, offset: str, value: str, mask: str | None) -> None:
    """Writes elements."""
    stored = f"{value}.to(tl.int8)" if tensor.element == "i1" else value
    writer.line(f"tl.store(p{tensor.pointer} + ({offset}), {stored}{f', mask={mask}' if mask else ''})")


def pointer_types(frame: Frame) -> tuple[str, ...]:
    """Returns what each pointer of a kernel points to."""
    return tuple(POINTERS[buffer.element] for buffer in frame.buffers)


def _is_same_in_triton(size: KernelExpr) -> bool:
    """Whether a size is the same number where quotients are rounded toward zero: nothing negative is divided."""
    if isinstance(size, int) or size[0] == "dim":
        return True
    operation, *parts = size
    if operation in ("floordiv", "ceildiv", "mod"):
        return all(_is_not_negative(part) for part in parts)
    return all(_is_same_in_triton(part) for part in parts)


def _is_not_negative(size: KernelExpr) -> bool:
    if isinstance(size, int):
        return size >= 0
    return size[0] == "dim" or (size[0] != "sub" and all(_is_not_negative(part) for part in size[1:]))


def _splat(attribute: ir.Attribute, type_: ir.Type) -> Splat | None:
    element = str(ir.RankedTensorType(type_).element_type) if isinstance(type_, ir.RankedTensorType) else str(type_)
    if isinstance(attribute, ir.DenseElementsAttr):
        if not attribute.is_splat:
            return None
        attribute = attribute.get_splat_value()
    if isinstance(attribute, ir.FloatAttr | ir.IntegerAttr | ir.BoolAttr):
        return Splat(attribute.value, element)
    return None


def _buffer_shapes(region: RegionView) -> list[tuple[KernelExpr, ...]]:
    """Returns the shapes of operands and results; those of results are in terms of operands, where that is known."""
    same = _equal_dims(region)
    shapes: list[tuple[KernelExpr, ...]] = []
    count = 0
    for type_ in region.buffer_types:
        shape: list[KernelExpr] = []
        for axis in range(type_.rank):
            if type_.is_dynamic_dim(axis):
                shape.append(dim(same.get(count, count)))
                count += 1
            else:
                shape.append(type_.get_dim_size(axis))
        shapes.append(tuple(shape))
    operands = shapes[: len(region.operands)]
    try:
        found = result_shapes(region, operands)
    except UnsupportedError:  # an extent that depends on data
        return shapes
    return [*operands, *found]


def _equal_dims(region: RegionView) -> Mapping[int, int]:
    """Returns for open extents that a generic runs over together with others the first of those."""
    numbers: dict[tuple[int, int], int] = {}
    for buffer, type_ in enumerate(region.buffer_types):
        for axis in range(type_.rank):
            if type_.is_dynamic_dim(axis):
                numbers[buffer, axis] = len(numbers)
    same: dict[int, int] = {}
    generic = region.epilogue
    if generic is None or not numbers:
        return same
    maps = maps_of(generic.operation)
    first: dict[int, int] = {}
    returned = list(region.returned)
    places = [
        ir.BlockArgument(value).arg_number if isinstance(value.owner, ir.Block) else None
        for value in generic.operation.operands
    ]
    inputs = len(places) - len(generic.operation.results)
    for number, result in enumerate(generic.operation.results):
        places[inputs + number] = len(region.operands) + returned.index(result) if result in returned else None
    for map_, buffer in zip(maps, places, strict=True):
        if buffer is None:
            continue
        for axis, each in enumerate(map_.results):
            if (buffer, axis) in numbers and isinstance(each, ir.AffineDimExpr):
                number = numbers[buffer, axis]
                same[number] = first.setdefault(ir.AffineDimExpr(each).position, number)
    return same
