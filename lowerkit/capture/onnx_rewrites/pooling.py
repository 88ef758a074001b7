"""LpPool and MaxUnpool, and the places of a MaxPool."""

from __future__ import annotations

import math

import numpy as np

from lowerkit.capture.onnx_rewrites.rewriter import NoRewriteError, Rewriter
from lowerkit.errors import UnsupportedError

_WITHIN_CHANNEL = "lowerkit.within_channel"
"""Marks a MaxPool whose places count within a channel, as PyTorch's do."""


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


def max_pool_places(b: Rewriter) -> None:
    """Counts the places of a MaxPool through the whole tensor: the conversion counts within a channel.

    Raises:
        UnsupportedError: LK4001, the extents that they count through are not static.
    """
    if not b.output(1) or any(entry.key == _WITHIN_CHANNEL for entry in b.node.metadata_props):
        raise NoRewriteError("nobody wants them, or they are counted")
    try:
        batch, channels, *image = b.shape(b.input(0))
    except NoRewriteError as error:
        raise UnsupportedError(
            "LK4001",
            f"the places that MaxPool gives count through extents that are not static: {error}",
            op="MaxPool",
            hint="give the inputs fixed shapes with --input NAME:SHAPE",
        ) from error
    kept = {attribute.name: b.attribute(attribute.name, None) for attribute in b.node.attribute}
    values, places = b.ops("MaxPool", [b.input(0)], 2, **kept)
    b.nodes[-1].metadata_props.add(key=_WITHIN_CHANNEL)
    first = np.arange(batch * channels).reshape(batch, channels, *[1] * len(image)) * math.prod(image)
    b.give(values)
    b.give(b.op("Add", places, b.constant(first)), 1)


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
