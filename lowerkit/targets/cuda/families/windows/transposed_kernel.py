"""The kernel of a transposed convolution as products: rows are pixels of a phase, columns output channels, K its taps
and the input channels.

A block has some pixels of one phase and some output channels. Its phase follows from its number, and so do its first
tap and the number of its taps: one kernel does all phases. Blocks that follow one another are of the same part of the
input, so that it comes from device memory once; the filter stays in L2. Nothing is multiplied with zeros that lie
between the positions of the input, as where a transposed convolution is a convolution of an input that is spread out.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowerkit.targets.cuda.families.windows.conv_tiles import ConvTile
from lowerkit.targets.cuda.families.windows.sliding import scaled, total
from lowerkit.targets.cuda.families.windows.transposed_problem import Phase, Transposed
from lowerkit.targets.cuda.triton.epilogue import Epilogue
from lowerkit.targets.cuda.triton.kernel import TritonKernel
from lowerkit.targets.cuda.triton.scalars import converted
from lowerkit.targets.cuda.triton.tensors import Axis, Frame, pointer_types
from lowerkit.targets.cuda.triton.writer import KernelWriter, render
from lowerkit.targets.plan import KernelExpr, expression


@dataclass(frozen=True)
class _Pixels:
    """The pixels of a block: where the first tap of each is in the input, and what they are of the result.

    Attributes:
        base: the element of the input.
        starts: the position along each window.
        number: the flat number of the pixel of the result.
        mask: which there are.
    """

    base: str
    starts: list[str]
    number: str
    mask: str | None


def tiles_of(problem: Transposed, tile: ConvTile) -> KernelExpr:
    """Returns how many blocks there are."""
    across = problem.phases * problem.groups * -(-problem.outputs // tile.n)
    return expression("mul", expression("ceildiv", problem.rows, tile.m), across)


def write_transposed(
    family: str, frame: Frame, problem: Transposed, tile: ConvTile, epilogue: Epilogue
) -> TritonKernel:
    """Writes the kernel."""
    writer = KernelWriter()
    wide = ".to(tl.int64)" if frame.wide else ""
    each = -(-problem.outputs // tile.n)
    across = problem.phases * problem.groups * each
    pid = writer.let(f"tl.program_id(0){wide}", "pid")
    tile_m = pid if across == 1 else writer.let(f"{pid} // {across}", "tile")
    rest = "0" if across == 1 else writer.let(f"({pid} % {across}){'.to(tl.int32)' if wide else ''}", "rest")
    tile_n, rest = _digit(writer, rest, each, problem.phases * problem.groups == 1)
    group, rest = _digit(writer, rest, problem.groups, problem.phases == 1)
    residues, phases = _phases(writer, problem, rest)
    column = writer.let(f"{scaled(tile_n, tile.n)} + tl.arange(0, {tile.n})", "column")
    columns = None if problem.outputs % tile.n == 0 else writer.let(f"({column} < {problem.outputs})[None, :]", "there")
    row = writer.let(f"{tile_m} * {tile.m} + tl.arange(0, {tile.m}){wide}", "row")
    pixels = _pixels(writer, frame, problem, tile, row, residues, phases)
    sums = writer.fresh("sums")
    writer.line(f"{sums} = tl.zeros(({tile.m}, {tile.n}), tl.float32)")
    depth_tiles = -(-problem.depth // tile.k)
    counts = [phase.count for phase in phases]
    trips = " * ".join([*(each for each in counts if each != "1"), *([str(depth_tiles)] * (depth_tiles > 1))]) or "1"
    w_base = total([f"({column} * {problem.output_stride})[None, :]", scaled(group, problem.group_stride)])
    w_base = writer.let(f"p{problem.filter.pointer} + {w_base}", "w")
    x_shift = scaled(group, expression("mul", problem.slide.channel_stride, problem.depth))
    base = pixels.base if x_shift == "0" else writer.let(f"{pixels.base} + {x_shift}", "base")
    with writer.block(f"for step in range(0, {writer.let(trips, 'trips')}):"):
        _step(
            writer, frame, problem, tile, _Pixels(base, pixels.starts, "", pixels.mask), phases, w_base, columns, sums
        )
    output = column if group == "0" else writer.let(f"{group} * {problem.outputs} + {column}", "output")
    slide = problem.slide
    axes = [
        Axis(f"{pixels.number}[:, None]", slide.pixel_dims, slide.pixel_sizes, pixels.mask),
        Axis(f"{output}[None, :]", (slide.channel_dim,), (slide.channels,), columns),
    ]
    epilogue.write(writer, writer.let(converted(sums, "f32", slide.x.element), "value"), axes)
    source = writer.source(len(frame.buffers), frame.dims)
    return TritonKernel(family, source, pointer_types(frame), frame.dims, tile.warps, tile.stages)


def _digit(writer: KernelWriter, number: str, count: int, last: bool) -> tuple[str, str]:
    """Splits off the lowest digit of a number, of ``count`` values; the rest is 0 behind the last one."""
    if count == 1:
        return "0", number
    if last:
        return number, "0"
    return writer.let(f"{number} % {count}", "digit"), writer.let(f"{number} // {count}", "rest")


def _phases(writer: KernelWriter, problem: Transposed, number: str) -> tuple[list[str], list[Phase]]:
    """Returns what a position of the block is beyond a multiple of each stride, and the taps of the phase."""
    residues: list[str] = []
    spreads = problem.spreads
    left = problem.phases
    for spread in reversed(spreads):
        left //= spread.window.stride
        residue, number = _digit(writer, number, spread.window.stride, left == 1)
        residues.append(residue)
    residues.reverse()
    return residues, [spread.phase(writer, residue) for spread, residue in zip(spreads, residues, strict=True)]


def _pixels(
    writer: KernelWriter,
    frame: Frame,
    problem: Transposed,
    tile: ConvTile,
    row: str,
    residues: list[str],
    phases: list[Phase],
) -> _Pixels:
    slide, rows, spreads = problem.slide, problem.rows, problem.spreads
    masks: list[str] = []
    if not (isinstance(rows, int) and rows % tile.m == 0):
        masks.append(f"({row} < {render(rows)})")
    image = row
    places: list[str] = []
    for spread in reversed(spreads):
        if spread.positions == 1:
            places.append(f"({row} * 0)")
            continue
        places.append(writer.let(f"{image} % {render(spread.positions)}", "place"))
        image = writer.let(f"{image} // {render(spread.positions)}", "rest")
    number = image
    starts: list[str] = []
    texts = [render(slide.x.offset), scaled(image, slide.image_stride)]
    for spread, place, residue, phase in zip(spreads, reversed(places), residues, phases, strict=True):
        window = spread.window
        position = writer.let(total([scaled(place, window.stride), residue]), "out")
        if not spread.whole:
            masks.append(f"({position} < {render(window.out)})")
        number = f"({number}) * {render(window.out)} + {position}"
        near = f"{place}.to(tl.int32)" if frame.wide and slide.small else place
        starts.append(writer.let(total([near, phase.ahead]), "start"))
        texts.append(scaled(starts[-1], window.step))
    mask = writer.let(f"({' & '.join(masks)})[:, None]", "rows") if masks else None
    return _Pixels(writer.let(total(texts), "base"), starts, writer.let(number, "pixel"), mask)


def _step(
    writer: KernelWriter,
    frame: Frame,
    problem: Transposed,
    tile: ConvTile,
    pixels: _Pixels,
    phases: list[Phase],
    w_base: str,
    columns: str | None,
    sums: str,
) -> None:
    """Writes a step of K: one tap of the phase, and neighbouring channels."""
    slide = problem.slide
    depth_tiles = -(-problem.depth // tile.k)
    tap, start = ("step", "0") if depth_tiles == 1 else ("0", "step")
    if depth_tiles > 1 and any(phase.count != "1" for phase in phases):
        tap, start = writer.let(f"step // {depth_tiles}", "tap"), writer.let(f"step % {depth_tiles}", "start")
    channel = writer.let(f"{scaled(start, tile.k)} + tl.arange(0, {tile.k})", "channel")
    inside = None if problem.depth % tile.k == 0 else writer.let(f"{channel} < {problem.depth}", "inside")
    masks = [] if pixels.mask is None else [pixels.mask]
    shifts: list[str] = []
    taps: list[str] = []
    below = slide.taps
    numbers = _tap_numbers(writer, tap, phases)
    for spread, phase, number, first in zip(problem.spreads, phases, numbers, pixels.starts, strict=True):
        window = spread.window
        below //= window.kernel
        back = scaled(number, spread.back)
        if not spread.apart:
            position = first if back == "0" else writer.let(f"{first} - {back}", "position")
            there = writer.let(f"({position} >= 0) & ({position} < {render(window.size)})", "there")
            masks.append(f"{there}[:, None]")
        shifts.append(scaled(number, expression("mul", window.step, spread.back)))
        taken = total([phase.first, scaled(number, spread.every)])
        taps.append(scaled(taken if taken.isdecimal() else writer.let(taken, "taken"), below))
    shift = total(shifts)
    base = pixels.base if shift == "0" else writer.let(f"{pixels.base} - ({shift})", "base")
    x_at = f"p{slide.x.pointer} + ({base}[:, None] + ({scaled(channel, slide.channel_stride)})[None, :])"
    taken = writer.let(total(taps), "taken")
    along = total([scaled(taken, problem.tap_stride), scaled(channel, problem.depth_stride)])
    x_masks = [*masks, *([] if inside is None else [f"{inside}[None, :]"])]
    w_masks = [*([] if columns is None else [columns]), *([] if inside is None else [f"{inside}[:, None]"])]
    x = writer.let(f"tl.load({x_at}{_guard(x_masks)})", "x")
    w = writer.let(f"tl.load({w_base} + ({along})[:, None]{_guard(w_masks)})", "w")
    writer.line(f"{sums} = tl.dot({x}, {w}, {sums}{frame.precision(slide.x.element)})")


def _tap_numbers(writer: KernelWriter, tap: str, phases: list[Phase]) -> list[str]:
    """Returns the number of a tap along each window, of its flat number within the phase."""
    numbers: list[str] = []
    for place, phase in reversed(list(enumerate(phases))):
        if phase.count == "1":
            numbers.append("0")
        elif all(each.count == "1" for each in phases[:place]):
            numbers.append(tap)
        else:
            # A phase without a tap has no step, but what is computed ahead of the loop may not divide by zero.
            count = phase.count if phase.count.isdecimal() else f"tl.maximum({phase.count}, 1)"
            numbers.append(writer.let(f"{tap} % {count}", "number"))
            tap = writer.let(f"{tap} // {count}", "rest")
    return numbers[::-1]


def _guard(masks: list[str]) -> str:
    return f", mask={' & '.join(masks)}, other=0" if masks else ""
