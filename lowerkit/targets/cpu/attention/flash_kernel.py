"""Flash attention on transposed scores: the body of one task.

Vocabulary
    row          one query of one head; the rows of a task are ``block_rows`` = vectors * lanes neighbours.
    lane         each row owns one vector lane through the whole task, so maxima, sums and rescaling of the softmax
                 are plain vertical vector ops: no lane is ever reduced across.
    key block    ``block_keys`` keys whose scores are alive at once.
    element      what one multiplication takes: a number, or a pair of bf16 (``gemm/arithmetic.py``).

Steps of a task
    1. Q^T: transpose the rows into scratch as [D, rows], widened to f32 and scaled.
    2. for each key block: S^T[key, rows] = K Q^T, keys as broadcast elements straight from the natural layout, so
       neither K nor V is ever packed or transposed; the running maximum is taken while the scores are in registers.
    3. P = exp(S - maximum), the row sums, and the factor by which earlier blocks shrink (online softmax).
    4. O^T[value dim, rows] += V^T P, the values as broadcast elements.
    5. O^T / sum, transposed back, through the epilogue, to memory.

With pairs of bf16 Q^T holds pairs of features, which are scaled when they are scores; P is rounded to bf16 and brought
to pairs of keys, as V is (once a task and key block), and the row sums are those of the rounded weights, so that they
still add up to one.

Causal rows do not visit the keys behind their block, whose weights are 0. Values there that are NaN or infinite show
all the same, 0 times them being NaN: as in eager, where keys are taken 512 at a time, those of the last 512 do.

Bytes: K and V are read once per task (they stay in L2 over the tasks of one head); Q and the output once. S^T, at most
``block_keys * block_rows`` floats, stays in L1 or L2. FLOPs run in a rows x vectors register tile at 0.57 loads
per FMA with 32 registers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from lowerkit.targets.cpu.attention.mask import ScoreMask, needs_packing
from lowerkit.targets.cpu.attention.paired_keys import paired_values, paired_weights, pairs_of
from lowerkit.targets.cpu.attention.register_tiles import cover_rows, outer_products
from lowerkit.targets.cpu.attention.scratch import scratch_parts, widened
from lowerkit.targets.cpu.attention.shape import AttentionShape, AttentionTiling, MaskAccess
from lowerkit.targets.cpu.text.kernel_text import Buffer, Index, KernelText
from lowerkit.targets.cpu.text.text_builder import Value
from lowerkit.targets.cpu.text.tile_transpose import transpose_rows, transpose_tile
from lowerkit.targets.cpu.vector.math import exp_normal

__all__ = ["emit_attention_task"]

_EAGER_KEYS = 512  # keys that eager takes at a time: those of a block that holds a visible key have a weight, be it 0


def emit_attention_task(
    text: KernelText,
    shape: AttentionShape,
    tiling: AttentionTiling,
    query: Buffer,
    key: Buffer,
    value: Buffer,
    mask: MaskAccess | None,
    first_row: Index,
    scratch: Buffer,
    write_row: Callable[[Index, Buffer], None],
) -> None:
    """Writes one task: the rows ``first_row`` ... of one key/value head.

    Args:
        query, key, value: start at the first row, key and value of the head.
        scratch: f32, :func:`scratch_floats` elements.
        write_row: called inside a loop with the row number (counted from the head's first row) and a buffer that
            starts with its ``value_depth`` f32 results.
    """
    _Task(text, shape, tiling, query, key, value, mask, first_row, scratch).emit(write_row)


class _Task:
    def __init__(
        self,
        text: KernelText,
        shape: AttentionShape,
        tiling: AttentionTiling,
        query: Buffer,
        key: Buffer,
        value: Buffer,
        mask: MaskAccess | None,
        first_row: Index,
        scratch: Buffer,
    ) -> None:
        self.text, self.shape, self.tiling = text, shape, tiling
        self.query, self.key, self.value = query, key, value
        self.first_row = first_row
        parts = scratch_parts(shape, tiling, needs_packing(mask, shape))
        starts = [sum(parts[:index]) for index in range(len(parts))]
        self.packed_query, self.scores, self.output, packed_mask, self.wide, self.hidden = (
            text.part(scratch, start) for start in starts
        )
        self.paired = shape.arithmetic.numbers > 1
        self.mask = ScoreMask(text, shape, tiling, mask, first_row, packed_mask)

    # --- the steps --------------------------------------------------------------------------------------------

    def emit(self, write_row: Callable[[Index, Buffer], None]) -> None:
        text, shape, tiling = self.text, self.shape, self.tiling
        self.rows_here = text.imin(tiling.block_rows, text.isub(shape.rows, self.first_row))
        self._pack_queries()
        lowest = text.constant(-math.inf, "f32", tiling.lanes)
        zero = text.constant(0.0, "f32", tiling.lanes)
        keys = self._visible_keys()
        if isinstance(shape.keys, int) and 0 < shape.keys <= tiling.block_keys:
            sums = self._key_block(0, keys, [lowest] * tiling.vectors, [zero] * tiling.vectors, only=True)[1]
        else:
            self._clear_output()
            state = [lowest] * tiling.vectors + [zero] * tiling.vectors
            with text.span(0, keys, tiling.block_keys, state) as loop:
                whole = isinstance(keys, int) and keys % tiling.block_keys == 0
                count = tiling.block_keys if whole else text.imin(tiling.block_keys, text.isub(keys, loop.index))
                highest, partial = loop.carried[: tiling.vectors], loop.carried[tiling.vectors :]
                highest, partial = self._key_block(loop.index, count, highest, partial, only=False)
                text.yield_([*highest, *partial])
            sums = loop.results[tiling.vectors :]
        if shape.causal:
            self._add_hidden(keys)
        for vector, total in enumerate(sums):
            self._unpack_output(vector, total)
        with text.span(0, self.rows_here) as loop:
            start = text.imul(loop.index, self._padded_depth())
            write_row(text.iadd(self.first_row, loop.index), text.part(self.packed_query, start))

    def _visible_keys(self) -> Index:
        """Keys that some row of the task may see: causal attention stops at the last row's diagonal."""
        text, shape = self.text, self.shape
        if not shape.causal:
            return shape.keys
        if shape.stacked:
            return text.imin(shape.keys, shape.queries)
        return text.imin(shape.keys, text.iadd(self.first_row, self.rows_here))

    def _padded_depth(self) -> int:
        return -(-self.shape.value_depth // self.tiling.lanes) * self.tiling.lanes

    def _pack_queries(self) -> None:
        """Q^T in scratch: pairs as they lie, numbers widened and scaled."""
        text, lanes = self.text, self.tiling.lanes
        scale, last = text.constant(self.shape.scale, "f32", lanes), text.isub(self.shape.rows, 1)
        source, target, depth = self.query, self.packed_query, self.shape.depth
        if self.paired:
            source, target, depth = self._in_pairs(source), self._in_pairs(target), depth // 2

        def read(row: int, column: Index, mask: Value | None) -> Value:
            at = text.imin(text.iadd(self.first_row, row), last)
            value = text.read(source, text.iadd(text.imul(at, depth), column), lanes, mask)
            return value if self.paired else text.mul(text.widen(value), scale)

        transpose_rows(text, lanes, self.tiling.vectors, read, depth, target)

    def _clear_output(self) -> None:
        zero = self.text.constant(0.0, "f32", self.tiling.lanes)

        def clear(index: Index, mask: Value | None, carried: list[Value]) -> list[Value]:
            self.text.write(zero, self.output, index, mask)
            return carried

        self.text.strip(self.shape.value_depth * self.tiling.block_rows, self.tiling.lanes, clear, unroll=4)

    def _key_block(
        self, first: Index, count: Index, highest: list[Value], sums: list[Value], only: bool
    ) -> tuple[list[Value], list[Value]]:
        """Handles the keys ``first`` ... ``first + count``; returns the new maxima and sums of the rows."""
        text, lanes = self.text, self.tiling.lanes
        if self.mask.is_packed:
            self.mask.pack(first, count)
        block_highest = self._score(first, count, highest)
        lowest = text.constant(-math.inf, "f32", lanes)
        zero = text.constant(0.0, "f32", lanes)
        # A row that sees no key yet has maximum -inf; 0 in its place keeps exp(-inf - maximum) at 0, not NaN.
        shift = [text.select(text.compare("oeq", peak, lowest), zero, peak) for peak in block_highest]
        if only:
            shrink = None
        else:
            shrink = [exp_normal(text, text.sub(old, new)) for old, new in zip(highest, shift, strict=True)]
            sums = [text.mul(total, factor) for total, factor in zip(sums, shrink, strict=True)]
        sums = self._exponentials(count, shift, sums)
        self._weigh_values(first, count, shrink)
        return block_highest, sums

    def _score(self, first: Index, count: Index, highest: list[Value]) -> list[Value]:
        text, depth, rows = self.text, self.shape.depth, self.tiling.block_rows
        keys, queries = text.part(self.key, text.imul(first, depth)), self.packed_query
        if self.paired:
            keys, queries, depth = self._in_pairs(keys), self._in_pairs(queries), depth // 2
        else:
            keys = widened(text, keys, text.imul(count, depth), self.tiling.lanes, self.wide)
        zero = text.constant(0.0, "f32", self.tiling.lanes)
        scale = text.constant(self.shape.scale, "f32", self.tiling.lanes)

        def tile(start: Index, height: int, carried: list[Value]) -> list[Value]:
            left = text.part(keys, text.imul(start, depth))
            accumulators = [zero] * (height * self.tiling.vectors)
            accumulators = outer_products(
                text, left, (depth, 1), queries, depth, accumulators, self.tiling.vectors, self.shape.arithmetic
            )
            for row in range(height):
                at = text.iadd(start, row)
                for vector in range(self.tiling.vectors):
                    score = accumulators[row * self.tiling.vectors + vector]
                    score = text.mul(score, scale) if self.paired else score
                    score = self.mask.apply(score, first, at, vector)
                    where = text.iadd(text.imul(at, rows), vector * self.tiling.lanes)
                    text.write(score, self.scores, where)
                    # The plain comparison drops NaN, which is right: exp(NaN - maximum) brings it back.
                    higher = text.compare("ogt", score, carried[vector])
                    carried = list(carried)
                    carried[vector] = text.select(higher, score, carried[vector])
            return carried

        return cover_rows(text, count, self.tiling.tile_rows, tile, highest)

    def _exponentials(self, count: Index, shift: Sequence[Value], sums: list[Value]) -> list[Value]:
        text, lanes = self.text, self.tiling.lanes
        if self.paired:
            return paired_weights(text, self.tiling, self.scores, count, shift, sums)
        with text.span(0, count, 1, sums) as loop:
            totals: list[Value] = []
            for vector in range(self.tiling.vectors):
                at = text.iadd(text.imul(loop.index, self.tiling.block_rows), vector * lanes)
                weight = exp_normal(text, text.sub(text.read(self.scores, at, lanes), shift[vector]))
                text.write(weight, self.scores, at)
                totals.append(text.add(loop.carried[vector], weight))
            text.yield_(totals)
        return loop.results

    def _weigh_values(self, first: Index, count: Index, shrink: list[Value] | None) -> None:
        text, depth, rows = self.text, self.shape.value_depth, self.tiling.block_rows
        values, weights, steps = text.part(self.value, text.imul(first, depth)), self.scores, count
        if self.paired:
            values = paired_values(text, self.tiling.lanes, values, depth, count, self._in_pairs(self.wide))
            weights, steps = self._in_pairs(weights), pairs_of(text, count)
        else:
            values = widened(text, values, text.imul(count, depth), self.tiling.lanes, self.wide)
        zero = text.constant(0.0, "f32", self.tiling.lanes)

        def tile(start: Index, height: int, carried: list[Value]) -> list[Value]:
            places = [
                text.iadd(text.imul(text.iadd(start, row), rows), vector * self.tiling.lanes)
                for row in range(height)
                for vector in range(self.tiling.vectors)
            ]
            if shrink is None:
                accumulators = [zero] * len(places)
            else:
                accumulators = [
                    text.mul(text.read(self.output, place, self.tiling.lanes), shrink[index % self.tiling.vectors])
                    for index, place in enumerate(places)
                ]
            left = text.part(values, start)
            accumulators = outer_products(
                text, left, (1, depth), weights, steps, accumulators, self.tiling.vectors, self.shape.arithmetic
            )
            for place, accumulator in zip(places, accumulators, strict=True):
                text.write(accumulator, self.output, place)
            return carried

        cover_rows(text, depth, self.tiling.tile_rows, tile, [])

    def _add_hidden(self, visible: Index) -> None:
        """Sums 0 times the values of the keys from ``visible`` on: 0, or NaN in features that are not finite there."""
        text, lanes, depth = self.text, self.tiling.lanes, self.shape.value_depth
        zero = text.constant(0.0, "f32", lanes)
        end = text.imin(self.shape.keys, text.imul(text.iceildiv(visible, _EAGER_KEYS), _EAGER_KEYS))

        def column(start: Index, mask: Value | None, carried: list[Value]) -> list[Value]:
            with text.span(visible, end, 1, [zero]) as loop:
                at = text.iadd(text.imul(loop.index, depth), start)
                value = text.widen(text.read(self.value, at, lanes, mask))
                text.yield_([text.add(loop.carried[0], text.mul(value, zero))])
            text.write(loop.results[0], self.hidden, start)
            return carried

        text.strip(depth, lanes, column)

    def _unpack_output(self, vector: int, weights: Value) -> None:
        """Writes O[row, value dim] = O^T / sum over the scratch of the queries, which are no longer needed."""
        text, lanes, depth = self.text, self.tiling.lanes, self.shape.value_depth
        zero = text.constant(0.0, "f32", lanes)
        inverse = self._inverse(weights)
        is_number = text.compare("ord", weights, weights) if self.shape.empty_rows == "guarded" else None

        def columns(start: Index, mask: Value | None, carried: list[Value]) -> list[Value]:
            tile: list[Value] = []
            for lane in range(lanes):
                if mask is not None and lane >= depth % lanes:
                    tile.append(zero)
                    continue
                place = text.iadd(text.imul(text.iadd(start, lane), self.tiling.block_rows), vector * lanes)
                weighed = text.mul(text.read(self.output, place, lanes), inverse)
                tile.append(weighed if is_number is None else text.select(is_number, weighed, zero))
            hidden = text.read(self.hidden, start, lanes) if self.shape.causal else None
            for lane, row in enumerate(transpose_tile(text, tile)):
                total = row if hidden is None else text.add(row, hidden)
                text.write(total, self.packed_query, text.iadd(start, (vector * lanes + lane) * self._padded_depth()))
            return carried

        text.strip(depth, lanes, columns)

    def _inverse(self, total: Value) -> Value:
        """One by the sum of the weights, which is 0 in a row of -inf, and in all rows where there are no keys."""
        text, lanes, keys = self.text, self.tiling.lanes, self.shape.keys
        one, zero = text.constant(1.0, "f32", lanes), text.constant(0.0, "f32", lanes)
        inverse = text.div(one, total)
        without = text.compare("oeq", total, zero)
        if self.shape.empty_rows == "nan":
            if isinstance(keys, int):
                return inverse if keys else zero  # 0 * (1 / 0) is NaN
            counts = text.broadcast(text.as_value(keys), lanes)
            without = text.compare("eq", counts, text.like(0, counts))
        return text.select(without, zero, inverse)

    # --- pieces -----------------------------------------------------------------------------------------------

    def _in_pairs(self, buffer: Buffer) -> Buffer:
        return Buffer(buffer.pointer, self.shape.arithmetic.operand)
