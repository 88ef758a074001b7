"""Kernels that compute element by element, as one writes them in Triton."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

# ruff: noqa: N803 - constants of Triton are capitals
# pyright: basic, reportArgumentType=false, reportOperatorIssue=false, reportIndexIssue=false


@triton.jit
def one_operand(x, out, n, NAME: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=1.0)
    result = value
    if NAME == "sin":
        result = libdevice.sin(value)
    elif NAME == "cos":
        result = libdevice.cos(value)
    elif NAME == "tan":
        result = libdevice.tan(value)
    elif NAME == "tanh":
        result = libdevice.tanh(value)
    elif NAME == "exp":
        result = libdevice.exp(value)
    elif NAME == "expm1":
        result = libdevice.expm1(value)
    elif NAME == "log":
        result = libdevice.log(value)
    elif NAME == "log1p":
        result = libdevice.log1p(value)
    elif NAME == "log2":
        result = libdevice.log2(value)
    elif NAME == "erf":
        result = libdevice.erf(value)
    elif NAME == "lgamma":
        result = libdevice.lgamma(value)
    elif NAME == "atan":
        result = libdevice.atan(value)
    elif NAME == "asin":
        result = libdevice.asin(value)
    elif NAME == "sinh":
        result = libdevice.sinh(value)
    elif NAME == "cbrt":
        result = libdevice.cbrt(value)
    elif NAME == "rsqrt":
        result = libdevice.rsqrt(value)
    elif NAME == "floor":
        result = libdevice.floor(value)
    elif NAME == "round":
        result = libdevice.nearbyint(value)
    elif NAME == "sqrt":
        result = libdevice.sqrt_rn(value)
    tl.store(out + at, result, mask=at < n)


@triton.jit
def fast_functions(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n, other=1.0)
    result = tl.exp(value) + tl.log(value) + tl.sin(value) + tl.cos(value) + tl.sqrt(value) + tl.rsqrt(value)
    tl.store(out + at, result + 1.0 / value, mask=at < n)


@triton.jit
def two_operands(x, y, out, n, NAME: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + at, mask=at < n, other=1.0)
    b = tl.load(y + at, mask=at < n, other=1.0)
    result = a
    if NAME == "pow":
        result = libdevice.pow(a, b)
    elif NAME == "atan2":
        result = libdevice.atan2(a, b)
    elif NAME == "fmod":
        result = libdevice.fmod(a, b)
    elif NAME == "divide":
        result = libdevice.div_rn(a, b)
    elif NAME == "fma":
        result = tl.fma(a, b, a)
    elif NAME == "maximum":
        result = tl.maximum(a, b)
    tl.store(out + at, result, mask=at < n)


@triton.jit
def arithmetic(x, y, out, n, BLOCK: tl.constexpr):
    """In the type of the operands: sum, product, difference, maximum, comparison."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + at, mask=at < n, other=1.0)
    b = tl.load(y + at, mask=at < n, other=1.0)
    tl.store(out + at, tl.where(a < b, a * b + a, tl.maximum(a, b) - tl.abs(a)), mask=at < n)


@triton.jit
def integers(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + at, mask=at < n, other=1)
    b = tl.load(y + at, mask=at < n, other=1)
    shift = (b & 7).to(a.dtype)
    tl.store(out + at, (a // b) * 3 + (a % b) + (a >> shift) - (a << shift) + (a ^ b) + tl.umulhi(a, b), mask=at < n)


@triton.jit
def converted(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n, other=0.0).to(out.dtype.element_ty), mask=at < n)


@triton.jit
def dropout(x, out, n, probability, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = tl.rand(seed, at) > probability
    value = tl.load(x + at, mask=at < n, other=0.0)
    tl.store(out + at, tl.where(keep, value / (1 - probability), 0.0), mask=at < n)
