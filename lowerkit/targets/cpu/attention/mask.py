"""The mask of attention on transposed scores: a tensor that is added or that selects, and causality.

A boolean mask is read as 0 and -inf; to select is to put the fill wherever that is not 0.

A mask that is the same for all rows of a task is read as one number per key and broadcast. Any other is transposed into
scratch once per key block, so that it meets the scores lane by lane.
"""

from __future__ import annotations

import math

from lowerkit.targets.cpu.attention.shape import AttentionShape, AttentionTiling, MaskAccess
from lowerkit.targets.cpu.text.kernel_text import Buffer, Index, KernelText
from lowerkit.targets.cpu.text.text_builder import Value
from lowerkit.targets.cpu.text.tile_transpose import transpose_rows

__all__ = ["ScoreMask", "needs_packing"]


def needs_packing(mask: MaskAccess | None, shape: AttentionShape) -> bool:
    """Whether the rows of a task see different masks."""
    if mask is None:
        return False
    return mask.query_stride != 0 or (shape.stacked and mask.head_stride != 0)


class ScoreMask:
    """Masks the scores of one task.

    Args:
        first_row: the task's first row.
        packed: scratch of ``block_keys * block_rows`` f32 elements where :func:`needs_packing` says so.
    """

    def __init__(
        self,
        text: KernelText,
        shape: AttentionShape,
        tiling: AttentionTiling,
        mask: MaskAccess | None,
        first_row: Index,
        packed: Buffer,
    ) -> None:
        self.text, self.shape, self.tiling, self.mask = text, shape, tiling, mask
        self.first_row, self.packed = first_row, packed
        self.is_packed = needs_packing(mask, shape)

    def pack(self, first: Index, count: Index) -> None:
        """Transposes the mask of a key block into scratch, where it lies as the scores do."""
        text, mask, shape = self.text, self.mask, self.shape
        assert mask is not None
        last = text.isub(shape.rows, 1)
        starts: list[Index] = []
        for row in range(self.tiling.block_rows):
            at = text.imin(text.iadd(self.first_row, row), last)
            if not shape.stacked:
                start = text.imul(at, mask.query_stride)
            else:
                head, query = text.unravel(at, [0, shape.queries])
                start = text.iadd(text.imul(head, mask.head_stride), text.imul(query, mask.query_stride))
            starts.append(text.iadd(text.iadd(mask.base, start), text.imul(first, mask.key_stride)))

        def read(row: int, column: Index, lanes_mask: Value | None) -> Value:
            at = text.iadd(starts[row], text.imul(column, mask.key_stride))
            return self._mask_as_float(
                text.strided_read(mask.buffer, at, mask.key_stride, self.tiling.lanes, lanes_mask)
            )

        transpose_rows(text, self.tiling.lanes, self.tiling.vectors, read, count, self.packed)

    def apply(self, score: Value, first: Index, at: Index, vector: int) -> Value:
        """Masks the scores of key ``first + at`` with the rows of one vector."""
        text, lanes, mask = self.text, self.tiling.lanes, self.mask
        if mask is not None:
            if self.is_packed:
                where = text.iadd(text.imul(at, self.tiling.block_rows), vector * lanes)
                bias = text.read(self.packed, where, lanes)
            else:
                where = text.iadd(mask.base, text.imul(text.iadd(first, at), mask.key_stride))
                bias = text.broadcast(self._mask_as_float(text.read(mask.buffer, where)), lanes)
            if self.shape.fill is None:
                score = text.add(score, bias)
            else:
                kept = text.compare("oeq", bias, text.constant(0.0, "f32", lanes))
                score = text.select(kept, score, text.constant(self.shape.fill, "f32", lanes))
        if self.shape.causal:
            key = text.broadcast(text.as_value(text.iadd(first, at)), lanes)
            visible = text.compare("sle", key, self._query_numbers(vector))
            score = text.select(visible, score, text.constant(-math.inf, "f32", lanes))
        return score

    def _query_numbers(self, vector: int) -> Value:
        """The query index m of each lane."""
        text, lanes = self.text, self.tiling.lanes
        start = text.as_value(text.iadd(self.first_row, vector * lanes))
        numbers = text.add(text.lane_numbers(lanes), text.broadcast(start, lanes))
        if not self.shape.stacked:
            return numbers
        return text.rem(numbers, text.broadcast(text.as_value(self.shape.queries), lanes))

    def _mask_as_float(self, value: Value) -> Value:
        text = self.text
        if value.element == "i1":
            shown, hidden = (text.constant(number, "f32", value.lanes) for number in (0.0, -math.inf))
            return text.select(value, shown, hidden)
        return text.cast("arith.truncf", value, "f32") if value.element == "f64" else text.widen(value)
