"""The kernels of a convolution as a product: rows are pixels, columns output channels, K taps and input channels.

The matrix of rows by K is nowhere: a block finds the addresses of its part from the windows, loads with zeros where a
tap leaves the image, and multiplies on tensor cores. Two ways to walk through K:

    within taps   a step is one tap and neighbouring channels: addresses and masks are one number for each row
    flat          a step is neighbouring numbers of K, whatever taps they are of: for few channels, such as the three
                  of an image, which are not filled up to sixteen

Bytes that are unsigned are brought to signed ones by their highest bit, since tensor cores multiply signs alike; what
that takes from a result, 128 times the sum of its weights, is summed beside the products and added.

Where K is split, each part stores its sums, and a second kernel adds them in the order of parts and does the rest.

Blocks that follow one another share rows, so that the input comes from device memory once; the filter stays in L2.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowerkit.targets.cuda.families.windows.conv_problem import Conv
from lowerkit.targets.cuda.families.windows.conv_tiles import ConvTile
from lowerkit.targets.cuda.families.windows.sliding import scaled, split_pixel, split_tap, starts_of, total
from lowerkit.targets.cuda.triton.epilogue import Epilogue
from lowerkit.targets.cuda.triton.kernel import TritonKernel
from lowerkit.targets.cuda.triton.scalars import TYPES, converted
from lowerkit.targets.cuda.triton.tensors import Axis, Frame, pointer_types
from lowerkit.targets.cuda.triton.writer import KernelWriter, render
from lowerkit.targets.plan import KernelExpr, expression, product

SUM_BLOCK = 512
_SUM_POINTERS = {"f32": "fp32", "i32": "i32"}


_Step = tuple[str, str, str | None, str | None]
"""Of a step of K: where the input and the filter are read, and which pixels and numbers of K there are."""


@dataclass(frozen=True)
class _Rows:
    """The pixels of a block: where each starts in the input, its first positions, and which there are."""

    base: str
    starts: list[str]
    mask: str | None


def column_tiles(conv: Conv, tile: ConvTile) -> int:
    """Returns how many tiles of columns there are, of all groups."""
    return conv.groups * -(-conv.outputs // tile.n)


def row_tiles(conv: Conv, tile: ConvTile) -> KernelExpr:
    """Returns how many tiles of rows there are."""
    return expression("ceildiv", conv.rows, tile.m)


def write_product(family: str, frame: Frame, conv: Conv, tile: ConvTile, epilogue: Epilogue) -> TritonKernel:
    """Writes the kernel that multiplies; where K is split, its sums go to the buffer behind all others."""
    writer = KernelWriter()
    wide = ".to(tl.int64)" if frame.wide else ""
    pid = writer.let(f"tl.program_id(0){wide}", "pid")
    tiles_n = column_tiles(conv, tile)
    part = "0"
    if tile.splits > 1:
        each = expression("mul", row_tiles(conv, tile), tiles_n)
        part = writer.let(f"{pid} // {render(each)}", "part")
        pid = writer.let(f"{pid} % {render(each)}", "pid")
    tile_m = pid if tiles_n == 1 else writer.let(f"{pid} // {tiles_n}", "tile")
    tile_n = "0" if tiles_n == 1 else writer.let(f"{pid} % {tiles_n}", "tile")
    group, output, columns = _columns(writer, conv, tile, tile_n)
    row = writer.let(f"{tile_m} * {tile.m} + tl.arange(0, {tile.m}){wide}", "row")
    narrow = frame.wide and conv.slide.small
    rows = _rows(writer, conv, tile, row, narrow)
    base = rows.base if group == "0" else writer.let(f"{rows.base} + {_grouped(conv, group)}", "base")
    sums = writer.fresh("sums")
    writer.line(f"{sums} = tl.zeros(({tile.m}, {tile.n}), {TYPES[conv.sums]})")
    first, last = "0", str(tile.steps)
    if tile.splits > 1:
        first = writer.let(f"{part} * {tile.steps_each}", "first")
        last = writer.let(f"tl.minimum({first} + {tile.steps_each}, {tile.steps})", "last")
    filter_at = writer.let(f"p{conv.filter.pointer} + ({output} * {conv.output_stride})[None, :]", "w")
    weights = ""
    if conv.unsigned:
        weights = writer.fresh("weights")
        writer.line(f"{weights} = tl.zeros(({tile.n},), tl.int32)")
    with writer.block(f"for step in range({first}, {last}):"):
        step = writer.let("step.to(tl.int32)", "step") if narrow and tile.splits > 1 else "step"
        write = _step_within_taps if tile.whole_taps else _step_flat
        x_at, w_at, there, inside = write(writer, conv, tile, step, _Rows(base, rows.starts, rows.mask))
        _multiply(writer, conv, x_at, f"{filter_at} + {w_at}", there, columns, inside, sums, weights)
    if conv.unsigned:
        sums = writer.let(f"{sums} + ({weights} * 128)[None, :]", "sums")
    if tile.splits > 1:
        row = writer.let(f"{part} * {render(conv.rows)} + {row}", "row")
        place = f"{row}[:, None] * {conv.slide.channels} + {output}[None, :]"
        guard = _both(rows.mask, columns)
        writer.line(f"tl.store(p{len(frame.buffers)} + {place}, {sums}{f', mask={guard}' if guard else ''})")
    else:
        axes = [
            Axis(f"{row}[:, None]", conv.slide.pixel_dims, conv.slide.pixel_sizes, rows.mask),
            Axis(f"{output}[None, :]", (conv.slide.channel_dim,), (conv.slide.channels,), columns),
        ]
        value = writer.let(_result(conv, sums), "value")
        epilogue.write(writer, value, axes)
    temporaries = (_SUM_POINTERS[conv.sums],) if tile.splits > 1 else ()
    source = writer.source(len(frame.buffers) + len(temporaries), frame.dims)
    return TritonKernel(family, source, (*pointer_types(frame), *temporaries), frame.dims, tile.warps, tile.stages)


def write_sum(family: str, frame: Frame, conv: Conv, tile: ConvTile, epilogue: Epilogue) -> TritonKernel:
    """Writes the kernel that adds the parts of a split K, each of all results in the order of rows."""
    writer = KernelWriter()
    wide = ".to(tl.int64)" if frame.wide else ""
    count = product([conv.rows, conv.slide.channels])
    flat = writer.let(f"tl.program_id(0){wide} * {SUM_BLOCK} + tl.arange(0, {SUM_BLOCK}){wide}", "flat")
    mask = writer.let(f"{flat} < {render(count)}", "mask")
    place = f"p{len(frame.buffers)} + {flat}"
    sums = ""
    for part in range(tile.splits):
        loaded = writer.let(f"tl.load({place} + {render(expression('mul', count, part))}, mask={mask})", "x")
        sums = writer.let(f"{sums} + {loaded}", "sums") if sums else loaded
    axis = Axis(
        flat,
        (*conv.slide.pixel_dims, conv.slide.channel_dim),
        (*conv.slide.pixel_sizes, conv.slide.channels),
        mask,
    )
    epilogue.write(writer, writer.let(_result(conv, sums), "value"), [axis])
    source = writer.source(len(frame.buffers) + 1, frame.dims)
    return TritonKernel(family, source, (*pointer_types(frame), _SUM_POINTERS[conv.sums]), frame.dims, 4, 1)


def _result(conv: Conv, sums: str) -> str:
    return converted(sums, conv.sums, conv.result)


def _columns(writer: KernelWriter, conv: Conv, tile: ConvTile, tile_n: str) -> tuple[str, str, str | None]:
    """Returns the group, the output channels, and which of those there are, as a row of the tile."""
    each = -(-conv.outputs // tile.n)
    group = "0"
    if conv.groups > 1:
        group = tile_n if each == 1 else writer.let(f"{tile_n} // {each}", "group")
        tile_n = "0" if each == 1 else writer.let(f"{tile_n} % {each}", "tile")
    column = writer.let(f"{tile_n} * {tile.n} + tl.arange(0, {tile.n})", "column")
    mask = None if conv.outputs % tile.n == 0 else writer.let(f"({column} < {conv.outputs})[None, :]", "columns")
    output = column if group == "0" else writer.let(f"{group} * {conv.outputs} + {column}", "output")
    return group, output, mask


def _grouped(conv: Conv, group: str) -> str:
    return f"{group} * {render(expression('mul', conv.slide.channel_stride, conv.depth))}"


def _rows(writer: KernelWriter, conv: Conv, tile: ConvTile, row: str, narrow: bool) -> _Rows:
    slide, rows = conv.slide, conv.rows
    whole = isinstance(rows, int) and rows % tile.m == 0
    mask = None if whole else writer.let(f"({row} < {render(rows)})[:, None]", "rows")
    if slide.is_copy:
        text = total([render(slide.x.offset), scaled(row, slide.windows[-1].step)])
        return _Rows(writer.let(text, "base"), ["0"] * len(slide.windows), mask)
    image, positions = split_pixel(writer, slide, row)
    starts = starts_of(writer, slide, positions, narrow)
    texts = [render(slide.x.offset), scaled(image, slide.image_stride)]
    texts += [scaled(start, window.step) for start, window in zip(starts, slide.windows, strict=True)]
    return _Rows(writer.let(total(texts), "base"), starts, mask)


def _step_within_taps(writer: KernelWriter, conv: Conv, tile: ConvTile, step: str, rows: _Rows) -> _Step:
    slide = conv.slide
    each = -(-conv.depth // tile.k)
    tap, start = step, "0"
    if each > 1:
        tap = "0" if slide.taps == 1 else writer.let(f"{step} // {each}", "tap")
        start = writer.let(step if slide.taps == 1 else f"{step} % {each}", "start")
    elif slide.taps == 1:
        tap = "0"
    channel = writer.let(f"{scaled(start, tile.k)} + tl.arange(0, {tile.k})", "channel")
    inside = None if conv.depth % tile.k == 0 else writer.let(f"{channel} < {conv.depth}", "inside")
    numbers = split_tap(writer, slide, tap)
    mask = rows.mask
    shifts: list[str] = []
    for window, number, first in zip(slide.windows, numbers, rows.starts, strict=True):
        shift = scaled(number, window.dilation)
        there = window.exists(writer, first if shift == "0" else writer.let(f"{first} + {shift}", "position"))
        mask = _both(mask, None if there is None else f"{there}[:, None]")
        shifts.append(scaled(number, expression("mul", window.step, window.dilation)))
    shift = total(shifts)
    base = rows.base if shift == "0" else writer.let(f"{rows.base} + ({shift})", "base")
    x_at = f"p{slide.x.pointer} + ({base}[:, None] + {_times(channel, slide.channel_stride)}[None, :])"
    w_at = f"({total([scaled(tap, conv.tap_stride), _times(channel, conv.depth_stride)])})[:, None]"
    return x_at, w_at, mask, inside


def _step_flat(writer: KernelWriter, conv: Conv, tile: ConvTile, step: str, rows: _Rows) -> _Step:
    slide = conv.slide
    flat = writer.let(f"{step} * {tile.k} + tl.arange(0, {tile.k})", "flat")
    inside = None if conv.k % tile.k == 0 else writer.let(f"{flat} < {conv.k}", "inside")
    tap = flat if conv.depth == 1 else writer.let(f"{flat} // {conv.depth}", "tap")
    channel = "0" if conv.depth == 1 else writer.let(f"{flat} % {conv.depth}", "channel")
    numbers = split_tap(writer, slide, tap)
    mask = rows.mask
    shifts: list[str] = []
    for window, number, first in zip(slide.windows, numbers, rows.starts, strict=True):
        shift = scaled(number, window.dilation)
        if not window.inside:
            if shift == "0":
                there = f"({window.exists(writer, first)})[:, None]"
            else:
                start = first if first == "0" else f"{first}[:, None]"
                there = window.exists(writer, writer.let(f"{start} + ({shift})[None, :]", "position"))
            mask = _both(mask, there)
        shifts.append(scaled(number, expression("mul", window.step, window.dilation)))
    shift = writer.let(total([*shifts, scaled(channel, slide.channel_stride)]), "shift")
    along = shift if shift == "0" else f"({shift})[None, :]"
    x_at = f"p{slide.x.pointer} + ({rows.base}[:, None] + {along})"
    packed = conv.tap_stride == conv.depth and conv.depth_stride == 1
    w_along = flat if packed else total([scaled(tap, conv.tap_stride), scaled(channel, conv.depth_stride)])
    return x_at, f"({w_along})[:, None]", mask, inside


def _multiply(
    writer: KernelWriter,
    conv: Conv,
    x_at: str,
    w_at: str,
    rows: str | None,
    columns: str | None,
    inside: str | None,
    sums: str,
    weights: str,
) -> None:
    x_mask = _both(rows, None if inside is None else f"{inside}[None, :]")
    w_mask = _both(columns, None if inside is None else f"{inside}[:, None]")
    x = writer.let(f"tl.load({x_at}{_guard(x_mask, str(conv.around))})", "x")
    w = writer.let(f"tl.load({w_at}{_guard(w_mask, '0')})", "w")
    if conv.unsigned:
        x = writer.let(f"({x} ^ -128).to(tl.int8)", "signed")
        writer.line(f"{weights} += tl.sum({w}.to(tl.int32), 0)")
    if conv.slide.x.element == "i8":
        writer.line(f"{sums} = tl.dot({x}, {w}, {sums}, out_dtype=tl.int32)")
        return
    precision = ', input_precision="ieee"' if conv.slide.x.element == "f32" else ""
    writer.line(f"{sums} = tl.dot({x}, {w}, {sums}{precision})")


def _guard(mask: str | None, other: str) -> str:
    return "" if mask is None else f", mask={mask}, other={other}"


def _times(text: str, factor: KernelExpr) -> str:
    return text if factor == 1 else f"({text} * {render(factor)})"


def _both(left: str | None, right: str | None) -> str | None:
    return right if left is None else left if right is None else f"{left} & {right}"
