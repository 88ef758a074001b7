"""``lk.rope``: rotary position embedding, one vector of pairs at a time.

For each pair (a, b): ``a cos - b sin`` and ``b cos + a sin``. Pairs are (i, i + D/2), two loads half a row apart, or
(2i, 2i + 1), which two shuffles separate and two bring back. Products and sums round one by one, as eager's do. A task
is a run of rows [B, H, S]; bytes: the input and the result once, the tables once per head from cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from lowerkit.mlir import ir
from lowerkit.targets.cpu.family import KernelFamily
from lowerkit.targets.cpu.levels import CpuFeatures
from lowerkit.targets.cpu.reductions.row_frame import anchor_operand
from lowerkit.targets.cpu.text.kernel_frame import KernelFrame
from lowerkit.targets.cpu.text.kernel_text import Buffer, Index, KernelText
from lowerkit.targets.cpu.text.linear_access import broadcast_strides
from lowerkit.targets.cpu.text.region_values import Located
from lowerkit.targets.cpu.text.text_builder import Value, is_float
from lowerkit.targets.cpu.vector.epilogue import make_epilogue
from lowerkit.targets.plan import DeviceCode, Refusal, expression, product
from lowerkit.targets.region_view import RegionView

__all__ = ["RopeFamily"]

_GRAIN = 8192


class RopeFamily(KernelFamily):
    """``lk.rope`` of f32, f16, bf16 and f64, halves or interleaved, with an epilogue."""

    name: ClassVar[str] = "rope"

    def plan(self, region: RegionView, cpu: CpuFeatures) -> DeviceCode | Refusal:
        """Returns the plan, or why the region is not a rotary embedding."""
        if region.anchor is None or region.anchor.operation.name != "lk.rope":
            return Refusal("the anchor is not lk.rope")
        operation = region.anchor.operation
        frame = KernelFrame(region.buffer_types, region.invariant)
        text = frame.text
        sources: list[Located] = []
        for number in range(3):
            source = anchor_operand(region, frame, number)
            if isinstance(source, Refusal):
                return source
            sources.append(source)
        data, cosine, sine = sources
        features = data.sizes[3]
        table = cosine.sizes[-1]
        if not isinstance(features, int) or not isinstance(table, int):
            return Refusal("the feature dimension is dynamic")
        compute = "f64" if data.buffer.element == "f64" else "f32"
        if not all(is_float(source.buffer.element) for source in sources):
            return Refusal("an operand is not of floats")
        if compute == "f32" and cosine.buffer.element == "f64":
            return Refusal("tables of f64 for narrower data")
        epilogue = make_epilogue(region, frame)
        if isinstance(epilogue, Refusal):
            return epilogue
        interleaved = ir.BoolAttr(operation.attributes["interleaved"]).value
        lanes = cpu.lanes(64 if compute == "f64" else 32)
        half = features // 2
        strides = broadcast_strides(text, cosine.sizes, 4)
        # A table of D/2 == 1 columns still has one value per pair: its last stride is not a broadcast.
        outer_sizes = data.sizes[:3]
        count = text.iproduct(outer_sizes)
        grain = max(1, _GRAIN // features)
        with frame.tasks() as task:
            first = text.imul(task, grain)
            with text.span(first, text.imin(count, text.iadd(first, grain))) as loop:
                place = text.unravel(loop.index, outer_sizes)
                row = text.part(data.buffer, text.imul(loop.index, features))
                at_table = text.dot(place, strides[:3])
                tables = [text.part(source.buffer, at_table) for source in (cosine, sine)]

                def pairs(index: Index, mask: Value | None, carried: list[Value]) -> list[Value]:
                    read = _read_interleaved if interleaved else _read_halves
                    a, b = read(text, row, index, half, lanes, mask, compute)
                    if table == features:
                        (cos_a, cos_b), (sin_a, sin_b) = (
                            read(text, source, index, half, lanes, mask, compute) for source in tables
                        )
                    else:
                        cos_a, sin_a = (text.widen(text.read(source, index, lanes, mask), compute) for source in tables)
                        cos_b, sin_b = cos_a, sin_a
                    results = [
                        text.sub(text.mul(a, cos_a), text.mul(b, sin_a)),
                        text.add(text.mul(b, cos_b), text.mul(a, sin_b)),
                    ]
                    narrow = [text.narrow(value, data.buffer.element) for value in results]
                    if interleaved:
                        narrow, starts, masks = _interleave(text, narrow, index, half, mask)
                    else:
                        starts, masks = [index, text.iadd(index, half)], [mask, mask]
                    for value, start, keep in zip(narrow, starts, masks, strict=True):
                        epilogue.store(value, [*place, start], 3, keep)
                    return carried

                text.strip(half, lanes, pairs)
        rows = product(frame.extents[data.operand][:3])
        way = "interleaved" if interleaved else "halves"
        return frame.plan(self.name, expression("ceildiv", rows, grain), note=f"{way} of {half}, {lanes} lanes")


def _read_halves(
    text: KernelText, source: Buffer, index: Index, half: int, lanes: int, mask: Value | None, compute: str
) -> tuple[Value, Value]:
    """The values i and i + D/2."""
    a, b = (text.widen(text.read(source, at, lanes, mask), compute) for at in (index, text.iadd(index, half)))
    return a, b


def _read_interleaved(
    text: KernelText, source: Buffer, index: Index, half: int, lanes: int, mask: Value | None, compute: str
) -> tuple[Value, Value]:
    """The values 2i and 2i + 1."""
    starts, masks = _pair_vectors(text, index, half, lanes, mask)
    low, high = (
        text.widen(text.read(source, at, lanes, keep), compute) for at, keep in zip(starts, masks, strict=True)
    )
    return text.shuffle(low, high, range(0, 2 * lanes, 2)), text.shuffle(low, high, range(1, 2 * lanes, 2))


def _interleave(
    text: KernelText, pair: Sequence[Value], index: Index, half: int, mask: Value | None
) -> tuple[list[Value], list[Index], list[Value | None]]:
    """Two vectors of neighbouring features from the values a and b of the pairs."""
    lanes, element = pair[0].lanes, pair[0].element
    a, b = (text.bitcast(value, "i16") if element in ("f16", "bf16") else value for value in pair)
    order = [lane // 2 + (lane % 2) * lanes for lane in range(2 * lanes)]
    mixed = [text.shuffle(a, b, order[:lanes]), text.shuffle(a, b, order[lanes:])]
    values = [value if value.element == element else text.bitcast(value, element) for value in mixed]
    starts, masks = _pair_vectors(text, index, half, lanes, mask)
    return values, starts, masks


def _pair_vectors(
    text: KernelText, index: Index, half: int, lanes: int, mask: Value | None
) -> tuple[list[Index], list[Value | None]]:
    """Starts and masks of the two vectors that hold the pairs ``index`` ... ``index + lanes``."""
    start = text.imul(index, 2)
    starts = [start, text.iadd(start, lanes)]
    if mask is None:
        return starts, [None, None]
    left = text.imul(text.isub(half, index), 2)
    return starts, [text.mask(left, lanes), text.mask(text.isub(left, lanes), lanes)]
