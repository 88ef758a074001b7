"""A channels-last convolution with a constant filter, read and checked for the convolution families.

An ``lk.integer_conv`` is read as one over a quarter of the channels: an element stands for the bytes of four channels
that follow each other, and one multiplication of two elements sums four products (``gemm/arithmetic.py``); one of bf16
may be brought to pairs. Depthwise convolutions sum nothing over channels: theirs are single numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lowerkit.mlir import ir
from lowerkit.targets.cpu.conv.window import Window
from lowerkit.targets.cpu.gemm.arithmetic import BF16_PAIRS, BYTE_QUADS, SINGLE_BYTES, Arithmetic, of_numbers
from lowerkit.targets.cpu.text.kernel_frame import KernelFrame
from lowerkit.targets.cpu.text.kernel_text import Buffer, Index
from lowerkit.targets.cpu.text.region_values import Located, source_of
from lowerkit.targets.cpu.text.text_builder import Value
from lowerkit.targets.plan import KernelExpr, Refusal
from lowerkit.targets.region_view import RegionView

__all__ = ["ConvProblem", "in_pairs", "read_conv"]

_FLOATS = ("f32", "f64", "f16", "bf16")


@dataclass(frozen=True)
class ConvProblem:
    """A channels-last convolution, checked and brought to three spatial dimensions.

    Attributes:
        images, images_extent: batch size, as an index and as an expression for the runtime.
        depth, height, width: windows.
        channels: input channels, in elements; groups: channel groups; outputs: output channels.
        pixel: from one pixel to the next of the input, in what it lies in.
        input: the input, in elements or in single numbers; filter: the filter, a weight.
        filter_operand: number of the filter among the operands.
        filter_rank: dimensions of the filter.
        arithmetic: how elements are multiplied.
        padding_value: what positions outside the input hold, an element.
    """

    images: Index
    images_extent: KernelExpr
    depth: Window
    height: Window
    width: Window
    channels: int
    groups: int
    outputs: int
    pixel: int
    input: Buffer
    filter: Buffer
    filter_operand: int
    filter_rank: int
    arithmetic: Arithmetic
    padding_value: int = 0

    @property
    def accumulator(self) -> str:
        """Type of the sums."""
        return self.arithmetic.accumulator

    @property
    def group_channels(self) -> int:
        """Input channels of a group."""
        return self.channels // self.groups

    @property
    def group_outputs(self) -> int:
        """Output channels of a group."""
        return self.outputs // self.groups

    @property
    def is_product(self) -> bool:
        """True for a kernel of one with stride one and no padding: a matrix product over the pixels."""
        return self.groups == 1 and all(
            w.kernel == 1 and w.stride == 1 and w.inside for w in (self.depth, self.height, self.width)
        )


def read_conv(region: RegionView, frame: KernelFrame, *, single_bytes: bool = False) -> ConvProblem | Refusal:
    """Checks the anchor of a region; refuses what the convolution families do not take.

    Args:
        region: of the kernel.
        frame: of the kernel.
        single_bytes: an ``lk.integer_conv`` is read byte by byte, not in fours.
    """
    anchor_view = region.anchor
    if anchor_view is None or anchor_view.operation.name not in ("lk.conv", "lk.integer_conv"):
        return Refusal("the anchor is not lk.conv or lk.integer_conv")
    anchor = anchor_view.operation
    parameters = anchor_view.parameters()  # type: ignore[attr-defined]
    result = ir.RankedTensorType(anchor.results[0].type)
    arithmetic = _arithmetic(anchor, parameters, SINGLE_BYTES if single_bytes else BYTE_QUADS)
    if isinstance(arithmetic, Refusal):
        return arithmetic
    if not parameters["channels_last"]:
        return Refusal("channels are not last")
    data, taps = (source_of(value, frame) for value in anchor.operands)
    if not isinstance(data, Located) or not isinstance(taps, Located):
        return Refusal("an operand of the convolution is computed inside the region")
    if not region.operands[taps.operand].is_weight or list(frame.sizes[taps.operand]) != list(taps.sizes):
        return Refusal("the filter is not a weight")
    if any(isinstance(size, Value) for size in data.sizes[1:]):
        return Refusal("dynamic image sizes")
    outputs, _, *kernel = (int(size) for size in ir.RankedTensorType(anchor.operands[1].type).shape)
    _, *spatial, channels = [size if isinstance(size, int) else 0 for size in data.sizes]
    out = [int(size) for size in list(result.shape)[1:-1]]
    if 0 in (outputs, channels, *kernel, *spatial, *out):
        return Refusal("an empty convolution")
    per_element = arithmetic.numbers
    if channels // parameters["groups"] % per_element:
        return Refusal("the channels of a group are no multiple of four bytes")
    padding = parameters["padding"]
    windows = [
        Window(size, o, k, s, low, d)
        for size, o, k, s, low, d in zip(
            spatial, out, kernel, parameters["strides"], padding[0::2], parameters["dilation"], strict=True
        )
    ]
    windows = [Window(1, 1, 1, 1, 0, 1)] * (3 - len(windows)) + windows
    images = data.sizes[0]
    extent = images if isinstance(images, int) else frame.extents[data.operand][0]
    around = parameters.get("padding_value", 0)
    if arithmetic is BYTE_QUADS:
        around = four_bytes(around)
    return ConvProblem(
        images, extent, windows[0], windows[1], windows[2], channels // per_element, parameters["groups"], outputs,
        channels // per_element, Buffer(data.buffer.pointer, arithmetic.stored),
        Buffer(taps.buffer.pointer, arithmetic.stored), taps.operand, len(kernel) + 2, arithmetic, around,
    )  # fmt: skip


def in_pairs(problem: ConvProblem) -> ConvProblem:
    """Returns the same convolution of bf16, multiplied pair by pair of channels; one whose groups have an odd number of
    channels as it was, but for a single group: its pixels are copied with a zero behind them."""
    input_, pixel = problem.input, problem.pixel
    if problem.group_channels % 2 == 0:
        input_, pixel = Buffer(input_.pointer, BF16_PAIRS.stored), pixel // 2
    elif problem.groups > 1:
        return problem
    filter_ = Buffer(problem.filter.pointer, BF16_PAIRS.stored)
    channels = problem.groups * -(-problem.group_channels // 2)
    return replace(problem, channels=channels, pixel=pixel, input=input_, filter=filter_, arithmetic=BF16_PAIRS)


def _arithmetic(anchor: ir.Operation, parameters: dict[str, Any], of_bytes: Arithmetic) -> Arithmetic | Refusal:
    """How the kernel multiplies, by the types of the op; ``of_bytes`` where these are bytes."""
    if anchor.name == "lk.integer_conv":
        return of_bytes if parameters["unsigned"] else Refusal("the input is signed: byte products take unsigned ones")
    values = (*anchor.operands, *anchor.results)
    element, *others = (str(ir.RankedTensorType(value.type).element_type) for value in values)
    sums = "f64" if element == "f64" else "f32"
    if element not in _FLOATS or others[0] != element or others[1] not in (element, sums):
        return Refusal(f"element type {element}: only floating point convolutions are taken")
    if str(parameters["accumulate"]) != sums:
        return Refusal(f"sums in {parameters['accumulate']}")
    return of_numbers(element)


def four_bytes(number: int) -> int:
    """Returns an i32 that holds the unsigned byte ``number`` four times."""
    pattern = number * 0x01010101
    return pattern - (1 << 32) if pattern >= 1 << 31 else pattern
