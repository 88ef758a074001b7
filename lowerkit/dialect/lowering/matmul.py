"""Matrix multiplication as one linalg.generic."""

from __future__ import annotations

from collections.abc import Callable

from lowerkit.dialect import linalg_builder as build
from lowerkit.dialect import scalar_builder as scalar
from lowerkit.mlir import ir


def multiply_accumulate(left: ir.Value, right: ir.Value, total: ir.Value) -> ir.Value:
    """The body of every contraction: ``total + left * right`` in the type of ``total``."""
    wide = total.type
    return scalar.add(total, scalar.multiply(scalar.convert(left, wide), scalar.convert(right, wide)))


Body = Callable[[ir.Value, ir.Value, ir.Value], ir.Value]
"""Adds one product to a sum: (left, right, total) -> total."""


def matmul(
    lhs: ir.Value,
    rhs: ir.Value,
    *,
    transpose_lhs: bool,
    transpose_rhs: bool,
    accumulate: ir.Type,
    result_element: ir.Type,
    body: Body = multiply_accumulate,
) -> ir.Value:
    """Multiplies matrices; batch dimensions broadcast where their size is statically 1."""
    batch_rank = max(lhs.type.rank, rhs.type.rank) - 2
    m, n, k = batch_rank, batch_rank + 1, batch_rank + 2
    batch = [_batch_size(lhs, rhs, axis, batch_rank) for axis in range(batch_rank)]
    rows = build.size_of(lhs, lhs.type.rank - (1 if transpose_lhs else 2))
    columns = build.size_of(rhs, rhs.type.rank - (2 if transpose_rhs else 1))
    left = [*_batch_loops(lhs, batch_rank), *build.loops((k, m) if transpose_lhs else (m, k))]
    right = [*_batch_loops(rhs, batch_rank), *build.loops((n, k) if transpose_rhs else (k, n))]
    sums = build.filled([*batch, rows, columns], scalar.constant(0, accumulate))
    iterators = ["parallel"] * (batch_rank + 2) + ["reduction"]
    output = build.loops(range(batch_rank + 2))
    total = build.generic([(lhs, left), (rhs, right)], [(sums, output)], iterators, body)[0]
    return build.convert_elements(total, result_element)


def _batch_loops(value: ir.Value, batch_rank: int) -> list[ir.AffineExpr]:
    own = value.type.rank - 2
    return [
        build.affine_constant(0) if value.type.shape[axis] == 1 else build.loop(batch_rank - own + axis)
        for axis in range(own)
    ]


def _batch_size(lhs: ir.Value, rhs: ir.Value, axis: int, batch_rank: int) -> build.Size:
    sizes: list[build.Size] = []
    for value in (lhs, rhs):
        own = axis - (batch_rank - (value.type.rank - 2))
        if own >= 0 and value.type.shape[own] != 1:
            sizes.append(build.size_of(value, own))
    static = [size for size in sizes if isinstance(size, int)]
    return static[0] if static else sizes[0] if sizes else 1
