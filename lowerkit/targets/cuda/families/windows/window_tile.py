"""A tile of the result of a sliding window, for kernels that go through the taps one by one.

The tile has two dims, the contiguous one of the result second: channels of some pixels where channels are last, else
pixels of some planes. A thread has 16 bytes of neighbours, so that loads and stores are whole vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product as combinations

from lowerkit.targets.cuda.families.windows.sliding import Slide, scaled, split_pixel, split_tap, starts_of, total
from lowerkit.targets.cuda.triton.tensors import Axis, Frame, element_bytes
from lowerkit.targets.cuda.triton.writer import KernelWriter, render
from lowerkit.targets.plan import KernelExpr, expression, product

UNROLLED = 32
"""Taps up to which each has code of its own."""
_ENOUGH = 264
_OPEN = 1 << 20


@dataclass(frozen=True)
class WindowTile:
    """A tile in a kernel under construction.

    Attributes:
        slide: what it is a tile of.
        axes: see :meth:`~lowerkit.targets.cuda.triton.epilogue.Epilogue.write`.
        mask: which elements of the tile there are; None for all.
        channel: the channels of the result, as text that broadcasts to the tile.
        starts: the first position along each window, likewise.
        origin: the element of the input at the starts.
        shape: of the tile.
        blocks: of the grid.
        warps: of a block.
    """

    slide: Slide
    axes: list[Axis]
    mask: str | None
    channel: str
    starts: list[str]
    origin: str
    shape: tuple[int, int]
    blocks: KernelExpr
    warps: int

    @property
    def note(self) -> str:
        """The shape in words."""
        return f"tiles of {self.shape[0]} x {self.shape[1]}, {self.warps} warps"

    def for_taps(self, writer: KernelWriter, body: Callable[[str, Sequence[str], str, str | None], None]) -> None:
        """Writes ``body(flat number, number along each window, element of the input, mask)`` for each tap."""
        slide = self.slide
        if slide.taps > UNROLLED:
            with writer.block(f"for tap in range(0, {slide.taps}):"):
                self._tap(writer, "tap", split_tap(writer, slide, "tap"), body)
            return
        kernels = [range(window.kernel) for window in slide.windows]
        for flat, numbers in enumerate(combinations(*kernels)):
            self._tap(writer, str(flat), [str(number) for number in numbers], body)

    def _tap(
        self,
        writer: KernelWriter,
        flat: str,
        numbers: Sequence[str],
        body: Callable[[str, Sequence[str], str, str | None], None],
    ) -> None:
        masks = [] if self.mask is None else [self.mask]
        shifts: list[str] = []
        for window, start, number in zip(self.slide.windows, self.starts, numbers, strict=True):
            shift = scaled(number, window.dilation)
            there = window.exists(writer, start if shift == "0" else writer.let(f"{start} + {shift}", "position"))
            if there is not None:
                masks.append(there)
            shifts.append(scaled(number, expression("mul", window.step, window.dilation)))
        body(flat, numbers, total([self.origin, *shifts]), " & ".join(masks) or None)


def open_tile(writer: KernelWriter, frame: Frame, slide: Slide, divisor: int = 1) -> WindowTile:
    """Writes the coordinates of a tile.

    Args:
        writer: the kernel.
        frame: its buffers.
        slide: the window.
        divisor: output channels that share an input channel.
    """
    wide = ".to(tl.int64)" if frame.wide else ""
    pixels, channels = product(slide.pixel_sizes), slide.channels
    planes, plane = expression("mul", slide.images, channels), product(slide.pixel_sizes[1:])
    outer, inner = (pixels, channels) if slide.channels_last else (planes, plane)
    vector = 16 // element_bytes(slide.x.element)
    rows, columns, warps = _shape(outer, inner, vector)
    tiles = expression("ceildiv", inner, columns)
    pid = writer.let(f"tl.program_id(0){wide}", "pid")
    tile_row = pid if tiles == 1 else writer.let(f"{pid} // {render(tiles)}", "tile")
    tile_column = "0" if tiles == 1 else writer.let(f"{pid} % {render(tiles)}", "tile")
    row = writer.let(f"({tile_row} * {rows} + tl.arange(0, {rows}){wide})[:, None]", "row")
    column_wide = wide if not isinstance(inner, int) else ""
    column_start = tile_column if column_wide or not wide else f"{tile_column}.to(tl.int32)"
    column = writer.let(
        f"({'0' if tiles == 1 else column_start} * {columns} + tl.arange(0, {columns}){column_wide})[None, :]", "column"
    )
    inside = [
        None if isinstance(size, int) and size % by == 0 else writer.let(f"{text} < {render(size)}", "inside")
        for text, size, by in ((row, outer, rows), (column, inner, columns))
    ]
    masks = [mask for mask in inside if mask is not None]
    pixel_dims, pixel_sizes, channel = slide.pixel_dims, slide.pixel_sizes, slide.channel_dim
    if slide.channels_last:
        image, positions = split_pixel(writer, slide, row)
        channel_text = column
        axes = [Axis(row, pixel_dims, pixel_sizes, inside[0]), Axis(column, (channel,), (channels,), inside[1])]
    else:
        _, positions = split_pixel(writer, slide, column)
        image = writer.let(f"{row} // {channels}", "image")
        channel_text = writer.let(f"{row} % {channels}", "channel")
        axes = [
            Axis(row, (0, channel), (slide.images, channels), inside[0]),
            Axis(column, pixel_dims[1:], pixel_sizes[1:], inside[1]),
        ]
    starts = starts_of(writer, slide, positions, frame.wide and slide.small)
    texts = [render(slide.x.offset), scaled(image, slide.image_stride)]
    texts += [scaled(start, window.step) for start, window in zip(starts, slide.windows, strict=True)]
    source = channel_text if divisor == 1 else f"{channel_text} // {divisor}"
    origin = writer.let(f"{total(texts)} + {scaled(source, slide.channel_stride)}", "origin")
    blocks = expression("mul", expression("ceildiv", outer, rows), tiles)
    return WindowTile(
        slide, axes, " & ".join(masks) or None, channel_text, starts, origin, (rows, columns), blocks, warps
    )


def _shape(outer: KernelExpr, inner: KernelExpr, vector: int) -> tuple[int, int, int]:
    """Returns rows and columns of a tile and warps: few columns where more lie idle, small where blocks are few."""
    width = inner if isinstance(inner, int) else _OPEN
    height = outer if isinstance(outer, int) else _OPEN
    columns = min(
        (max(vector, 1 << power) for power in range(4, 8)),
        key=lambda size: (-(-width // size) * size * (1 + 1 / size), -size),
    )
    for warps in (4, 2, 1):
        rows = max(1, 32 * warps * vector // columns)
        if -(-height // rows) * -(-width // columns) >= _ENOUGH or warps == 1:
            return rows, columns, warps
    raise AssertionError("one warp is taken at last")
