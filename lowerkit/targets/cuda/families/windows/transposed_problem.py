"""A transposed convolution, read for the families that multiply it out.

The result is gathered: position ``o`` takes tap ``k`` of position ``i`` where ``o + low = i * stride + k * dilation``.
Positions that are a multiple of the stride apart take the same taps. They are a **phase**, and a phase is a
convolution with a stride of one, whose taps go backwards over the input::

    shared    what stride and dilation have in common; phases that it does not divide take no tap and are zero
    every     from one tap of a phase to its next: stride / shared
    back      from the position of the input of a tap to that of the next: dilation / shared
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd, prod
from typing import Any

from lowerkit.mlir import ir
from lowerkit.targets.cuda.families.windows.conv_layouts import INPUTS_TAPS_CHANNELS, INPUTS_TAPS_OUTPUTS
from lowerkit.targets.cuda.families.windows.conv_problem import float_element
from lowerkit.targets.cuda.families.windows.sliding import Slide, Window, read_slide
from lowerkit.targets.cuda.triton.epilogue import Epilogue, read_epilogue
from lowerkit.targets.cuda.triton.tensors import Frame, Tensor
from lowerkit.targets.cuda.triton.writer import KernelWriter
from lowerkit.targets.packing import Packing
from lowerkit.targets.plan import KernelExpr, Refusal, expression, product
from lowerkit.targets.region_view import RegionView


@dataclass(frozen=True)
class Phase:
    """The taps of one phase along one window, as texts.

    Attributes:
        first: its first tap.
        count: how many there are; a number where that is one for all phases.
        ahead: from the number of a position within the phase to the position of the input of the first tap.
    """

    first: str
    count: str
    ahead: str


@dataclass(frozen=True)
class Spread:
    """One spatial dim of a transposed convolution; ``window`` has the extents and what the op says."""

    window: Window

    @property
    def shared(self) -> int:
        """See the module."""
        return gcd(self.window.stride, self.window.dilation)

    @property
    def every(self) -> int:
        """See the module."""
        return self.window.stride // self.shared

    @property
    def back(self) -> int:
        """See the module."""
        return self.window.dilation // self.shared

    @property
    def positions(self) -> KernelExpr:
        """Positions of a phase; the last ones of some phases are not there."""
        return expression("ceildiv", self.window.out, self.window.stride)

    @property
    def whole(self) -> bool:
        """Whether all phases have as many positions."""
        return isinstance(self.window.out, int) and self.window.out % self.window.stride == 0

    @property
    def apart(self) -> bool:
        """Whether each position of the input makes positions of the result of its own, one after the other."""
        window = self.window
        alone = window.kernel == window.stride and window.dilation == 1 and window.low == 0
        return alone and self.whole and self.positions == window.size

    @property
    def most_taps(self) -> int:
        """Taps of the phase that has most."""
        return -(-self.window.kernel // self.every)

    def phase(self, writer: KernelWriter, residue: str) -> Phase:
        """Writes the taps of the phase of the positions ``stride * n + residue``; a text of 32 bits or a number."""
        window = self.window
        if self.apart:
            return Phase(residue, "1", "0")
        if window.stride == 1:
            return Phase("0", str(window.kernel), str(window.low))
        at = writer.let(f"{residue} + {window.low}", "at")
        inverse = pow(self.back, -1, self.every) if self.every > 1 else 0
        first = "0"
        if self.every > 1:
            scaled = at if self.shared == 1 else f"({at} // {self.shared})"
            first = writer.let(f"{scaled if inverse == 1 else f'({scaled} * {inverse})'} % {self.every}", "first")
        count = str(window.kernel // self.every)
        if window.kernel % self.every:
            count = writer.let(f"({window.kernel + self.every - 1} - {first}) // {self.every}", "count")
        if self.shared > 1:
            count = writer.let(f"tl.where({at} % {self.shared} == 0, {count}, 0)", "count")
        # What is divided is a multiple of the stride wherever the phase has a tap.
        start = at if first == "0" else f"({at} - {first} * {window.dilation})"
        return Phase(first, count, writer.let(f"{start} // {window.stride}", "ahead"))


@dataclass(frozen=True)
class Transposed:
    """A transposed convolution.

    Attributes:
        slide: input, result and windows as the op has them.
        spreads: the windows.
        groups: of channels.
        depth, outputs: input and output channels of a group.
        filter: the filter.
        group_stride, output_stride, tap_stride, depth_stride: elements of the filter from one group, output channel
            of a group, tap (flat over all windows) and input channel of a group to the next.
        packings: how the filter is to lie.
    """

    slide: Slide
    groups: int
    depth: int
    outputs: int
    filter: Tensor
    group_stride: int
    output_stride: int
    tap_stride: int
    depth_stride: int
    packings: dict[int, Packing]

    @property
    def spreads(self) -> list[Spread]:
        """The windows."""
        return [Spread(window) for window in self.slide.windows]

    @property
    def phases(self) -> int:
        """Phases over all windows."""
        return prod(window.stride for window in self.slide.windows)

    @property
    def most_taps(self) -> int:
        """Taps of the phase that has most."""
        return prod(spread.most_taps for spread in self.spreads)

    @property
    def rows(self) -> KernelExpr:
        """Pixels of a phase, those that are not there included."""
        return product([self.slide.images, *(spread.positions for spread in self.spreads)])

    @property
    def flops(self) -> KernelExpr:
        """Multiplications and additions."""
        inputs = product([self.slide.images, *(window.size for window in self.slide.windows)])
        return product([inputs, self.slide.taps, self.depth, self.slide.channels, 2])


def read_transposed(region: RegionView, frame: Frame, *, depthwise: bool) -> tuple[Transposed, Epilogue] | Refusal:
    """Reads the anchor of a region and what stands behind it; ``depthwise`` says which convolutions are wanted."""
    view = region.anchor
    if view is None or view.operation.name != "lk.conv_transpose":
        return Refusal("the anchor is not lk.conv_transpose")
    anchor = view.operation
    parameters: dict[str, Any] = view.parameters()  # type: ignore[attr-defined]
    element = float_element(anchor, parameters)
    if isinstance(element, Refusal):
        return element
    shape = ir.RankedTensorType(anchor.operands[1].type)
    if not shape.has_static_shape:
        return Refusal("a filter of open extents")
    inputs, outputs, *kernel = (int(size) for size in shape.shape)
    groups = int(parameters["groups"])
    depth = inputs // groups
    if (depth == 1 and groups > 1) != depthwise:
        return Refusal("channels are summed" if depthwise else "no channels are summed")
    slide = read_slide(frame, anchor, parameters, kernel)
    if isinstance(slide, Refusal):
        return slide
    taps = frame.source(anchor.operands[1])
    if not isinstance(taps, Tensor) or not taps.contiguous or taps.offset != 0:
        return Refusal("the filter is computed inside the region")
    epilogue = read_epilogue(region, frame, anchor)
    if isinstance(epilogue, Refusal):
        return epilogue
    strides = depth * outputs * slide.taps, slide.taps, 1, outputs * slide.taps
    packings: dict[int, Packing] = {}
    alone = taps.pointer != slide.x.pointer and taps.pointer not in epilogue.read_operands()
    whole = frame.buffers[taps.pointer].sizes == taps.sizes
    if region.operands[taps.pointer].is_weight and alone and whole:
        if depthwise:
            packings[taps.pointer] = INPUTS_TAPS_OUTPUTS
            strides = outputs, 1, groups * outputs, 0
        else:
            packings[taps.pointer] = Packing.of(INPUTS_TAPS_CHANNELS, groups=groups)
            strides = outputs * slide.taps * depth, slide.taps * depth, depth, 1
    return Transposed(slide, groups, depth, outputs, taps, *strides, packings), epilogue
