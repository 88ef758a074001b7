"""Kernels that Triton compiles to the instructions of Hopper: wgmma, the TMA unit, warps with tasks of their own."""

from __future__ import annotations

import triton
import triton.language as tl

# ruff: noqa: N803 - constants of Triton are capitals
# pyright: basic, reportArgumentType=false, reportOperatorIssue=false, reportIndexIssue=false, reportGeneralTypeIssues=false


@triton.jit
def described_matmul(a, b, c, m, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """c = a b of tensors that the host describes."""
    row, column = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, k, BLOCK_K):
        total = tl.dot(a.load([row, start]), b.load([start, column]), total)
    c.store([row, column], total.to(c.dtype))


@triton.jit
def describing_matmul(a, b, c, m, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """c = a b of tensors that the kernel describes itself."""
    row, column = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    left = tl.make_tensor_descriptor(a, [m, k], [k, 1], [BLOCK_M, BLOCK_K])
    right = tl.make_tensor_descriptor(b, [k, n], [n, 1], [BLOCK_K, BLOCK_N])
    result = tl.make_tensor_descriptor(c, [m, n], [n, 1], [BLOCK_M, BLOCK_N])
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, k, BLOCK_K):
        total = tl.dot(left.load([row, start]), right.load([start, column]), total)
    result.store([row, column], total.to(c.dtype.element_ty))


@triton.jit
def persistent_matmul(
    a, b, c, m, n, k, blocks,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, TASKS: tl.constexpr,
):  # fmt: skip
    """c = a b, several tiles for each block; with TASKS, some warps load and others multiply."""
    across = tl.cdiv(n, BLOCK_N)
    tiles = tl.cdiv(m, BLOCK_M) * across
    for tile in tl.range(tl.program_id(0), tiles, blocks, flatten=not TASKS, warp_specialize=TASKS):
        row, column = tile // across * BLOCK_M, tile % across * BLOCK_N
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for start in range(0, k, BLOCK_K):
            total = tl.dot(a.load([row, start]), b.load([start, column]), total)
        c.store([row, column], total.to(c.dtype))


@triton.jit
def tasks_matmul(a, b, c, m, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """c = a b, one tile for each block; some warps load and others multiply."""
    row, column = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in tl.range(0, k, BLOCK_K, warp_specialize=True):
        total = tl.dot(a.load([row, start]), b.load([start, column]), total)
    c.store([row, column], total.to(c.dtype))


@triton.jit
def copied(x, y, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """y = 2 x: one box there and back; zeros come from outside of x, and nothing goes outside of y."""
    row, column = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    value = x.load([row, column])
    y.store([row, column], (value + value).to(y.dtype))


@triton.jit
def combined(x, y, m, n, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HOW: tl.constexpr):
    """y is combined with x, atomically."""
    row, column = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    value = x.load([row, column])
    if HOW == "add":
        y.atomic_add([row, column], value)
    elif HOW == "min":
        y.atomic_min([row, column], value)
    elif HOW == "max":
        y.atomic_max([row, column], value)
    elif HOW == "and":
        y.atomic_and([row, column], value)
    elif HOW == "or":
        y.atomic_or([row, column], value)
    else:
        y.atomic_xor([row, column], value)


@triton.jit
def rows_of_many(x, y, sizes, count, width, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """y = x + 1 for ``count`` matrices of ``width`` columns below each other: described anew, each in its turn."""
    start = 0
    for number in range(count):
        rows = tl.load(sizes + number)
        here = tl.make_tensor_descriptor(x + start * width, [rows, width], [width, 1], [BLOCK_M, BLOCK_N])
        there = tl.make_tensor_descriptor(y + start * width, [rows, width], [width, 1], [BLOCK_M, BLOCK_N])
        for at in range(0, rows, BLOCK_M):
            there.store([at, 0], here.load([at, 0]) + 1)
        start += rows


@triton.jit
def described_attention(
    q, k, v, out, length,
    SCALE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr, TASKS: tl.constexpr,
):  # fmt: skip
    """Attention of one head, whose tensors the host describes."""
    row = tl.program_id(0) * BLOCK_M
    query = q.load([row, 0])
    top = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    weight = tl.zeros((BLOCK_M,), tl.float32)
    total = tl.zeros((BLOCK_M, WIDTH), tl.float32)
    for start in tl.range(0, length, BLOCK_N, warp_specialize=TASKS):
        score = tl.dot(query, k.load([start, 0]).T) * SCALE
        score = tl.where((start + tl.arange(0, BLOCK_N))[None] < length, score, -float("inf"))
        new_top = tl.maximum(top, tl.max(score, 1))
        power = tl.exp(score - new_top[:, None])
        shrink = tl.exp(top - new_top)
        weight = weight * shrink + tl.sum(power, 1)
        total = tl.dot(power.to(q.dtype), v.load([start, 0]), total * shrink[:, None])
        top = new_top
    out.store([row, 0], (total / weight[:, None]).to(out.dtype))


@triton.jit
def transposed_matmul(a, b, c, m, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """c = a^T b^T."""
    row, column = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, k, BLOCK_K):
        total = tl.dot(a.load([start, row]).T, b.load([column, start]).T, total)
    c.store([row, column], total.to(c.dtype))


@triton.jit
def quantized_matmul(a, b, c, m, n, k, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """c = a b; a has integers of 8 bits, which become bf16 in registers."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, k, BLOCK_K):
        at = start + tl.arange(0, BLOCK_K)
        x = tl.load(a + rows[:, None] * k + at[None], mask=(rows[:, None] < m) & (at[None] < k), other=0)
        y = tl.load(b + at[:, None] * n + columns[None], mask=(at[:, None] < k) & (columns[None] < n), other=0.0)
        total = tl.dot(x.to(tl.bfloat16), y, total)
    tl.store(c + rows[:, None] * n + columns[None], total, mask=(rows[:, None] < m) & (columns[None] < n))
