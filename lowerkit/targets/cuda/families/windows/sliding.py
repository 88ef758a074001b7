"""Windows that slide over an image: convolutions and pools read, and the coordinates that their kernels need.

Vocabulary
    window     one spatial dim: where it starts, how far its taps lie apart, how large input and result are
    pixel      an element of the result, channels left out: image and one position for each window
    start      the position in the input of a pixel's first tap; negative within the padding
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lowerkit.mlir import ir
from lowerkit.targets.cuda.triton.tensors import AnchorResult, Frame, Tensor, row_major
from lowerkit.targets.cuda.triton.writer import KernelWriter, render
from lowerkit.targets.plan import KernelExpr, Refusal, expression, product

_FITS = 1 << 31


@dataclass(frozen=True)
class Window:
    """One spatial dim.

    Attributes:
        size, out: positions of the input and of the result.
        kernel: taps.
        stride: from one position of the result to the next.
        low: padding in front.
        dilation: from one tap to the next.
        step: elements from one position of the input to the next.
    """

    size: KernelExpr
    out: KernelExpr
    kernel: int
    stride: int
    low: int
    dilation: int
    step: KernelExpr

    @property
    def inside(self) -> bool:
        """Whether no tap of any pixel leaves the input."""
        if self.kernel == 1 and self.stride == 1 and self.low == 0:
            return self.size == self.out
        if not isinstance(self.size, int) or not isinstance(self.out, int):
            return False
        return self.low == 0 and (self.out - 1) * self.stride + (self.kernel - 1) * self.dilation < self.size

    def exists(self, writer: KernelWriter, position: str) -> str | None:
        """Returns the text of whether a position is one of the input; None where all are."""
        if self.inside:
            return None
        return writer.let(f"({position} >= 0) & ({position} < {render(self.size)})", "there")


@dataclass(frozen=True)
class Slide:
    """Windows over an input, with its channels beside them.

    Attributes:
        x: the input.
        image_stride, channel_stride: of the input.
        images, channels: extents of the result.
        windows: in order.
        channels_last: whether the channels are the last dim of the result.
    """

    x: Tensor
    image_stride: KernelExpr
    channel_stride: KernelExpr
    images: KernelExpr
    channels: int
    windows: tuple[Window, ...]
    channels_last: bool

    @property
    def pixel_sizes(self) -> tuple[KernelExpr, ...]:
        """Images, then positions of the result along each window."""
        return (self.images, *(window.out for window in self.windows))

    @property
    def pixel_dims(self) -> tuple[int, ...]:
        """The dims of the result that a pixel is."""
        return (0, *range(1, 1 + len(self.windows))) if self.channels_last else (0, *range(2, 2 + len(self.windows)))

    @property
    def channel_dim(self) -> int:
        """The dim of the result that the channels are."""
        return 1 + len(self.windows) if self.channels_last else 1

    @property
    def taps(self) -> int:
        """Taps of a pixel."""
        count = 1
        for window in self.windows:
            count *= window.kernel
        return count

    @property
    def is_copy(self) -> bool:
        """Whether pixels of input and result are the same ones in the same order."""
        kept = all(window.kernel == window.stride == 1 and window.inside for window in self.windows)
        sizes = (self.images, *(window.size for window in self.windows))
        steps = (self.image_stride, *(window.step for window in self.windows))
        return kept and all(
            step == expression("mul", stride, steps[-1]) for step, stride in zip(steps, row_major(sizes), strict=True)
        )

    @property
    def small(self) -> bool:
        """Whether offsets within an image fit into 32 bits."""
        sizes = [*self.x.sizes[1:], *(window.out for window in self.windows)]
        count = product(sizes)
        return isinstance(count, int) and count < _FITS


def read_slide(
    frame: Frame, anchor: ir.Operation, parameters: dict[str, Any], kernel: Sequence[int]
) -> Slide | Refusal:
    """Reads the windows of a convolution or pool; its input is operand 0, its channels are static."""
    source = frame.source(anchor.operands[0])
    result = frame.source(anchor.results[0], anchor)
    if not isinstance(source, Tensor):
        return Refusal("the input is computed inside the region")
    assert isinstance(result, AnchorResult), "the anchor's result is what was asked for"
    sizes, rank = result.sizes, len(source.sizes)
    if len(sizes) != rank:
        return Refusal("open extents of the anchor's result are not known")
    last = bool(parameters["channels_last"])
    channel = rank - 1 if last else 1
    spatial = range(1, rank - 1) if last else range(2, rank)
    if not isinstance(sizes[channel], int) or not isinstance(source.sizes[channel], int):
        return Refusal("an open number of channels")
    if 0 in sizes or 0 in source.sizes or 0 in kernel:
        return Refusal("nothing to compute")
    windows = tuple(
        Window(source.sizes[axis], sizes[axis], taps, stride, low, dilation, source.strides[axis])
        for axis, taps, stride, low, dilation in zip(
            spatial, kernel, parameters["strides"], parameters["padding"][::2], parameters["dilation"], strict=True
        )
    )
    return Slide(source, source.strides[0], source.strides[channel], sizes[0], sizes[channel], windows, last)


def split_pixel(writer: KernelWriter, slide: Slide, pixel: str) -> tuple[str, list[str]]:
    """Returns the image of a pixel, of its flat number, and its position along each window."""
    positions: list[str] = []
    for window in reversed(slide.windows):
        if window.out == 1:
            positions.append("0")
            continue
        positions.append(writer.let(f"{pixel} % {render(window.out)}", "out"))
        pixel = writer.let(f"{pixel} // {render(window.out)}", "rest")
    return pixel, positions[::-1]


def starts_of(writer: KernelWriter, slide: Slide, positions: Sequence[str], narrow: bool) -> list[str]:
    """Returns the position of the first tap along each window; in 32 bits where ``narrow``."""
    starts: list[str] = []
    for window, position in zip(slide.windows, positions, strict=True):
        text = position if position.isdecimal() or not narrow else f"{position}.to(tl.int32)"
        text = text if window.stride == 1 else f"{text} * {window.stride}"
        starts.append(writer.let(text if window.low == 0 else f"{text} - {window.low}", "start"))
    return starts


def split_tap(writer: KernelWriter, slide: Slide, tap: str) -> list[str]:
    """Returns the number of a tap along each window, of its flat number."""
    numbers: list[str] = []
    for window in reversed(slide.windows):
        first = all(each.kernel == 1 for each in slide.windows[: len(slide.windows) - len(numbers) - 1])
        if window.kernel == 1:
            numbers.append("0")
            continue
        numbers.append(tap if first else writer.let(f"{tap} % {window.kernel}", "tap"))
        tap = tap if first else writer.let(f"{tap} // {window.kernel}", "rest")
    return numbers[::-1]


def scaled(text: str, factor: KernelExpr) -> str:
    """Returns a text times a size."""
    if text == "0" or factor == 0:
        return "0"
    if isinstance(factor, int) and text.isdecimal():
        return str(int(text) * factor)
    return text if factor == 1 else f"{text} * {render(factor)}"


def total(texts: Sequence[str]) -> str:
    """Returns the sum of texts."""
    return " + ".join(text for text in texts if text != "0") or "0"
