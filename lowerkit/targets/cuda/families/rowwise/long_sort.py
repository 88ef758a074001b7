"""Rows that one block does not sort: chunks are sorted by blocks of their own, then merged, some at a time.

Vocabulary
    chunk    the elements of a row that are sorted first, side by side
    run      sorted elements, side by side: a chunk, or what was merged of some of them
    place    how many elements of the runs that are merged come before an element: its own position in its run, and in
             each other run what a binary search finds; equal ones of an earlier run come before it, so it is stable

Every element finds its place by itself, so a launch of a merge has a thread for each, and nothing waits. Keys of 32
bits travel as items with their positions; keys of 64 bits and positions lie in two temporaries. The last launch writes
values and positions.

Chunks are sorted by counting: what comes before an element among those of its chunk is its place. That compares all
with all, but is a few instructions each, needs no memory between steps, and compiles in no time, as networks do not.
Rows that are not much longer than a chunk are one, since a launch costs more.
"""

from __future__ import annotations

from lowerkit.targets.cuda.families.rowwise.keys import Order
from lowerkit.targets.cuda.families.rowwise.row_tiles import power_of_two
from lowerkit.targets.cuda.planned import PlannedLaunch, PlannedRegion, planned_region
from lowerkit.targets.cuda.triton.kernel import TritonKernel
from lowerkit.targets.cuda.triton.tensors import pointer_types
from lowerkit.targets.cuda.triton.writer import KernelWriter, render
from lowerkit.targets.plan import KernelExpr, expression, product, total

_CHUNK = 256
_ALONE = 1024
_COUNTED = 64
_RUNS = 4
_BLOCK = 512


def sorted_in_runs(family: str, order: Order) -> PlannedRegion:
    """Returns the launches that sort rows of a known length, or give the first elements of them."""
    frame, length = order.found.frame, order.length
    assert isinstance(length, int), "how often runs are merged depends on the length"
    buffers = list(range(len(frame.buffers)))
    rows = product([frame_size for axis, frame_size in enumerate(order.found.source.sizes) if axis != order.axis])
    chunk = power_of_two(length) if length <= _ALONE else _CHUNK
    merges: list[int] = []
    run = chunk
    while run < length:
        merges.append(run)
        run *= _RUNS
    elements = expression("mul", rows, length)
    each = (
        [expression("mul", elements, 8), expression("mul", elements, 4)]
        if order.wide
        else [expression("mul", elements, 8)]
    )
    sets = min(len(merges), 2)
    travelling = total(each)
    written = total([result.bytes for result in frame.results])
    source = order.found.source.bytes
    steps = max(1, (length - 1).bit_length())
    launches: list[PlannedLaunch] = []
    for number in range(len(merges) + 1):
        last = number == len(merges)
        ins = _temporaries(buffers, each, (number + 1) % 2) if number else []
        outs = [] if last else _temporaries(buffers, each, number % 2)
        types = (*pointer_types(frame), *(["i64", "i32"] if order.wide else ["i64"]) * ((number > 0) + (not last)))
        if number:
            writer, blocks, warps = _write_merge(order, merges[number - 1], rows, last)
        else:
            writer, blocks, warps = _write_count(order, chunk, rows, last)
        text = writer.source(len(types), frame.dims)
        kernel = TritonKernel(family, text, types, frame.dims, warps)
        launches.append(
            PlannedLaunch(
                kernel,
                [*buffers, *ins, *outs],
                blocks,
                expression("mul", elements, steps),
                total([travelling, source if last else 0]) if number else source,
                written if last else travelling,
            )
        )
    note = f"chunks of {chunk}, {len(merges)} merges of {_RUNS} runs"
    return planned_region(frame, launches, each * sets, note=note)


def _temporaries(buffers: list[int], each: list[KernelExpr], number: int) -> list[int]:
    """The numbers of the temporaries of one of both sets: merges go to and fro between them."""
    first = len(buffers) + number * len(each)
    return list(range(first, first + len(each)))


def _row_of_block(writer: KernelWriter, order: Order, parts: int) -> tuple[str, str]:
    """Returns which row a block is of, and which part of it."""
    wide = ".to(tl.int64)" if order.found.frame.wide else ""
    pid = writer.let(f"tl.program_id(0){wide}", "pid")
    if parts == 1:
        return pid, "0"
    return writer.let(f"{pid} // {parts}", "row"), writer.let(f"({pid} % {parts}).to(tl.int32)", "part")


def _write_count(order: Order, chunk: int, rows: KernelExpr, last: bool) -> tuple[KernelWriter, KernelExpr, int]:
    """Writes the kernel that sorts chunks: for each element it counts those that come before it."""
    writer, length = KernelWriter(), order.length
    assert isinstance(length, int), "see above"
    parts = -(-length // _COUNTED)
    row, part = _row_of_block(writer, order, parts)
    column = writer.let(f"{part} * {_COUNTED} + tl.arange(0, {_COUNTED})", "column")
    mask = None if length % _COUNTED == 0 else writer.let(f"{column} < {length}", "mask")
    key = _key(writer, order, row, column, mask)
    first = writer.let(f"{part} * {_COUNTED} // {chunk} * {chunk}", "first")
    end = f"tl.minimum({first} + {chunk}, {length})" if length > chunk else str(length)
    count = writer.fresh("count")
    writer.line(f"{count} = tl.zeros(({_COUNTED},), tl.int32)")
    with writer.block(f"for start in range({first}, {writer.let(end, 'end')}, {_COUNTED}):"):
        other = writer.let(f"start + tl.arange(0, {_COUNTED})", "other")
        there = writer.let(f"{other} < {length}", "there")
        others = _key(writer, order, row, other, there)
        before = f"({others}[None, :] < {key}[:, None])"
        if order.wide:
            before += f" | (({others}[None, :] == {key}[:, None]) & ({other}[None, :] < {column}[:, None]))"
        before = writer.let(f"({before}) & {there}[None, :]", "before")
        writer.line(f"{count} += tl.sum({before}.to(tl.int32), 1)")
    place = writer.let(f"{first} + {count}", "place")
    if last:
        order.write(writer, order.row(row), place, column, _both(writer, mask, order, place))
    else:
        out = len(order.found.frame.buffers)
        at = writer.let(f"{row} * {length} + {place}", "at")
        writer.line(f"tl.store(p{out} + {at}, {key}{_guard(mask)})")
        if order.wide:
            writer.line(f"tl.store(p{out + 1} + {at}, {column}{_guard(mask)})")
    return writer, expression("mul", rows, parts), 4


def _key(writer: KernelWriter, order: Order, row: str, column: str, mask: str | None) -> str:
    """Writes what is compared: keys of 64 bits, or items."""
    key = order.keys(writer, order.row(row), column, mask)
    if not order.wide:
        key = f"({key}.to(tl.int64) << 32) | {column}.to(tl.int64)"
    return writer.let(key, "key")


def _write_merge(order: Order, run: int, rows: KernelExpr, last: bool) -> tuple[KernelWriter, KernelExpr, int]:
    """Writes the kernel that merges runs of ``run`` elements."""
    writer, length = KernelWriter(), order.length
    assert isinstance(length, int), "see above"
    parts = -(-length // _BLOCK)
    row, part = _row_of_block(writer, order, parts)
    column = writer.let(f"{part} * {_BLOCK} + tl.arange(0, {_BLOCK})", "column")
    mask = None if length % _BLOCK == 0 else writer.let(f"{column} < {length}", "mask")
    buffers, width = len(order.found.frame.buffers), 2 if order.wide else 1
    base = writer.let(f"p{buffers} + {row} * {length}", "base")
    key = writer.let(f"tl.load({base} + {column}{_guard(mask)}{', other=0' if mask else ''})", "key")
    own = writer.let(f"{column} // {run}", "own")
    group = writer.let(f"{own} // {_RUNS} * {_RUNS}", "group")
    place = writer.let(f"{group} * {run} + ({column} - {own} * {run})", "place")
    for number in range(min(_RUNS, -(-length // run))):
        other = writer.let(f"{group} + {number}", "other")
        begin = writer.let(f"{other} * {run}", "begin")
        size = writer.let(f"tl.maximum(tl.minimum({run}, {length} - {begin}), 0)", "size")
        # In its own run an element has its place already.
        low, high = writer.fresh("low"), writer.fresh("high")
        writer.line(f"{low} = {column} * 0")
        sought = f"({other} != {own})" + (f" & {mask}" if mask else "")
        writer.line(f"{high} = tl.where({sought}, {size}, 0)")
        with writer.block(f"for _ in range({run.bit_length()}):"):
            middle = writer.let(f"({low} + {high}) // 2", "middle")
            open_ = writer.let(f"{low} < {high}", "open")
            found = writer.let(f"tl.load({base} + {begin} + {middle}, mask={open_}, other=0)", "found")
            before = f"({found} < {key})"
            if order.wide:
                before += f" | (({found} == {key}) & ({other} < {own}))"
            before = writer.let(before, "before")
            writer.line(f"{low} = tl.where({open_} & {before}, {middle} + 1, {low})")
            writer.line(f"{high} = tl.where({open_} & ({before} == 0), {middle}, {high})")
        place = writer.let(f"{place} + {low}", "place")
    positions = f"({key} & {0xFFFFFFFF}).to(tl.int32)"
    if order.wide:
        positions = f"tl.load(p{buffers + 1} + ({row} * {length} + {column}){_guard(mask)})"
    positions = writer.let(positions, "position") if last or order.wide else ""
    if last:
        order.write(writer, order.row(row), place, positions, _both(writer, mask, order, place))
        return writer, expression("mul", rows, parts), 4
    at = writer.let(f"{row} * {length} + {place}", "at")
    writer.line(f"tl.store(p{buffers + width} + {at}, {key}{_guard(mask)})")
    if order.wide:
        writer.line(f"tl.store(p{buffers + width + 1} + {at}, {positions}{_guard(mask)})")
    return writer, expression("mul", rows, parts), 4


def _both(writer: KernelWriter, mask: str | None, order: Order, place: str) -> str | None:
    """Returns which elements there are and are wanted."""
    masks = [] if mask is None else [mask]
    if order.wanted != order.length:
        masks.append(f"({place} < {render(order.wanted)})")
    return writer.let(" & ".join(masks), "mask") if masks else None


def _guard(mask: str | None) -> str:
    return f", mask={mask}" if mask else ""
