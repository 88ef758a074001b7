"""A convolution, read for the families that multiply it out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lowerkit.mlir import ir
from lowerkit.targets.cuda.families.windows.conv_layouts import TAPS_CHANNELS, TAPS_OUTPUTS
from lowerkit.targets.cuda.families.windows.sliding import Slide, read_slide
from lowerkit.targets.cuda.triton.epilogue import Epilogue, read_epilogue
from lowerkit.targets.cuda.triton.tensors import Frame, Tensor
from lowerkit.targets.packing import Packing
from lowerkit.targets.plan import KernelExpr, Refusal, product
from lowerkit.targets.region_view import RegionView

_FLOATS = ("f32", "f16", "bf16")


@dataclass(frozen=True)
class Conv:
    """A convolution.

    Attributes:
        slide: input and windows.
        groups: of channels.
        depth: input channels of a group.
        filter: the filter.
        output_stride, tap_stride, depth_stride: elements of the filter from one output channel, tap (flat over all
            windows) and input channel to the next.
        packings: how the filter is to lie.
        sums, result: the types that products are summed in and that the op gives.
        padding_value: what lies around the input.
        unsigned: whether bytes of the input have no sign.
    """

    slide: Slide
    groups: int
    depth: int
    filter: Tensor
    output_stride: int
    tap_stride: int
    depth_stride: int
    packings: dict[int, Packing]
    sums: str
    result: str
    padding_value: int = 0
    unsigned: bool = False

    @property
    def around(self) -> int:
        """What lies around the input, as its elements are stored."""
        return self.padding_value - 256 if self.padding_value > 127 else self.padding_value

    @property
    def outputs(self) -> int:
        """Output channels of a group."""
        return self.slide.channels // self.groups

    @property
    def rows(self) -> KernelExpr:
        """Pixels of the result."""
        return product(self.slide.pixel_sizes)

    @property
    def k(self) -> int:
        """Products of an element of the result."""
        return self.slide.taps * self.depth

    @property
    def flops(self) -> KernelExpr:
        """Multiplications and additions."""
        return product([self.rows, self.slide.channels, self.k, 2])


def read_conv(region: RegionView, frame: Frame, *, depthwise: bool) -> tuple[Conv, Epilogue] | Refusal:
    """Reads the anchor of a region and what stands behind it; ``depthwise`` says which convolutions are wanted."""
    view = region.anchor
    if view is None or view.operation.name not in ("lk.conv", "lk.integer_conv"):
        return Refusal("the anchor is not lk.conv or lk.integer_conv")
    anchor = view.operation
    parameters: dict[str, Any] = view.parameters()  # type: ignore[attr-defined]
    types = _types(anchor, parameters)
    if isinstance(types, Refusal):
        return types
    shape = ir.RankedTensorType(anchor.operands[1].type)
    if not shape.has_static_shape:
        return Refusal("a filter of open extents")
    depth = int(shape.shape[1])
    if (depth == 1 and parameters["groups"] > 1) != depthwise:
        return Refusal("channels are summed" if depthwise else "no channels are summed")
    slide = read_slide(frame, anchor, parameters, list(shape.shape)[2:])
    if isinstance(slide, Refusal):
        return slide
    taps = frame.source(anchor.operands[1])
    if not isinstance(taps, Tensor) or not taps.contiguous or taps.offset != 0:
        return Refusal("the filter is computed inside the region")
    epilogue = read_epilogue(region, frame, anchor)
    if isinstance(epilogue, Refusal):
        return epilogue
    strides = depth * slide.taps, 1, slide.taps
    packings: dict[int, Packing] = {}
    alone = taps.pointer != slide.x.pointer and taps.pointer not in epilogue.read_operands()
    whole = frame.buffers[taps.pointer].sizes == taps.sizes
    if region.operands[taps.pointer].is_weight and alone and whole and slide.taps > 1:
        packings[taps.pointer] = TAPS_OUTPUTS if depthwise else TAPS_CHANNELS
        strides = (1, slide.channels, 0) if depthwise else (depth * slide.taps, depth, 1)
    conv = Conv(
        slide, parameters["groups"], depth, taps, *strides, packings, *types,
        parameters.get("padding_value", 0), parameters.get("unsigned", False),
    )  # fmt: skip
    return conv, epilogue


def _types(anchor: ir.Operation, parameters: dict[str, Any]) -> tuple[str, str] | Refusal:
    if anchor.name == "lk.integer_conv":
        return "i32", "i32"
    element = float_element(anchor, parameters)
    return element if isinstance(element, Refusal) else ("f32", element)


def float_element(anchor: ir.Operation, parameters: dict[str, Any]) -> str | Refusal:
    """Returns the element type of operands and result of a convolution whose sums are f32."""
    elements = {str(ir.RankedTensorType(value.type).element_type) for value in (*anchor.operands, *anchor.results)}
    if len(elements) != 1 or not elements <= set(_FLOATS):
        return Refusal(f"elements of {', '.join(sorted(elements))}: one of {', '.join(_FLOATS)} is taken")
    if str(parameters["accumulate"]) != "f32":
        return Refusal(f"sums in {parameters['accumulate']}")
    return elements.pop()
