"""Kernels that join several of the others' means, as one writes them in Triton."""

from __future__ import annotations

import triton
import triton.language as tl

# ruff: noqa: N803 - constants of Triton are capitals
# pyright: basic, reportArgumentType=false, reportOperatorIssue=false, reportIndexIssue=false, reportGeneralTypeIssues=false


@triton.jit
def persistent_matmul(
    a, b, c, m, n, k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    """Sizes are multiples of the blocks; a block of threads makes every BLOCKS-th tile."""
    across = tl.cdiv(n, BLOCK_N)
    for tile in tl.range(tl.program_id(0), tl.cdiv(m, BLOCK_M) * across, BLOCKS, flatten=True):
        rows = tile // across * BLOCK_M + tl.arange(0, BLOCK_M)
        columns = tile % across * BLOCK_N + tl.arange(0, BLOCK_N)
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for start in range(0, k, BLOCK_K):
            inner = start + tl.arange(0, BLOCK_K)
            x = tl.load(a + rows[:, None] * k + inner[None, :])
            total = tl.dot(x, tl.load(b + inner[:, None] * n + columns[None, :]), total)
        tl.store(c + rows[:, None] * n + columns[None, :], total.to(c.dtype.element_ty))


@triton.jit
def four_bit_matmul(
    a, codes, scales, c, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):  # fmt: skip
    """The weights are two to a byte, code - 8 times the scale of their column."""
    rows = tl.arange(0, BLOCK_M)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, k, BLOCK_K):
        inner = start + tl.arange(0, BLOCK_K)
        x = tl.load(a + rows[:, None] * k + inner[None, :])
        packed = tl.load(codes + (inner[:, None] // 2) * n + columns[None, :])
        weight = ((packed >> ((inner[:, None] % 2) * 4)) & 15).to(tl.int32) - 8
        total = tl.dot(x, (weight.to(tl.float32) * tl.load(scales + columns)[None, :]).to(x.dtype), total)
    tl.store(c + rows[:, None] * n + columns[None, :], total)


@triton.jit
def split_matmul(
    a, b, c, n, k, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr, PARTS: tl.constexpr
):  # fmt: skip
    """Every part of k is added to c by an atomic."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(tl.program_id(2) * BLOCK_K, k, BLOCK_K * PARTS):
        inner = start + tl.arange(0, BLOCK_K)
        x = tl.load(a + rows[:, None] * k + inner[None, :])
        total = tl.dot(x, tl.load(b + inner[:, None] * n + columns[None, :]), total)
    tl.atomic_add(c + rows[:, None] * n + columns[None, :], total, sem="relaxed")


@triton.jit
def _larger(a, i, b, j):
    first = a > b
    return tl.where(first, a, b), tl.where(first, i, j)


@triton.jit
def largest_with_places(x, largest, places, N: tl.constexpr):
    """Running maxima and their places; behind them those of all."""
    at = tl.arange(0, N)
    value, place = tl.associative_scan((tl.load(x + at), at), 0, _larger)
    tl.store(largest + at, value)
    tl.store(places + at, place)
    value, place = tl.reduce((tl.load(x + at), at), 0, _larger)
    tl.store(largest + N, value)
    tl.store(places + N, place)


@triton.jit
def shuffled(x, y, out, difference, N: tl.constexpr):
    """Interleaved and turned around, the running products of that, and the differences of its pairs."""
    at = tl.arange(0, N)
    both = tl.flip(tl.interleave(tl.load(x + at), tl.load(y + at)))
    tl.store(out + tl.arange(0, 2 * N), tl.cumprod(both, 0))
    left, right = tl.split(tl.reshape(both, (N, 2)))
    tl.store(difference + at, left - right)


@triton.jit
def steps_to_one(x, out):
    value = tl.load(x + tl.program_id(0))
    count = 0
    while value > 1:
        if value % 2 == 0:
            value = value // 2
        else:
            value = 3 * value + 1
        count += 1
    tl.store(out + tl.program_id(0), count)


@triton.jit
def clamped(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.clamp(tl.load(x + at), -0.5, 0.5))


@triton.jit
def wide_atomics(x, out, N: tl.constexpr):
    """Neighbours of 64 bits: sum, largest, smallest."""
    at = tl.arange(0, N)
    value = tl.load(x + at)
    tl.atomic_add(out + at * 0, value)
    tl.atomic_max(out + at * 0 + 1, value)
    tl.atomic_min(out + at * 0 + 2, value)


@triton.jit
def contiguous_add(x, out, n, BLOCK: tl.constexpr):
    """Neighbours add to neighbours: vectors of atomics where the card has them."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out + at, tl.load(x + at, mask=at < n, other=0.0), mask=at < n)


@triton.jit
def batched_matmul(x, y, out, BATCH: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, BATCH)[:, None, None]
    j = tl.arange(0, N)[None, :, None]
    k = tl.arange(0, N)[None, None, :]
    at = i * N * N + j * N + k
    tl.store(out + at, tl.dot(tl.load(x + at), tl.load(y + at)))
