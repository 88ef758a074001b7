"""``lk.scatter``: every slice of the result looks for its updates, in their order; nothing is written twice.

A ``set`` alone changes its table in place: a block has one update (or a part of it) and writes it where no later one
names the same slice, so what moves does not grow with the table.

Otherwise a block has one slice of the table (or a part) and walks all indices, a vector at a time. ``set`` keeps the
number of the last one that names the slice; the other kinds combine and round, one after the other, where there are
some. Slices that are too short for vectors share a block and take the indices one by one; where those are many, ``set``
is three launches (:mod:`~lowerkit.targets.cuda.families.movement.last_updates`). The result is always that of a loop
over the updates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from msgspec.structs import replace

from lowerkit.mlir import ir
from lowerkit.targets.cuda.families.movement.last_updates import by_last_update
from lowerkit.targets.cuda.families.movement.scatter_problem import Scatter
from lowerkit.targets.cuda.families.movement.slices import SliceTile, joined_mask, slice_tile
from lowerkit.targets.cuda.family import KernelFamily
from lowerkit.targets.cuda.planned import PlannedRegion, one_kernel
from lowerkit.targets.cuda.triton.epilogue import read_epilogue
from lowerkit.targets.cuda.triton.kernel import TritonKernel
from lowerkit.targets.cuda.triton.scalars import TYPES
from lowerkit.targets.cuda.triton.tensors import (
    Frame,
    Splat,
    Tensor,
    coordinate_text,
    offset_text,
    pointer_types,
    row_major,
    store,
)
from lowerkit.targets.cuda.triton.writer import KernelWriter, as_i64, render
from lowerkit.targets.plan import Refusal, product
from lowerkit.targets.region_view import RegionView

_CHUNK = 1024
_MOST_SHORT = 4096
"""Indices at most where slices are short: each is looked at by every block."""
_NOWHERE = -1


class ScatterFamily(KernelFamily):
    """``lk.scatter`` of every kind and element type, along any axis, with an epilogue."""

    name: ClassVar[str] = "scatter"

    def plan(self, region: RegionView, level: str) -> PlannedRegion | Refusal:
        """See :meth:`KernelFamily.plan`."""
        anchor = region.anchor
        if anchor is None or anchor.operation.name != "lk.scatter":
            return Refusal("the anchor is not lk.scatter")
        frame = Frame(region)
        table, indices, updates = (frame.source(value) for value in anchor.operation.operands)
        filled = table if isinstance(table, Splat) else None
        if filled is not None:  # a table of one number: it has the shape of the result, and is nowhere
            sizes = frame.sizes_of(anchor.operation.results[0])
            table = Tensor(_NOWHERE, filled.element, sizes, row_major(sizes))
        if not isinstance(table, Tensor) or not isinstance(indices, Tensor) or not isinstance(updates, Tensor):
            return Refusal("an operand is computed inside the region")
        if not table.sizes:
            return Refusal("open extents of the anchor's result are not known")
        if 0 in (*table.sizes, *indices.sizes):
            return Refusal("nothing to update")
        epilogue = read_epilogue(region, frame, anchor.operation)
        if isinstance(epilogue, Refusal):
            return epilogue
        axis = ir.IntegerAttr(anchor.operation.attributes["axis"]).value
        kind = ir.StringAttr(anchor.operation.attributes["kind"]).value
        scatter = Scatter(table, indices, updates, axis, kind, frame.wide, filled)
        length = product(table.sizes[axis + 1 :])
        in_place = kind == "set" and epilogue.generic is None and _is_whole(table, (indices, updates))
        in_place = in_place and filled is None
        short = isinstance(length, int) and length < 8
        many = not (isinstance(scatter.count, int) and scatter.count <= _MOST_SHORT)
        if short and many and kind == "set":
            return by_last_update(self.name, frame, scatter, epilogue)
        if short and many:
            return Refusal(f"{render(scatter.count)} updates of slices of {length}; at most {_MOST_SHORT}")
        writer = KernelWriter()
        if in_place:
            return _in_place(writer, scatter, frame, short=short)
        tile = slice_tile(writer, table.sizes, axis + 1, wide=frame.wide, single=not short)
        mine = writer.let(as_i64(coordinate_text(writer, axis, [tile.place])), "mine")
        mask = joined_mask(writer, tile.axes)
        value = scatter.elements(writer, tile.axes, mask)
        write = _write_short if short else _write_last if kind == "set" else _write_each
        value = write(writer, scatter, tile, mine, value)
        epilogue.write(writer, value, tile.axes)
        source = writer.source(len(frame.buffers), frame.dims)
        kernel = TritonKernel(self.name, source, pointer_types(frame), frame.dims, 4 if not short else tile.warps)
        bytes_ = [buffer.bytes for buffer in frame.buffers]
        flops = 0 if kind == "set" else product(updates.sizes)
        return one_kernel(
            kernel, bytes_, len(region.operands), tile.blocks, note=tile.words, flops=flops,
            read=table.bytes if filled is None else updates.bytes, written=bytes_[-1],
        )  # fmt: skip


def _is_whole(table: Tensor, others: Sequence[Tensor]) -> bool:
    """Whether a table is a whole operand as it lies, which nothing else of the op is read from."""
    whole = tuple(product(table.sizes[axis + 1 :]) for axis in range(len(table.sizes)))
    plain = table.offset == 0 and tuple(table.strides) == whole
    return plain and all(each.pointer != table.pointer for each in others)


def _in_place(writer: KernelWriter, scatter: Scatter, frame: Frame, *, short: bool) -> PlannedRegion:
    """The kernel whose result holds the table when it starts: it writes the updates."""
    table, axis, (result,) = scatter.table, scatter.axis, frame.results
    sizes = (*table.sizes[:axis], scatter.count, *table.sizes[axis + 1 :])
    tile = slice_tile(writer, sizes, axis + 1, wide=frame.wide, single=not short)
    start = f"({tile.place.text} * 0).to(tl.int64)" if short else "tl.zeros([], tl.int64)"  # in the shape of the places
    mine = writer.let(f"{start} + {coordinate_text(writer, axis, [tile.place])}", "mine")
    mask = joined_mask(writer, tile.axes)
    position = scatter.positions(writer, mine, mask if short else None)
    last = writer.fresh("last")
    writer.line(f"{last} = {mine}")
    if short:
        with writer.block(f"for number in range(0, {render(scatter.count)}):"):
            here = writer.let(f"{scatter.positions(writer, 'number', None)} == {position}", "here")
            writer.line(f"{last} = tl.where({here}, tl.maximum({last}, number), {last})")
    else:

        def use(number: str, here: str) -> None:
            writer.line(f"{last} = tl.maximum({last}, tl.max(tl.where({here}, {number}, -1), 0).to(tl.int64))")

        _chunks(writer, scatter, position, use)
    inside = f"({position} >= 0) & ({position} < {render(table.sizes[axis])})"
    stands = writer.let(f"({last} == {mine}) & {inside}", "stands")
    mask = joined_mask(writer, tile.axes, stands)
    value = scatter.update(writer, tile, mine, mask, one=not short)
    strides = [0 if number == axis else stride for number, stride in enumerate(result.strides)]
    place = offset_text(writer, strides, result.offset, tile.axes)
    store(writer, result, f"{place} + {position} * {render(result.strides[axis])}", value, mask)
    source = writer.source(len(frame.buffers), frame.dims)
    warps = tile.warps if short else 4
    kernel = TritonKernel(ScatterFamily.name, source, pointer_types(frame), frame.dims, warps)
    moved = scatter.updates.bytes
    planned = one_kernel(
        kernel, [buffer.bytes for buffer in frame.buffers], len(frame.region.operands), tile.blocks,
        note=f"{tile.words}, in place", read=moved, written=moved,
    )  # fmt: skip
    return replace(planned, function=replace(planned.function, in_place={0: table.pointer}))


def _chunks(writer: KernelWriter, scatter: Scatter, mine: str, use: Callable[[str, str], None]) -> None:
    """Writes the walk over all indices; ``use`` gets their numbers, and which of them name the slice."""
    wide = ".to(tl.int64)" if scatter.wide else ""
    chunk = _CHUNK
    if isinstance(scatter.count, int):
        chunk = min(chunk, max(32, 1 << (scatter.count - 1).bit_length()))
    with writer.block(f"for start in range(0, {render(scatter.count)}, {chunk}):"):
        number = writer.let(f"start + tl.arange(0, {chunk}){wide}", "number")
        inside = writer.let(f"{number} < {render(scatter.count)}", "inside")
        position = scatter.positions(writer, number, inside)
        use(number, writer.let(f"({position} == {mine}) & {inside}", "here"))


def _write_last(writer: KernelWriter, scatter: Scatter, tile: SliceTile, mine: str, value: str) -> str:
    """``set``: the last update that names the slice stands."""
    type_ = TYPES["i64" if scatter.wide else "i32"]
    last = writer.fresh("last")
    writer.line(f"{last} = tl.full([], -1, {type_})")

    def use(number: str, here: str) -> None:
        writer.line(f"{last} = tl.maximum({last}, tl.max(tl.where({here}, {number}, -1), 0))")

    _chunks(writer, scatter, mine, use)
    found = writer.let(f"{last} >= 0", "found")
    mask = joined_mask(writer, tile.axes, found)
    new = scatter.update(writer, tile, writer.let(f"tl.maximum({last}, 0)"), mask)
    return writer.let(f"tl.where({found}, {new}, {value})", "value")


def _write_each(writer: KernelWriter, scatter: Scatter, tile: SliceTile, mine: str, value: str) -> str:
    """The other kinds: all updates that name the slice, in order."""
    current = writer.fresh("current")
    writer.line(f"{current} = {value}")
    far = 2**63 - 1 if scatter.wide else 2**31 - 1
    mask = joined_mask(writer, tile.axes)

    def use(number: str, here: str) -> None:
        left, rest = writer.fresh("left"), writer.fresh("rest")
        writer.line(f"{rest} = {here}")
        writer.line(f"{left} = tl.sum({rest}.to(tl.int32), 0)")
        with writer.block(f"while {left} > 0:"):
            first = writer.let(f"tl.min(tl.where({rest}, {number}, {far}), 0)", "first")
            writer.line(f"{current} = {scatter.combined(current, scatter.update(writer, tile, first, mask))}")
            writer.line(f"{rest} = {rest} & ({number} != {first})")
            writer.line(f"{left} = {left} - 1")

    _chunks(writer, scatter, mine, use)
    return current


def _write_short(writer: KernelWriter, scatter: Scatter, tile: SliceTile, mine: str, value: str) -> str:
    """Short slices: every index by itself."""
    current = writer.fresh("current")
    writer.line(f"{current} = {value}")
    with writer.block(f"for number in range(0, {render(scatter.count)}):"):
        here = writer.let(f"{scatter.positions(writer, 'number', None)} == {mine}", "here")
        new = scatter.update(writer, tile, "number", joined_mask(writer, tile.axes, here))
        writer.line(f"{current} = tl.where({here}, {scatter.combined(current, new)}, {current})")
    return current
