"""Kernels around products of matrices, as one writes them in Triton."""

from __future__ import annotations

import triton
import triton.language as tl

# ruff: noqa: N803 - constants of Triton are capitals
# pyright: basic, reportArgumentType=false, reportOperatorIssue=false, reportIndexIssue=false


@triton.jit
def matmul(
    a, b, c, m, n, k, stride_a, stride_b, stride_c,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, ACCUMULATOR: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=ACCUMULATOR)
    for start in range(0, k, BLOCK_K):
        at = start + inner
        x = tl.load(a + rows[:, None] * stride_a + at[None, :], mask=(rows[:, None] < m) & (at[None, :] < k), other=0.0)
        y = tl.load(
            b + at[:, None] * stride_b + columns[None, :], mask=(at[:, None] < k) & (columns[None, :] < n), other=0.0
        )
        total = tl.dot(x, y, total, input_precision=PRECISION, out_dtype=ACCUMULATOR)
    tl.store(
        c + rows[:, None] * stride_c + columns[None, :],
        total.to(c.dtype.element_ty),
        mask=(rows[:, None] < m) & (columns[None, :] < n),
    )


@triton.jit
def matmul_transposed(a, b, c, n, k, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr):
    """c = a b^T, sizes that are multiples of the blocks; b is read along its rows."""
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inner = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(0, k, BLOCK_K):
        x = tl.load(a + rows[:, None] * k + (start + inner)[None, :])
        y = tl.load(b + columns[:, None] * k + (start + inner)[None, :])
        total = tl.dot(x, tl.trans(y), total)
    tl.store(c + rows[:, None] * n + columns[None, :], total.to(c.dtype.element_ty))


@triton.jit
def attention(
    q, k, v, out, length, scale,
    CAUSAL: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    head = tl.program_id(1) * length * WIDTH
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    features = tl.arange(0, WIDTH)
    query = tl.load(q + head + rows[:, None] * WIDTH + features[None, :], mask=rows[:, None] < length, other=0.0)
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    weight = tl.zeros((BLOCK_M,), tl.float32)
    total = tl.zeros((BLOCK_M, WIDTH), tl.float32)
    end = tl.minimum(length, (tl.program_id(0) + 1) * BLOCK_M) if CAUSAL else length
    for start in range(0, end, BLOCK_N):
        at = start + tl.arange(0, BLOCK_N)
        inside = at < length
        keys = tl.load(k + head + at[:, None] * WIDTH + features[None, :], mask=inside[:, None], other=0.0)
        score = tl.dot(query, tl.trans(keys)) * scale
        allowed = inside[None, :]
        if CAUSAL:
            allowed = allowed & (at[None, :] <= rows[:, None])
        score = tl.where(allowed, score, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, 1))
        shrink = tl.exp2(top - new_top)
        power = tl.exp2(score - new_top[:, None])
        weight = weight * shrink + tl.sum(power, 1)
        value = tl.load(v + head + at[:, None] * WIDTH + features[None, :], mask=inside[:, None], other=0.0)
        total = total * shrink[:, None] + tl.dot(power.to(value.dtype), value)
        top = new_top
    total = total / weight[:, None]
    tl.store(
        out + head + rows[:, None] * WIDTH + features[None, :],
        total.to(out.dtype.element_ty),
        mask=rows[:, None] < length,
    )


@triton.jit
def convolution(
    x, w, out, batch, height, width, channels, filters,
    SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Of NHWC images with filters [SIZE, SIZE, channels, filters], padded to the same size, as one product."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    image = rows // (height * width)
    y = rows // width % height
    z = rows % width
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, SIZE * SIZE * channels, BLOCK_K):
        at = start + tl.arange(0, BLOCK_K)
        channel = at % channels
        tap = at // channels
        iy = y[:, None] + (tap // SIZE)[None, :] - SIZE // 2
        iz = z[:, None] + (tap % SIZE)[None, :] - SIZE // 2
        inside = (iy >= 0) & (iy < height) & (iz >= 0) & (iz < width) & (image[:, None] < batch)
        inside = inside & (tap < SIZE * SIZE)[None, :]
        source = ((image[:, None] * height + iy) * width + iz) * channels + channel[None, :]
        left = tl.load(x + source, mask=inside, other=0.0)
        right = tl.load(
            w + at[:, None] * filters + columns[None, :],
            mask=(tap < SIZE * SIZE)[:, None] & (columns < filters)[None, :],
            other=0.0,
        )
        total = tl.dot(left, right, total)
    tl.store(
        out + rows[:, None] * filters + columns[None, :],
        total.to(out.dtype.element_ty),
        mask=(image < batch)[:, None] & (columns < filters)[None, :],
    )
