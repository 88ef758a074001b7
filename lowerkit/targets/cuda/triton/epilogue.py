"""What happens to a tile of the anchor's result: the elementwise op behind it, and the stores.

An anchor family computes a tile and says by axes which elements of the anchor's result those are; this writes the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from lowerkit.mlir import ir
from lowerkit.targets.cuda.triton.scalars import NoCode, Outer, constant, has_code, write_body
from lowerkit.targets.cuda.triton.tensors import (
    AnchorResult,
    Axis,
    Frame,
    Splat,
    Tensor,
    Unset,
    coordinate_text,
    load,
    map_strides,
    maps_of,
    offset_text,
    store,
)
from lowerkit.targets.cuda.triton.views import VIEWS, seen_before
from lowerkit.targets.cuda.triton.writer import KernelWriter, render
from lowerkit.targets.plan import KernelExpr, Refusal
from lowerkit.targets.region_view import RegionView


@dataclass(frozen=True)
class _Input:
    """An input of the elementwise op: a tensor with strides over its iteration dims, a number, or the tile itself."""

    tensor: Tensor | None
    strides: Sequence[KernelExpr]
    offset: KernelExpr
    splat: Splat | None


@dataclass(frozen=True)
class Epilogue:
    """The elementwise op behind an anchor, read; or none, where the result of the anchor is that of the region.

    Attributes:
        generic: the op.
        inputs: of it.
        outputs: each result of the region, with its strides over the iteration dims.
        anchor_dims: for each dim of the anchor's result the iteration dim.
        output_dims: the same for each dim of the first result of the region.
        index: what integers that are computed outside of the op are, of the open extents.
        stored: for each of ``outputs`` which number of the body it is, -1 for the anchor's result itself.
        tables: tensors whose elements the body looks up by positions that it computes.
    """

    generic: ir.Operation | None
    inputs: tuple[_Input, ...]
    outputs: tuple[tuple[Tensor, Sequence[KernelExpr], KernelExpr], ...]
    anchor_dims: tuple[int, ...]
    output_dims: tuple[int, ...]
    index: Outer
    stored: tuple[int, ...] = (-1,)
    tables: Mapping[ir.Value, Tensor] = field(default_factory=dict[ir.Value, Tensor])

    def read_operands(self) -> set[int]:
        """Returns the numbers of the operands that it reads."""
        read = {each.tensor.pointer for each in self.inputs if each.tensor is not None}
        return read | {each.pointer for each in self.tables.values()}

    def write(self, writer: KernelWriter, tile: str, axes: Sequence[Axis], mask: str | None = None) -> None:
        """Writes loads, body and stores.

        Args:
            writer: the kernel.
            tile: the values of the anchor's result, of its element type.
            axes: over the dims of the anchor's result; their texts broadcast to the tile.
            mask: which elements of the tile there are, beside what the masks of the axes say; None for all.
        """
        axes = [replace(axis, dims=tuple(self.anchor_dims[each] for each in axis.dims)) for axis in axes]
        yields: list[str] = []
        if self.generic is not None:
            yields = write_body(
                writer,
                self.generic.regions[0].blocks[0],
                [self._input(writer, each, tile, axes, mask) for each in self.inputs],
                lambda number: coordinate_text(writer, number, axes),
                self.index,
                lambda table, positions: self._look_up(writer, self.tables[table], positions, axes, mask),
            )
        for (tensor, strides, offset), number in zip(self.outputs, self.stored, strict=True):
            value = tile if number < 0 else yields[number]
            # An axis of one coordinate is nowhere in the sum, but the tile has its shape.
            single = [axis.text for axis in axes if all(size == 1 for size in axis.sizes)]
            place = writer.let(" + ".join([offset_text(writer, strides, offset, axes), *single]), "at")
            store(writer, tensor, place, value, _mask(writer, axes, mask))

    def _look_up(
        self, writer: KernelWriter, table: Tensor, positions: Sequence[str], axes: Sequence[Axis], mask: str | None
    ) -> str:
        """Writes elements at positions that the body computed; they are looked up in the shape of the tile."""
        shape = f"({' + '.join(axis.text for axis in axes)}) * 0"
        steps = [f"{each} * {render(stride)}" for each, stride in zip(positions, table.strides, strict=True)]
        place = writer.let(" + ".join([render(table.offset), *steps, shape]), "at")
        return load(writer, table, place, _mask(writer, axes, mask))

    def _input(self, writer: KernelWriter, each: _Input, tile: str, axes: Sequence[Axis], mask: str | None) -> str:
        if each.splat is not None:
            return writer.let(constant(each.splat.number, each.splat.element))
        if each.tensor is None:
            return tile
        # An operand that lacks an axis is loaded in the shape of the others, under their masks.
        used = [axis for axis in axes if _moves(each.strides, axis)]
        place = offset_text(writer, each.strides, each.offset, used)
        if not used:
            return load(writer, each.tensor, place, None)
        return load(writer, each.tensor, place, _mask(writer, used, mask))


def _moves(strides: Sequence[KernelExpr], axis: Axis) -> bool:
    """Whether another coordinate of an axis is another element; a stride along one place moves nowhere."""
    alone = all(size == 1 for size in axis.sizes)
    return any(strides[dim] != 0 and (alone or size != 1) for dim, size in zip(axis.dims, axis.sizes, strict=True))


def _mask(writer: KernelWriter, axes: Sequence[Axis], mask: str | None) -> str | None:
    masks = [each for each in (*(axis.mask for axis in axes), mask) if each is not None]
    return writer.let(" & ".join(masks), "mask") if masks else None


def read_epilogue(region: RegionView, frame: Frame, anchor: ir.Operation | None) -> Epilogue | Refusal:
    """Reads what stands behind an anchor; ``anchor`` None for a region that is elementwise alone."""
    generics = [op.operation for op in region.body_ops if op.operation.name == "linalg.generic"]
    if len(generics) > 1:
        return Refusal("several elementwise ops that could not be fused")
    if not generics:
        (value, result), *others = _stored(region, frame, anchor)
        if anchor is None or others or result is None or value.owner != anchor:
            return Refusal("the result is not that of the anchor")
        rank = len(result.sizes)
        return Epilogue(None, (), ((result, result.strides, 0),), tuple(range(rank)), tuple(range(rank)), frame.index)
    generic = generics[0]
    if "reduction" in str(generic.attributes["iterator_types"]):
        return Refusal("the elementwise op reduces")
    tables = _tables(frame, generic)
    missing = has_code(generic.regions[0].blocks[0], frame.index, tables)
    if missing is not None:
        return Refusal(f"{missing} has no translation")
    read = _read_generic(region, frame, anchor, generic)
    return read if isinstance(read, Refusal) else replace(read, tables=tables)


def _tables(frame: Frame, generic: ir.Operation) -> dict[ir.Value, Tensor]:
    """Returns the tensors whose elements the body looks up, as far as they lie in buffers."""
    found: dict[ir.Value, Tensor] = {}
    for op in generic.regions[0].blocks[0].operations:
        if op.operation.name == "tensor.extract":
            source = frame.source(op.operation.operands[0])
            if isinstance(source, Tensor) and 0 not in source.sizes:
                found[op.operation.operands[0]] = source
    return found


def _read_generic(
    region: RegionView, frame: Frame, anchor: ir.Operation | None, generic: ir.Operation
) -> Epilogue | Refusal:
    maps = maps_of(generic)
    count = len(generic.operands) - len(generic.results)
    block = generic.regions[0].blocks[0]
    inputs: list[_Input] = []
    anchor_dims: tuple[int, ...] | None = None
    for value, map_, argument in zip(list(generic.operands)[:count], maps, block.arguments, strict=False):
        source = frame.source(value, anchor)
        if isinstance(source, Unset) or not list(argument.uses):
            inputs.append(_Input(None, (), 0, Splat(0, str(argument.type))))
        elif isinstance(source, Splat):
            inputs.append(_Input(None, (), 0, source))
        elif isinstance(source, AnchorResult):
            dims = _plain_dims(map_)
            if dims is None or anchor_dims not in (None, dims):
                return Refusal("the elementwise op reads the anchor's result in another order")
            anchor_dims = dims
            inputs.append(_Input(None, (), 0, None))
        elif source is None:
            return Refusal("an operand of the elementwise op is computed inside the region")
        else:
            found = map_strides(map_, source)
            if found is None:
                return Refusal("an operand of the elementwise op is not read along straight lines")
            inputs.append(_Input(source, found[0], found[1], None))
    for argument in list(block.arguments)[count:]:
        if list(argument.uses):
            return Refusal("the elementwise op reads what was in its result")
    if anchor is not None and anchor_dims is None:
        return Refusal("the elementwise op does not read the anchor's result")
    outputs: list[tuple[Tensor, Sequence[KernelExpr], KernelExpr]] = []
    numbers: list[int] = []
    first_dims: tuple[int, ...] = ()
    for value, result in _stored(region, frame, anchor):
        number = next((n for n, each in enumerate(generic.results) if each == value), -1)
        if number < 0 and (anchor is None or value.owner != anchor or value != anchor.results[0]):
            return Refusal("a result is not that of the elementwise op or of the anchor")
        dims = anchor_dims if number < 0 else _plain_dims(maps[count + number])
        if result is None or dims is None:
            return Refusal("a result is not written along straight lines")
        first_dims = first_dims or dims
        strides = [stride for _, stride in sorted(zip(dims, result.strides, strict=True), key=lambda each: each[0])]
        outputs.append((result, strides, result.offset))
        numbers.append(number)
    return Epilogue(
        generic, tuple(inputs), tuple(outputs), anchor_dims or first_dims, first_dims, frame.index, tuple(numbers)
    )


def _stored(region: RegionView, frame: Frame, anchor: ir.Operation | None) -> list[tuple[ir.Value, Tensor | None]]:
    """Returns for each result the value that it is a view of, and where that lies; None where strides cannot say it.

    The anchor may be a view itself.
    """
    found: list[tuple[ir.Value, Tensor | None]] = []
    for returned, result in zip(region.returned, frame.results, strict=True):
        value, tensor = returned, result
        while tensor is not None and not isinstance(value.owner, ir.Block) and value.owner.operation.name in VIEWS:
            if anchor is not None and value.owner.operation == anchor:
                break
            tensor = seen_before(value.owner.operation, tensor)
            value = value.owner.operation.operands[0]
        found.append((value, tensor))
    return found


def _plain_dims(map_: ir.AffineMap) -> tuple[int, ...] | None:
    """The iteration dim of each result of a permutation; None where the map is another one."""
    dims = [ir.AffineDimExpr(each).position if isinstance(each, ir.AffineDimExpr) else None for each in map_.results]
    found = [each for each in dims if each is not None]
    return tuple(found) if len(found) == len(dims) == map_.n_dims and len(set(found)) == len(found) else None


__all__ = ["Epilogue", "NoCode", "read_epilogue"]
