"""Convolutions on tensor cores: see :mod:`~lowerkit.targets.cuda.families.windows.conv_kernel`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from lowerkit.runtimes.cuda.image import Product
from lowerkit.targets.cuda.families.windows.conv_kernel import (
    SUM_BLOCK,
    column_tiles,
    row_tiles,
    write_product,
    write_sum,
)
from lowerkit.targets.cuda.families.windows.conv_problem import Conv, read_conv
from lowerkit.targets.cuda.families.windows.conv_tiles import ConvTile, asked_convolution, choose_conv_tile
from lowerkit.targets.cuda.family import KernelFamily
from lowerkit.targets.cuda.model.measured_tiles import asked_text
from lowerkit.targets.cuda.planned import PlannedLaunch, PlannedRegion, planned_region
from lowerkit.targets.cuda.triton.epilogue import Epilogue
from lowerkit.targets.cuda.triton.tensors import Frame, Tensor
from lowerkit.targets.plan import KernelExpr, Refusal, expression, product
from lowerkit.targets.region_view import RegionView


class ConvFamily(KernelFamily):
    """``lk.conv`` of floats and ``lk.integer_conv``, channels last or second, in groups or not.

    Batch and images may be open. Bytes: the input about once, since the columns of a row of tiles run beside each
    other, the filter and the result once; with K in parts also twice four bytes for each sum of a part.
    """

    name: ClassVar[str] = "conv"

    def plan(self, region: RegionView, level: str) -> PlannedRegion | Refusal:
        """See :meth:`KernelFamily.plan`."""
        frame = Frame(region)
        read = read_conv(region, frame, depthwise=False)
        if isinstance(read, Refusal):
            return read
        conv, epilogue = read
        asked = asked_convolution(conv, _whole_tiles(conv, epilogue))
        planned = plan_conv(self.name, frame, conv, epilogue, choose_conv_tile(asked, level))
        return planned.asking(asked_text(asked))


def plan_conv(family: str, frame: Frame, conv: Conv, epilogue: Epilogue, tile: ConvTile) -> PlannedRegion:
    """Returns the launches of a convolution with a tile."""
    slide = conv.slide
    way = "within taps" if tile.whole_taps else "flat"
    note = f"tiles of {tile.m} x {tile.n} x {tile.k} {way}, {tile.warps} warps, {tile.stages} stages"
    blocks = product([row_tiles(conv, tile), column_tiles(conv, tile), tile.splits])
    buffers = list(range(len(frame.buffers)))
    operands = {slide.x.pointer, conv.filter.pointer}
    others = epilogue.read_operands()
    written = _bytes(frame.results)
    computes = Product(
        conv.rows, conv.outputs, conv.k, conv.groups, slide.x.element, (tile.m, tile.n, tile.k), tile.stages
    )
    first = write_product(family, frame, conv, tile, epilogue)
    if tile.splits == 1:
        read = _bytes(frame.buffers[number] for number in sorted(operands | others))
        launch = PlannedLaunch(first, buffers, blocks, conv.flops, read, written, computes=computes)
        return planned_region(frame, [launch], note=note, packings=conv.packings)
    elements = product([conv.rows, slide.channels])
    parts = product([elements, 4 * tile.splits])
    read = _bytes(frame.buffers[number] for number in sorted(operands))
    launches = [
        PlannedLaunch(first, [*buffers, len(buffers)], blocks, conv.flops, read, parts, computes=computes),
        PlannedLaunch(
            write_sum(family, frame, conv, tile, epilogue),
            [*buffers, len(buffers)],
            expression("ceildiv", elements, SUM_BLOCK),
            0,
            expression("add", parts, _bytes(frame.buffers[number] for number in sorted(others))),
            written,
        ),
    ]
    return planned_region(frame, launches, [parts], note=f"{note}, K in {tile.splits} parts", packings=conv.packings)


def _whole_tiles(conv: Conv, epilogue: Epilogue) -> int:
    """How many operands of the epilogue have a number for each pixel and channel."""
    elements = product([*conv.slide.pixel_sizes, conv.slide.channels])
    return sum(each.tensor is not None and product(each.tensor.sizes) == elements for each in epilogue.inputs)


def _bytes(tensors: Iterable[Tensor]) -> KernelExpr:
    total: KernelExpr = 0
    for tensor in tensors:
        total = expression("add", total, tensor.bytes)
    return total
