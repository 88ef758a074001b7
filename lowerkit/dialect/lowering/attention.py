"""Attention as two contractions around a softmax, with the scores in the compute type.

Loops: batch b, key head h, query head g within it, query row m, key t, feature d. The query heads are split into
(key head, group) where there are fewer key heads.
"""

from __future__ import annotations

import math

from lowerkit.dialect import linalg_builder as build
from lowerkit.dialect import scalar_builder as scalar
from lowerkit.dialect.lowering.matmul import multiply_accumulate
from lowerkit.dialect.types import compute_type, is_bool
from lowerkit.mlir import arith, ir

_B, _H, _G, _M, _T, _D = range(6)


def attention(
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    mask: ir.Value | None,
    *,
    scale: float,
    causal: bool,
    masking: str,
    fill: float,
    empty_rows: str,
) -> ir.Value:
    """Scaled dot-product attention; see ``lk.attention`` for masks and rows without keys."""
    element = query.type.element_type
    wide = compute_type(element)
    key_heads = build.size_of(key, 1)
    group = _group_size(build.size_of(query, 1), key_heads)
    split = build.expand_dimension(query, 1, [key_heads, group])
    batch, _, _, rows, _ = build.sizes_of(split)
    columns, features = build.size_of(key, 2), build.size_of(value, 3)
    zero = scalar.constant(0, wide)
    score_sizes = [batch, key_heads, group, rows, columns]

    scores = build.generic(
        [(split, build.loops((_B, _H, _G, _M, _D))), (key, build.loops((_B, _H, _T, _D)))],
        [(build.filled(score_sizes, zero), build.loops((_B, _H, _G, _M, _T)))],
        ["parallel"] * 5 + ["reduction"],
        multiply_accumulate,
    )[0]

    def masked(score: ir.Value, *rest: ir.Value) -> ir.Value:
        result = scalar.multiply(score, scalar.constant(scale, wide))
        hidden = scalar.lowest(wide)
        if rest:
            keep = rest[0]
            if masking == "select":
                result = scalar.select(keep, result, scalar.constant(fill, wide))
            elif is_bool(keep.type):
                result = scalar.add(result, scalar.select(keep, scalar.constant(0, wide), hidden))
            else:
                result = scalar.add(result, scalar.convert(keep, wide))
        if causal:
            seen = scalar.compare("le", build.loop_index(_T), build.loop_index(_M))
            result = scalar.select(seen, result, hidden)
        return result

    every, row = build.loops(range(5)), build.loops(range(4))
    masks = [] if mask is None else [_split_mask(mask, key_heads, group)]
    scores = build.map_elements([(scores, every), *masks], score_sizes, wide, masked)
    peak = build.reduce_rows(scores, [_T], scalar.lowest(wide), scalar.maximum)

    def weigh(score: ir.Value, best: ir.Value) -> ir.Value:
        # -inf - -inf would be NaN: a row without keys has weights exp(-inf) = 0.
        empty = scalar.compare("eq", best, scalar.lowest(wide))
        return scalar.exp(scalar.subtract(score, scalar.select(empty, scalar.constant(0, wide), best)))

    weights = build.map_elements([(scores, every), (peak, row)], score_sizes, wide, weigh)
    total = build.reduce_rows(weights, [_T], zero, scalar.add)
    # Loops of the second contraction: b, h, g, m, value feature, t.
    sums = build.generic(
        [(weights, build.loops((0, 1, 2, 3, 5))), (value, build.loops((0, 1, 5, 4)))],
        [(build.filled([batch, key_heads, group, rows, features], zero), build.loops(range(5)))],
        ["parallel"] * 5 + ["reduction"],
        multiply_accumulate,
    )[0]

    def finish(item: ir.Value, weight: ir.Value) -> ir.Value:
        nothing = scalar.compare("eq", weight, scalar.constant(0, wide))
        # A sum of weights of 0 has no keys at all, or -inf for all of them.
        instead = scalar.constant(1, wide)
        if empty_rows == "nan":
            no_keys = scalar.compare("eq", build.as_index(columns), build.as_index(0))
            instead = scalar.select(no_keys, instead, scalar.constant(math.nan, wide))
        quotient = scalar.divide(item, scalar.select(nothing, instead, weight))
        if empty_rows == "guarded":
            quotient = scalar.select(scalar.is_nan(weight), scalar.constant(0, wide), quotient)
        return scalar.convert(quotient, element)

    result = build.map_elements([(sums, every), (total, row)], build.sizes_of(sums), element, finish)
    return build.collapse_dimensions(result, 1, 2)


def _group_size(heads: build.Size, key_heads: build.Size) -> build.Size:
    if isinstance(heads, int) and isinstance(key_heads, int):
        return heads // key_heads
    return arith.FloorDivSIOp(build.as_index(heads), build.as_index(key_heads)).result


def _split_mask(mask: ir.Value, key_heads: build.Size, group: build.Size) -> tuple[ir.Value, list[ir.AffineExpr]]:
    """Returns the mask with its head dimension split like the query's, and how the score loops index it."""
    rank = mask.type.rank
    axes = {4 - rank + axis: axis for axis in range(rank)}  # dimension of [B, H, M, T] -> dimension of the mask
    expressions: list[ir.AffineExpr] = []
    loops_of = {0: [_B], 1: [_H, _G], 2: [_M], 3: [_T]}
    result = mask
    for dimension, axis in axes.items():
        if mask.type.shape[axis] == 1:
            expressions.append(build.affine_constant(0))
            continue
        if dimension == 1:
            result = build.expand_dimension(result, axis, [key_heads, group])
        expressions += build.loops(loops_of[dimension])
    return result, expressions
