"""Texts of Triton kernels, among them those that order their blocks by themselves."""

# ruff: noqa: N803 - constants of Triton kernels are in capitals
# pyright: reportMissingParameterType=false, reportOperatorIssue=false, reportUnknownParameterType=false
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def softmax(x, o, n, B: tl.constexpr):
    """One row of n numbers for each block."""
    row, c = tl.program_id(0), tl.arange(0, B)
    v = tl.load(x + row * n + c, mask=c < n, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(o + row * n + c, e / tl.sum(e, 0), mask=c < n)


@triton.jit
def add(x, y, o, n, B: tl.constexpr):
    """B of n sums for each block."""
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(o + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)


@triton.jit
def matmul(a, b, c, m, n, k, tiles, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """A tile of M rows and N columns of c = a b for each block, row by row of ``tiles`` tiles."""
    row = tl.program_id(0) // tiles * M + tl.arange(0, M)
    column = tl.program_id(0) % tiles * N + tl.arange(0, N)
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, k, K):
        at = start + tl.arange(0, K)
        left = tl.load(a + row[:, None] * k + at[None], mask=(row[:, None] < m) & (at[None] < k), other=0.0)
        right = tl.load(b + at[:, None] * n + column[None], mask=(at[:, None] < k) & (column[None] < n), other=0.0)
        total = tl.dot(left, right, total)
    tl.store(c + row[:, None] * n + column[None], total, mask=(row[:, None] < m) & (column[None] < n))


@triton.jit
def split_sum(x, o, lock, n, B: tl.constexpr, LOCKED: tl.constexpr, ORDER: tl.constexpr):
    """o[B] += the B numbers of each block, one block after another by a lock: as GEMMs with split K do it."""
    i = tl.arange(0, B)
    v = tl.load(x + tl.program_id(0) * B + i)
    if LOCKED:
        while tl.atomic_cas(lock, 0, 1, sem=ORDER) == 1:
            pass
    tl.store(o + i, tl.load(o + i) + v)
    if LOCKED:
        tl.debug_barrier()
        tl.atomic_xchg(lock, 0, sem=ORDER)


@triton.jit
def last_block(x, parts, count, o, n, B: tl.constexpr, ORDER: tl.constexpr):
    """Each block writes its sum; the one that counts last adds them up."""
    block = tl.program_id(0)
    tl.store(parts + block, tl.sum(tl.load(x + block * B + tl.arange(0, B)), 0))
    tl.debug_barrier()
    if tl.atomic_add(count, 1, sem=ORDER) == n - 1:
        i = tl.arange(0, B)
        tl.store(o, tl.sum(tl.load(parts + i, mask=i < n, other=0.0), 0))


@triton.jit
def scan(x, o, sums, flags, n, B: tl.constexpr, ORDER: tl.constexpr):
    """Running sums over all blocks by decoupled look-back: 1 in flags says that a block's own sum is there, 2 the one
    with all before it."""
    block, i = tl.program_id(0), tl.arange(0, B)
    v = tl.load(x + block * B + i)
    own = tl.sum(v, 0)
    tl.store(sums + 2 * block, own)
    tl.debug_barrier()
    tl.atomic_xchg(flags + block, 1, sem=ORDER)
    before = 0.0
    at = block - 1
    while at >= 0:
        state = tl.atomic_add(flags + at, 0, sem=ORDER)
        while state == 0:
            state = tl.atomic_add(flags + at, 0, sem=ORDER)
        if state == 1:
            before += tl.load(sums + 2 * at)
            at -= 1
        else:
            before += tl.load(sums + 2 * at + 1)
            at = -1
    tl.store(sums + 2 * block + 1, before + own)
    tl.debug_barrier()
    tl.atomic_xchg(flags + block, 2, sem=ORDER)
    tl.store(o + block * B + i, tl.cumsum(v, 0) + before)
