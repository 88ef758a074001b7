"""Elementwise regions, copies and transposes: each element of the result by itself, vectors of 16 bytes.

A tile is one-dimensional over all iteration dims. Where an operand lies across (another dim is contiguous in it than
in the result), the tile has two dims, so that both sides move whole sectors; Triton turns it over in shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from lowerkit.targets.cuda.family import KernelFamily
from lowerkit.targets.cuda.planned import PlannedRegion, one_kernel
from lowerkit.targets.cuda.triton.epilogue import read_epilogue
from lowerkit.targets.cuda.triton.kernel import TritonKernel
from lowerkit.targets.cuda.triton.scalars import constant
from lowerkit.targets.cuda.triton.tensors import (
    Axis,
    Frame,
    Splat,
    Tensor,
    load,
    offset_text,
    pointer_types,
    store,
)
from lowerkit.targets.cuda.triton.writer import KernelWriter, render
from lowerkit.targets.plan import KernelExpr, Refusal, expression, product, total
from lowerkit.targets.region_view import RegionView

BLOCK = 1024
ACROSS = 32


class ElementwiseFamily(KernelFamily):
    """Regions of elementwise ops, and of nothing but copies in another order or one number in every place."""

    name: ClassVar[str] = "elementwise"

    def plan(self, region: RegionView, level: str) -> PlannedRegion | Refusal:
        """See :meth:`KernelFamily.plan`."""
        if any(op.operation.name.startswith("lk.") for op in region.body_ops):
            return Refusal("there is an op of the lk dialect")
        frame = Frame(region)
        copied = _copies(region, frame)
        if copied is not None:
            accesses = [(each.strides, each.element) for each, _ in copied if isinstance(each, Tensor)]
            sizes = copied[0][1].sizes
            if any(result.sizes != sizes for _, result in copied):
                return Refusal("copies of several shapes")
            order: tuple[int, ...] = tuple(range(len(sizes)))
            epilogue = None
        else:
            epilogue = read_epilogue(region, frame, None)
            if isinstance(epilogue, Refusal):
                return epilogue
            order = epilogue.output_dims
            sizes = epilogue.outputs[0][0].sizes
            accesses = [(each.strides, each.tensor.element) for each in epilogue.inputs if each.tensor is not None]
        if 0 in sizes:
            return Refusal("nothing to compute")
        writer = KernelWriter()
        axes, mask, blocks, shape = _tile(writer, frame, order, sizes, accesses)
        if epilogue is not None:
            epilogue.write(writer, "0", axes, mask)
        else:
            assert copied is not None, "one of both was read"
            for each, result in copied:
                if isinstance(each, Tensor):
                    value = load(writer, each, offset_text(writer, each.strides, each.offset, axes), mask)
                else:
                    value = writer.let(constant(each.number, each.element))
                store(writer, result, offset_text(writer, result.strides, 0, axes), value, mask)
        source = writer.source(len(frame.buffers), frame.dims)
        kernel = TritonKernel(self.name, source, pointer_types(frame), frame.dims, 4, 1)
        bytes_ = [buffer.bytes for buffer in frame.buffers]
        read, written = total(bytes_[: len(region.operands)]), total(bytes_[len(region.operands) :])
        return one_kernel(
            kernel, bytes_, len(region.operands), blocks, note=f"tiles of {shape}", read=read, written=written
        )


def _copies(region: RegionView, frame: Frame) -> list[tuple[Tensor | Splat, Tensor]] | None:
    """The operand, as it is seen, or the number that each result is a copy of; None where something is computed."""
    pairs: list[tuple[Tensor | Splat, Tensor]] = []
    for value, result in zip(region.returned, frame.results, strict=True):
        source = frame.source(value)
        if isinstance(source, Tensor) and len(source.sizes) != len(result.sizes):
            return None
        if not isinstance(source, Tensor | Splat):
            return None
        pairs.append((source, result))
    return pairs


def _tile(
    writer: KernelWriter,
    frame: Frame,
    order: tuple[int, ...],
    sizes: tuple[KernelExpr, ...],
    accesses: Sequence[tuple[Sequence[KernelExpr], str]],
) -> tuple[list[Axis], str | None, KernelExpr, str]:
    """Returns the axes of the tile, its mask, the blocks, and its shape in words; ``order`` is that of the result."""
    wide = ".to(tl.int64)" if frame.wide else ""
    across = _across(order, sizes, accesses)
    pid = writer.let(f"tl.program_id(0){wide}", "pid")
    if across is None:
        total = product(sizes)
        block = min(BLOCK, max(128, 1 << (total - 1).bit_length())) if isinstance(total, int) else BLOCK
        flat = writer.let(f"{pid} * {block} + tl.arange(0, {block}){wide}", "flat")
        mask = (
            None if isinstance(total, int) and total % block == 0 else writer.let(f"{flat} < {render(total)}", "mask")
        )
        return [Axis(flat, order, sizes)], mask, expression("ceildiv", total, block), str(block)
    last = len(sizes) - 1
    outer = [place for place in range(last) if place != across]
    tiles_x, tiles_y = (expression("ceildiv", sizes[each], ACROSS) for each in (last, across))
    x = writer.let(f"({pid} % {render(tiles_x)} * {ACROSS} + tl.arange(0, {ACROSS}){wide})[None, :]", "x_at")
    rest = writer.let(f"{pid} // {render(tiles_x)}", "rest")
    y = writer.let(f"({rest} % {render(tiles_y)} * {ACROSS} + tl.arange(0, {ACROSS}){wide})[:, None]", "y_at")
    axes = [Axis(y, (order[across],), (sizes[across],)), Axis(x, (order[last],), (sizes[last],))]
    if outer:
        number = writer.let(f"{rest} // {render(tiles_y)}", "outer")
        axes.insert(0, Axis(number, tuple(order[each] for each in outer), tuple(sizes[each] for each in outer)))
    masks = [
        f"({axis} < {render(sizes[each])})"
        for axis, each in ((y, across), (x, last))
        if not (isinstance(sizes[each], int) and sizes[each] % ACROSS == 0)
    ]
    mask = writer.let(" & ".join(masks), "mask") if masks else None
    blocks = product([tiles_x, tiles_y, *(sizes[each] for each in outer)])
    return axes, mask, blocks, f"{ACROSS} x {ACROSS}"


def _across(
    order: tuple[int, ...], sizes: tuple[KernelExpr, ...], accesses: Sequence[tuple[Sequence[KernelExpr], str]]
) -> int | None:
    """The dim of the result along which some operand is contiguous, if that is not the last; None where all agree."""
    last = len(sizes) - 1
    for strides, _ in accesses:
        if last < 1 or strides[order[last]] in (0, 1) or not _many(sizes[last]):
            continue
        for place in range(last):
            if strides[order[place]] == 1 and _many(sizes[place]):
                return place
    return None


def _many(size: KernelExpr) -> bool:
    return not isinstance(size, int) or size >= 8
