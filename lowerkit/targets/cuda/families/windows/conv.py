"""Convolutions on tensor cores: see :mod:`~lowerkit.targets.cuda.families.windows.conv_kernel`."""

from __future__ import annotations

from typing import ClassVar

from lowerkit.runtimes.cuda.image import Function, Launch
from lowerkit.targets.cuda.families.windows.conv_kernel import SUM_BLOCK, column_tiles, row_tiles, write_product, write_sum
from lowerkit.targets.cuda.families.windows.conv_problem import Conv, read_conv
from lowerkit.targets.cuda.families.windows.conv_tiles import choose_conv_tile
from lowerkit.targets.cuda.family import KernelFamily
from lowerkit.targets.cuda.planned import FastKernel, PlannedRegion, kernel_name
from lowerkit.targets.cuda.triton.epilogue import Epilogue
from lowerkit.targets.cuda.triton.tensors import Frame
from lowerkit.targets.plan import KernelExpr, Refusal, expression, product
from lowerkit.targets.region_view import RegionView


class ConvFamily(KernelFamily):
    """``lk.conv`` of floats, channels last or second, in groups or not; the batch may be open.

    Bytes: the input about once, since the columns of a row of tiles run beside each other, the filter and the result
    once; with K in parts also twice four bytes for each sum of a part.
    """

    name: ClassVar[str] = "conv"

    def plan(self, region: RegionView, level: str) -> PlannedRegion | Refusal:
        """See :meth:`KernelFamily.plan`."""
        frame = Frame(region)
        read = read_conv(region, frame, depthwise=False)
        if isinstance(read, Refusal):
            return read
        conv, epilogue = read
        if conv.unsigned:
            return Refusal("unsigned bytes")
        slide = conv.slide
        tile = choose_conv_tile(conv, _whole_tiles(conv, epilogue), level)
        sizes = [buffer.bytes for buffer in frame.buffers]
        operands = len(region.operands)
        used = sorted({slide.x.pointer, conv.filter.pointer} | epilogue.read_operands())
        read_bytes, written = _sum([sizes[number] for number in used]), _sum(sizes[operands:])
        pointers = list(range(len(sizes)))
        kernel = write_product(self.name, frame, conv, tile, epilogue)
        name = kernel_name(kernel)
        blocks = product([row_tiles(conv, tile), column_tiles(conv, tile), tile.splits])
        kernels = {name: FastKernel(kernel)}
        temporaries: list[KernelExpr] = []
        threads = 32 * tile.warps
        if tile.splits == 1:
            launches = [Launch(name, pointers, blocks, threads, flops=conv.flops, read=read_bytes, written=written)]
        else:
            elements = product([conv.rows, slide.channels])
            temporaries.append(product([elements, tile.splits, 4]))
            adding = write_sum(self.name, frame, conv, tile, epilogue)
            second = kernel_name(adding)
            kernels[second] = FastKernel(adding)
            pointers.append(len(pointers))
            launches = [
                Launch(name, pointers, blocks, threads, flops=conv.flops, read=read_bytes, written=temporaries[0]),
                Launch(
                    second, pointers, expression("ceildiv", elements, SUM_BLOCK), 128,
                    read=temporaries[0], written=written,
                ),
            ]  # fmt: skip
        function = Function(sizes[:operands], sizes[operands:], temporaries, frame.dims, launches)
        packings = {number: (each.kind, each.parameters) for number, each in conv.packings.items()}
        way = "within taps" if tile.whole_taps else "flat"
        note = f"tiles of {tile.m} x {tile.n} x {tile.k} {way}, {tile.warps} warps, {tile.stages} stages"
        note += f", K in {tile.splits} parts" if tile.splits > 1 else ""
        return PlannedRegion(function, kernels, self.name, note, packings)


def _whole_tiles(conv: Conv, epilogue: Epilogue) -> int:
    """How many operands of the epilogue have a number for each pixel and channel."""
    elements = product([*conv.slide.pixel_sizes, conv.slide.channels])
    return sum(each.tensor is not None and product(each.tensor.sizes) == elements for each in epilogue.inputs)


def _sum(sizes: list[KernelExpr]) -> KernelExpr:
    result: KernelExpr = 0
    for size in sizes:
        result = expression("add", result, size)
    return result
