"""The window of a channels-last convolution, brought to three spatial dimensions, and its padded input in scratch.

Vocabulary
    window: kernel, strides, padding and dilation along depth, height and width (missing dimensions have size 1).
    line: one row of output pixels along the width.
    padded lines: a copy of the input lines that a block of output lines reads, with zeros where the window leaves the
        input, so that the inner loops have no border cases.

The copy is made when padding exists, when pixels lie at a distance that evicts L1, when the input is widened (once), or
when pixels of an odd number of channels are brought to pairs. Along a dimension with a kernel of one only the positions
that the stride visits are copied. Bytes moved: the block's input lines once, for ``2 * Cout * kernel`` FLOPs per
element: under 2 % of the time.
"""

from __future__ import annotations

from dataclasses import dataclass

from lowerkit.targets.cpu.text.kernel_text import Buffer, Index, KernelText
from lowerkit.targets.cpu.text.text_builder import Value

__all__ = ["PaddedLines", "Window"]


@dataclass(frozen=True)
class Window:
    """One dimension of a convolution.

    Attributes:
        size: input positions.
        out: output positions.
        kernel: taps.
        stride: input positions from one output to the next.
        low: zeros before the input.
        dilation: input positions from one tap to the next.
    """

    size: int
    out: int
    kernel: int
    stride: int
    low: int
    dilation: int

    @property
    def inside(self) -> bool:
        """True when no tap of any output leaves the input."""
        return self.low == 0 and (self.out - 1) * self.stride + (self.kernel - 1) * self.dilation < self.size

    @property
    def copy_step(self) -> int:
        """Input positions between neighbours of the copy."""
        return self.stride if self.kernel == 1 else 1

    @property
    def copy_stride(self) -> int:
        """Positions of the copy from one output to the next."""
        return 1 if self.kernel == 1 else self.stride

    def copy_extent(self, outputs: Index, text: KernelText) -> Index:
        """Positions of the copy that ``outputs`` neighbouring outputs read."""
        taps = (self.kernel - 1) * self.dilation + 1
        return text.iadd(text.imul(text.isub(outputs, 1), self.copy_stride), taps)


@dataclass(frozen=True)
class PaddedLines:
    """Layout of the copy: [kernel planes, lines, pixels, channels].

    Attributes:
        depth, height, width: the window.
        channels: channels of a pixel of the input, in what it lies in.
        pitch: elements from one pixel of the copy to the next.
        lines: most lines of the copy.
        joins: numbers of the input that make one element of the copy, zeros where channels end within one.
        fill_value: the element around the input.
    """

    depth: Window
    height: Window
    width: Window
    channels: int
    pitch: int
    lines: int
    joins: int = 1
    fill_value: int = 0

    @property
    def pixels(self) -> int:
        """Pixels of a line of the copy."""
        window = self.width
        return (window.out - 1) * window.copy_stride + (window.kernel - 1) * window.dilation + 1

    @property
    def line(self) -> int:
        """Elements of a line."""
        return self.pixels * self.pitch

    @property
    def plane(self) -> int:
        """Elements of a plane."""
        return self.lines * self.line

    @property
    def elements(self) -> int:
        """Elements of the copy."""
        return self.depth.kernel * self.plane

    def fill(
        self,
        text: KernelText,
        image: Buffer,
        target: Buffer,
        out_plane: Index,
        first_line: Index,
        out_lines: Index,
        lanes: int,
    ) -> None:
        """Copies what output lines ``[first_line, first_line + out_lines)`` of plane ``out_plane`` read.

        Args:
            text: where the ops go.
            image: first element of the image, [planes, lines, pixels, channels].
            target: the copy, of the type that is multiplied.
            out_plane: output plane.
            first_line: first output line.
            out_lines: number of output lines.
            lanes: elements of a vector of the target's type.
        """
        depth, height, width = self.depth, self.height, self.width
        line_elements = width.size * self.channels
        count = height.copy_extent(out_lines, text)
        top = text.isub(text.imul(first_line, height.stride), height.low)
        with text.span(0, depth.kernel) as tap, text.span(0, count) as line:
            plane = text.isub(
                text.iadd(text.imul(out_plane, depth.stride), text.imul(tap.index, depth.dilation)), depth.low
            )
            source_line = text.iadd(top, text.imul(line.index, height.copy_step))
            there = text.part(target, text.iadd(text.imul(tap.index, self.plane), text.imul(line.index, self.line)))
            here = text.part(image, text.imul(text.iadd(text.imul(plane, height.size), source_line), line_elements))
            # One unsigned comparison covers both ends of a dimension.
            checks = [
                text.compare("ult", text.as_value(position), text.i64(window.size))
                for window, position in ((depth, plane), (height, source_line))
                if not window.inside
            ]
            if not checks:
                self._line(text, here, there, lanes)
            else:
                exists = checks[0] if len(checks) == 1 else text.binary("arith.andi", checks[0], checks[1])
                with text.when(exists):
                    self._line(text, here, there, lanes)
                with text.when(text.binary("arith.xori", exists, text.constant(1, "i1"))):
                    _fill(text, there, 0, self.line, lanes, self.fill_value)

    def _line(self, text: KernelText, here: Buffer, there: Buffer, lanes: int) -> None:
        """One line: zeros, the pixels inside, zeros."""
        width, channels = self.width, self.channels
        step = width.copy_step
        first = -(-width.low // step)
        end = max(first, min(self.pixels, -(-(width.size + width.low) // step)))
        _fill(text, there, 0, first * self.pitch, lanes, self.fill_value)
        _fill(text, there, end * self.pitch, (self.pixels - end) * self.pitch, lanes, self.fill_value)
        start = (first * step - width.low) * channels
        source, target = text.part(here, start), text.part(there, first * self.pitch)
        if self.joins > 1:
            self._join(text, source, Buffer(target.pointer, here.element), end - first, lanes)
            return

        def copy(at: Index, mask: Value | None, carried: list[Value]) -> list[Value]:
            value = text.read(from_, at, lanes, mask)
            text.write(text.widen(value, target.element), to, at, mask)
            return carried

        if step == 1 and self.pitch == channels:
            from_, to = source, target
            text.strip((end - first) * channels, lanes, copy, unroll=4)
            return
        with text.span(0, end - first) as pixel:
            from_ = text.part(source, text.imul(pixel.index, step * channels))
            to = text.part(target, text.imul(pixel.index, self.pitch))
            text.strip(channels, lanes, copy, unroll=4)

    def _join(self, text: KernelText, source: Buffer, target: Buffer, pixels: int, lanes: int) -> None:
        """Copies pixels whose channels end within an element: zeros fill it. Several pixels at once by a shuffle."""
        lanes *= self.joins
        whole = self.channels // lanes * lanes
        rest = self.channels - whole
        filled = -(-rest // self.joins) * self.joins
        done, at_once = 0, lanes // filled
        if not whole and at_once > 1 and self.width.copy_step == 1 and self.pitch * self.joins == filled:
            mask = text.mask(rest * at_once, lanes)
            order = [lanes if at % filled >= rest else at // filled * rest + at % filled for at in range(lanes)]
            done = pixels // at_once * at_once
            with text.span(0, done, at_once) as pixel:
                row = text.bitcast(text.read(source, text.imul(pixel.index, rest), lanes, mask), "i16")
                spread = text.bitcast(text.shuffle(row, text.like(0, row), order), source.element)
                beyond = None if at_once * filled == lanes else text.mask(at_once * filled, lanes)
                text.write(spread, target, text.imul(pixel.index, filled), beyond)
        with text.span(done, pixels) as pixel:
            from_ = text.part(source, text.imul(pixel.index, self.width.copy_step * self.channels))
            to = text.part(target, text.imul(pixel.index, self.pitch * self.joins))
            for at in range(0, whole, lanes):
                text.write(text.read(from_, at, lanes), to, at)
            if rest:
                text.write(text.read(from_, whole, lanes, text.mask(rest, lanes)), to, whole, text.mask(filled, lanes))


def _fill(text: KernelText, target: Buffer, start: int, count: int, lanes: int, value: int) -> None:
    def body(at: Index, mask: Value | None, carried: list[Value]) -> list[Value]:
        text.write(text.constant(value, target.element, lanes), target, text.iadd(at, start), mask)
        return carried

    if count > 0:
        text.strip(count, lanes, body, unroll=4)
