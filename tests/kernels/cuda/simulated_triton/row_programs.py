"""Kernels that go along rows, as one writes them in Triton."""

from __future__ import annotations

import triton
import triton.language as tl

# ruff: noqa: N803 - constants of Triton are capitals
# pyright: basic, reportArgumentType=false, reportOperatorIssue=false, reportIndexIssue=false


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    value = tl.load(x + row * columns + at, mask=inside, other=float("-inf")).to(tl.float32)
    power = tl.exp(value - tl.max(value, 0))
    tl.store(out + row * columns + at, (power / tl.sum(power, 0)).to(out.dtype.element_ty), mask=inside)


@triton.jit
def layer_norm(x, weight, bias, out, columns, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < columns
    value = tl.load(x + row * columns + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(value, 0) / columns
    centred = tl.where(inside, value - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, 0) / columns + epsilon)
    w = tl.load(weight + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(bias + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * columns + at, (centred * scale * w + b).to(out.dtype.element_ty), mask=inside)


@triton.jit
def gelu(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=0.0).to(tl.float32)
    result = value * 0.5 * (1.0 + tl.math.erf(value * 0.7071067811865476))
    tl.store(out + at, result.to(out.dtype.element_ty), mask=at < n)


@triton.jit
def reductions(x, total, least, largest, place, ones, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Sum, least and largest value, place of the largest one, and whether there are odd ones (xor), of rows."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, BLOCK)
    inside = (at < columns)[None, :] & (rows >= 0)[:, None]
    where = rows[:, None] * columns + at[None, :]
    value = tl.load(x + where, mask=inside, other=0)
    low = tl.load(x + where, mask=inside, other=100)
    high = tl.load(x + where, mask=inside, other=-100)
    tl.store(total + rows, tl.sum(value, 1))
    tl.store(least + rows, tl.min(low, 1))
    tl.store(largest + rows, tl.max(high, 1))
    tl.store(place + rows, tl.argmax(high, 1))
    tl.store(ones + rows, tl.xor_sum(value.to(tl.int32), 1))


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def scans(x, total, largest, columns, BLOCK: tl.constexpr, REVERSED: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * columns + at, mask=at < columns, other=0.0)
    tl.store(total + row * columns + at, tl.cumsum(value, 0, reverse=REVERSED), mask=at < columns)
    tl.store(largest + row * columns + at, tl.associative_scan(value, 0, _larger), mask=at < columns)


@triton.jit
def sorts(x, ascending, descending, top, COLUMNS: tl.constexpr, TOP: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, COLUMNS)
    value = tl.load(x + row * COLUMNS + at)
    tl.store(ascending + row * COLUMNS + at, tl.sort(value))
    tl.store(descending + row * COLUMNS + at, tl.sort(value, descending=True))
    tl.store(top + row * TOP + tl.arange(0, TOP), tl.topk(value, TOP))
