"""Kernels whose places depend on data, as one writes them in Triton."""

from __future__ import annotations

import triton
import triton.language as tl

# ruff: noqa: N803 - constants of Triton are capitals
# pyright: basic, reportArgumentType=false, reportOperatorIssue=false, reportIndexIssue=false


@triton.jit
def gather_rows(table, rows, out, columns, BLOCK: tl.constexpr):
    row = tl.load(rows + tl.program_id(0))
    at = tl.arange(0, BLOCK)
    value = tl.load(table + row * columns + at, mask=at < columns, eviction_policy="evict_last")
    tl.store(out + tl.program_id(0) * columns + at, value, mask=at < columns, eviction_policy="evict_first")


@triton.jit
def gather_along(x, places, out, COLUMNS: tl.constexpr):
    at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(out + at, tl.gather(tl.load(x + at), tl.load(places + at), 0))


@triton.jit
def scatter_add(x, places, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = tl.load(places + at, mask=at < n, other=0)
    tl.atomic_add(out + place, tl.load(x + at, mask=at < n, other=0.0), mask=at < n)


@triton.jit
def atomics(values, out, n, BLOCK: tl.constexpr):
    """out: max, min, and, or, xor, exchange, add of integers; values are positive."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    value = tl.load(values + at, mask=inside, other=0)
    zero = at * 0
    tl.atomic_max(out + zero, value, mask=inside)
    tl.atomic_min(out + zero + 1, value, mask=inside)
    tl.atomic_and(out + zero + 2, value, mask=inside)
    tl.atomic_or(out + zero + 3, value, mask=inside)
    tl.atomic_xor(out + zero + 4, value, mask=inside)
    tl.atomic_add(out + zero + 5, value, mask=inside)
    tl.atomic_xchg(out + zero + 6, value, mask=inside)


@triton.jit
def float_extremes(values, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(values + at, mask=at < n, other=0.0)
    tl.atomic_max(out + at * 0, value, mask=at < n)
    tl.atomic_min(out + at * 0 + 1, value, mask=at < n)


@triton.jit
def locked_sum(x, lock, total, n, BLOCK: tl.constexpr):
    """Every block adds its sum under a lock that is taken by comparing and exchanging."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    part = tl.sum(tl.load(x + at, mask=at < n, other=0.0), 0)
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(total, tl.load(total) + part)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


@triton.jit
def histogram(x, out, n, BINS: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    counts = tl.histogram(tl.load(x + at, mask=at < n, other=0), BINS, mask=at < n)
    tl.atomic_add(out + tl.arange(0, BINS), counts)


@triton.jit
def transposed(x, out, rows, columns, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i[:, None] * columns + j[None, :], mask=(i < rows)[:, None] & (j < columns)[None, :])
    inside = (j < columns)[:, None] & (i < rows)[None, :]
    tl.store(out + j[:, None] * rows + i[None, :], tl.trans(value), mask=inside)
