"""What a task of attention keeps in scratch, and the copy of operands that are multiplied in a wider type."""

from __future__ import annotations

from lowerkit.targets.cpu.attention.shape import AttentionShape, AttentionTiling
from lowerkit.targets.cpu.text.kernel_text import Buffer, Index, KernelText
from lowerkit.targets.cpu.text.text_builder import Value

__all__ = ["scratch_floats", "scratch_parts", "widened"]


def scratch_floats(shape: AttentionShape, tiling: AttentionTiling, packed_mask: bool) -> int:
    """Returns the f32 elements of scratch that a task needs."""
    return sum(scratch_parts(shape, tiling, packed_mask))


def scratch_parts(shape: AttentionShape, tiling: AttentionTiling, packed_mask: bool) -> list[int]:
    """Returns the f32 elements of queries, scores, output, mask, widened or paired operands, and hidden values."""
    rows = tiling.block_rows
    padded = -(-shape.value_depth // tiling.lanes) * tiling.lanes
    queries = max(shape.depth, padded) * rows
    scores = tiling.block_keys * rows
    wide = 0
    if shape.arithmetic.numbers > 1:
        wide = -(-tiling.block_keys // shape.arithmetic.numbers) * shape.value_depth
    elif shape.arithmetic.widens:
        wide = tiling.block_keys * max(shape.depth, shape.value_depth)
    wide = -(-wide // 16) * 16
    return [queries, scores, shape.value_depth * rows, scores if packed_mask else 0, wide, padded * shape.causal]


def widened(text: KernelText, source: Buffer, count: Index, lanes: int, target: Buffer) -> Buffer:
    """Returns f32 elements: the source itself, or its ``count`` elements widened to ``target``."""
    if source.element == "f32":
        return source

    def widen(index: Index, mask: Value | None, carried: list[Value]) -> list[Value]:
        text.write(text.widen(text.read(source, index, lanes, mask)), target, index, mask)
        return carried

    text.strip(count, lanes, widen, unroll=4)
    return target
