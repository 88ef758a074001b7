"""Ops that move elements to places known at compile time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lowerkit.capture.onnx.rewrites.rewriter import NoRewriteError, Rewriter

Array = np.ndarray[Any, Any]
MOST_ELEMENTS = 1 << 22
"""Elements of a constant matrix at most."""


def col2im(b: Rewriter) -> None:
    """Writes a Col2Im as a product with the constant matrix that says which column adds to which pixel."""
    image, block = b.integers(b.input(1)), b.integers(b.input(2))
    rank = len(image)
    dilations, strides = b.attribute("dilations", [1] * rank), b.attribute("strides", [1] * rank)
    pads = b.attribute("pads", [0] * (2 * rank))
    counts = [
        (image[axis] + pads[axis] + pads[rank + axis] - dilations[axis] * (block[axis] - 1) - 1) // strides[axis] + 1
        for axis in range(rank)
    ]
    rows, pixels = math.prod(block) * math.prod(counts), math.prod(image)
    if rows * pixels > MOST_ELEMENTS:
        raise NoRewriteError(f"a matrix of {rows} x {pixels}")
    places = np.indices((*block, *counts)).reshape(2 * rank, -1)
    inside = np.ones(rows, np.bool_)
    flat = np.zeros(rows, np.int64)
    for axis in range(rank):
        at = places[rank + axis] * strides[axis] - pads[axis] + places[axis] * dilations[axis]
        inside &= (at >= 0) & (at < image[axis])
        flat = flat * image[axis] + at
    matrix = np.zeros((rows, pixels))
    matrix[np.flatnonzero(inside), flat[inside]] = 1.0
    batch, channels, _ = b.shape(b.input(0))
    channels //= math.prod(block)
    columns = b.reshape(b.input(0), (batch, channels, rows))
    product = b.op("MatMul", columns, b.constant(matrix, b.numpy_dtype(b.input(0))))
    b.give(b.reshape(product, (batch, channels, *image)))


def tensor_scatter(b: Rewriter) -> None:
    """Writes a TensorScatter: each position of the cache takes the update that is written there, or stays."""
    cache, update = b.shape(b.input(0)), b.shape(b.input(1))
    axis = b.attribute("axis", -2) % len(cache)
    length, written = cache[axis], update[axis]
    relative = b.constant(np.arange(length)[None, :])
    if b.input(2):
        relative = b.op("Sub", relative, b.unsqueeze(b.input(2), [1]))
    if b.attribute("mode", "linear") == "circular":
        relative = b.op("Mod", relative, b.constant(length))
    rows = cache[0] if b.input(2) else 1
    relative = b.reshape(relative, [rows, *[length if index == axis else 1 for index in range(1, len(cache))]])
    inside = b.op("And", b.op("GreaterOrEqual", relative, b.constant(0)), b.op("Less", relative, b.constant(written)))
    places = b.op("Max", b.op("Min", relative, b.constant(written - 1)), b.constant(0))
    found = b.look_up(b.input(1), b.op("Expand", places, b.constant(cache)), axis)
    b.give(b.op("Where", inside, found, b.input(0)))


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
