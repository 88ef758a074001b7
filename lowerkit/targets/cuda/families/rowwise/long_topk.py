"""The first elements of rows that are longer than a tile: each part of a row gives its own, a second launch joins them.

Parts are taken by blocks of their own, so that one row of a vocabulary keeps a card busy. Bytes: the rows once, and
twice the items that are kept of each part.
"""

from __future__ import annotations

from lowerkit.targets.cuda.families.rowwise.keys import NOTHING, Order
from lowerkit.targets.cuda.families.rowwise.row_tiles import power_of_two
from lowerkit.targets.cuda.planned import PlannedLaunch, PlannedRegion, planned_region
from lowerkit.targets.cuda.triton.kernel import TritonKernel
from lowerkit.targets.cuda.triton.tensors import pointer_types
from lowerkit.targets.cuda.triton.writer import KernelWriter, render
from lowerkit.targets.plan import KernelExpr, expression, product, total

_PIECE = 512
_PIECES = 4
_MOST_PARTS = 128
_STEPS = 10


def first_of_parts(family: str, order: Order) -> PlannedRegion:
    """Returns the launches; rows and their length may be open."""
    frame, length = order.found.frame, order.length
    sizes = order.found.source.sizes
    rows = product([size for axis, size in enumerate(sizes) if axis != order.axis])
    places = power_of_two(order.wanted)
    part = _PIECE * _PIECES
    if isinstance(length, int):  # the second launch goes through what all parts gave
        part = max(part, -(-length // (_MOST_PARTS * _PIECE)) * _PIECE)
    parts = expression("ceildiv", length, part)
    kept = expression("mul", rows, expression("mul", parts, 8 * places))
    pointers = (*pointer_types(frame), "i64")
    buffers = list(range(len(frame.buffers) + 1))
    first = _write_parts(order, places, part, parts)
    second = _write_join(order, places, parts)
    kernels = [
        TritonKernel(family, writer.source(len(pointers), frame.dims), pointers, frame.dims, 4)
        for writer in (first, second)
    ]
    written = total([each.bytes for each in frame.results])
    elements = expression("mul", rows, length)
    launches = [
        PlannedLaunch(
            kernels[0],
            buffers,
            expression("mul", rows, parts),
            expression("mul", elements, _STEPS),
            order.found.source.bytes,
            kept,
        ),
        PlannedLaunch(kernels[1], buffers, rows, 0, kept, written),
    ]
    return planned_region(frame, launches, [kept], note=f"the first {places} of each {part}, then of all")


def _write_parts(order: Order, places: int, part: int, parts: KernelExpr) -> KernelWriter:
    """Writes the kernel that keeps the first items of each part of a row."""
    writer, length = KernelWriter(), order.length
    wide = ".to(tl.int64)" if order.found.frame.wide else ""
    pid = writer.let(f"tl.program_id(0){wide}", "pid")
    row, number = writer.let(f"{pid} // {render(parts)}", "row"), writer.let(f"{pid} % {render(parts)}", "part")
    best = _best(writer, places)
    with writer.block(f"for start in range(0, {part}, {_PIECE}):"):
        column = writer.let(f"{number} * {part} + start + tl.arange(0, {_PIECE})", "column")
        mask = writer.let(f"{column} < {render(length)}", "mask")
        key = order.keys(writer, order.row(row), column, mask)
        item = writer.let(f"({key}.to(tl.int64) << 32) | {column}.to(tl.int64)", "item")
        _join(writer, best, writer.let(f"tl.where({mask}, {item}, {NOTHING})", "item"), places)
    out = len(order.found.frame.buffers)
    writer.line(f"tl.store(p{out} + ({pid} * {places} + tl.arange(0, {places})), {best})")
    return writer


def _write_join(order: Order, places: int, parts: KernelExpr) -> KernelWriter:
    """Writes the kernel that keeps the first items of what the parts of a row gave, and writes the results."""
    writer = KernelWriter()
    wide = ".to(tl.int64)" if order.found.frame.wide else ""
    row = writer.let(f"tl.program_id(0){wide}", "row")
    count = writer.let(f"{render(parts)} * {places}", "count")
    base = writer.let(f"p{len(order.found.frame.buffers)} + {row} * {count}", "base")
    best = _best(writer, places)
    with writer.block(f"for start in range(0, {count}, {_PIECE}):"):
        at = writer.let(f"start + tl.arange(0, {_PIECE})", "at")
        item = writer.let(f"tl.load({base} + {at}, mask={at} < {count}, other={NOTHING})", "item")
        _join(writer, best, item, places)
    place = writer.let(f"tl.arange(0, {places})", "place")
    position = writer.let(f"{best} & {0xFFFFFFFF}", "position")
    mask = None if places == order.wanted else writer.let(f"{place} < {order.wanted}", "mask")
    order.write(writer, order.row(row), place, position, mask)
    return writer


def _best(writer: KernelWriter, places: int) -> str:
    best = writer.fresh("best")
    writer.line(f"{best} = tl.full([{places}], {NOTHING}, tl.int64)")
    return best


def _join(writer: KernelWriter, best: str, items: str, places: int) -> None:
    """Writes that the first of ``best`` and of ``items`` are the best."""
    joined = f"tl.reshape(tl.join({best}, tl.topk({items}, {places}, descending=False)), [{2 * places}])"
    writer.line(f"{best} = tl.topk({joined}, {places}, descending=False)")
