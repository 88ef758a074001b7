"""The operands of a sum that is cut into chunks: zeros behind what does not divide, and K apart in a weight.

Zeros on both sides change no sum of numbers: nothing that is infinite or no number meets them. They may make a zero
that is negative positive, and do so on every mesh.
"""

from __future__ import annotations

import numpy as np

from lowerkit.dialect import WeightOp
from lowerkit.dialect.linalg_builder import pad
from lowerkit.mlir import arith, ir
from lowerkit.passes.rewriting import element_of, shape_of, weight_symbol
from lowerkit.program.weights import Array, WeightStore


def chunk_size(depth: int, chunks: int, step: int = 1) -> int:
    """Returns how many terms a chunk has of a sum of ``depth`` terms, a multiple of ``step``; the last may be zeros."""
    return -(-depth // (chunks * step)) * step


def padded(value: ir.Value, axis: int, extent: int) -> ir.Value:
    """Returns a tensor with zeros behind the end of dimension ``axis``, which has ``extent`` elements then."""
    shape = shape_of(value)
    if shape[axis] == extent:
        return value
    element = element_of(value)
    zero = arith.ConstantOp(element, ir.FloatAttr.get(element, 0.0)).result
    high = [extent - shape[axis] if each == axis else 0 for each in range(len(shape))]
    return pad(value, [0] * len(shape), high, zero)


def weight_in_chunks(
    value: ir.Value, axis: int, counts: tuple[int, int], size: int, missing: int, weights: WeightStore, *, joined: bool
) -> ir.Value:
    """Returns a weight whose dimension ``axis``, of K, is cut: ``[ranks, own, ..., size, ...]``.

    Args:
        value: the weight.
        axis: of K.
        counts: how many ranks have parts, and chunks of each.
        size: of a chunk.
        missing: how many dimensions of one element come behind the chunks.
        weights: the store, which learns the new weight.
        joined: the chunks are one dimension with the one behind them: ``[ranks * own * first, ...]``.
    """
    symbol = weight_symbol(value)
    assert symbol is not None, "the caller has looked"
    outer = weights.shard(symbol)
    before = () if outer is None else outer.sizes
    shape, (ranks, own) = shape_of(value), counts
    extra = size * ranks * own - shape[axis]
    apart = [*before, *shape[:axis], ranks, own, size, *shape[axis + 1 :]]
    local = [ranks, own, *[1] * missing, *shape[:axis], size, *shape[axis + 1 :]]
    if joined:
        local = [ranks * own * local[2], *local[3:]]
    first = len(before)
    behind = [(0, extra if each == first + axis else 0) for each in range(first + len(shape))]

    def chunked(array: Array) -> Array:
        wide = np.pad(array, behind) if extra else array
        moved = np.moveaxis(wide.reshape(apart), (first + axis, first + axis + 1), (first, first + 1))
        return np.ascontiguousarray(moved).reshape(*before, *local)

    name = weights.unique_name(f"{symbol}@chunks")
    dtype, _ = weights.spec(symbol)
    weights.derive(name, [symbol], chunked, dtype=dtype, shape=[*before, *local], shard=outer)
    return WeightOp.build(name, ir.RankedTensorType.get(local, element_of(value)))
