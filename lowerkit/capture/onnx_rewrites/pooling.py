"""LpPool and MaxUnpool."""

from __future__ import annotations

import math

import numpy as np

from lowerkit.capture.onnx_rewrites.rewriter import NoRewriteError, Rewriter


def lp_pool(b: Rewriter) -> None:
    """Writes an LpPool as a mean of powers, times the elements of a window."""
    kernel = b.attribute("kernel_shape", [])
    if b.attribute("ceil_mode", 0):
        raise NoRewriteError("windows that reach over the end")
    p = b.attribute("p", 2)
    kept = {
        name: b.attribute(name, None)
        for name in ("auto_pad", "pads", "strides", "dilations")
        if b.attribute(name, None) is not None
    }
    if b.version < 19 and any(dilation != 1 for dilation in kept.pop("dilations", [])):
        raise NoRewriteError("dilations")
    x = b.input(0)
    powers = b.op("Mul", x, x) if p == 2 else b.op("Pow", b.op("Abs", x), b.scalar(p, x))
    mean = b.op("AveragePool", powers, kernel_shape=kernel, count_include_pad=1, **kept)
    total = b.op("Mul", mean, b.scalar(math.prod(kernel), x))
    b.give(b.op("Sqrt", total) if p == 2 else b.op("Pow", total, b.scalar(1.0 / p, x)))


def max_unpool(b: Rewriter) -> None:
    """Writes a MaxUnpool as a scatter into zeros; the indices count through the whole unpooled tensor."""
    shape = b.shape(b.input(0))
    rank = len(shape) - 2
    kernel = b.attribute("kernel_shape", [])
    strides, pads = b.attribute("strides", [1] * rank), b.attribute("pads", [0] * (2 * rank))
    natural = [
        (shape[2 + axis] - 1) * strides[axis] + kernel[axis] - pads[axis] - pads[rank + axis] for axis in range(rank)
    ]
    full = (*shape[:2], *natural)
    zeros = b.constant(np.zeros(math.prod(full)), b.numpy_dtype(b.input(0)))
    flat = (math.prod(shape),)
    value = b.op("ScatterElements", zeros, b.reshape(b.input(1), flat), b.reshape(b.input(0), flat), axis=0)
    value = b.reshape(value, full)
    if b.input(2):
        wanted = b.integers(b.input(2))
        grown = [size - extent for size, extent in zip(wanted, full, strict=True)]
        value = b.op("Pad", value, b.constant([*[0] * len(full), *grown]))
    b.give(value)
