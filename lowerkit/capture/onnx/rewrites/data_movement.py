"""Ops that move elements to places known at compile time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lowerkit.capture.onnx.rewrites.rewriter import NoRewriteError, Rewriter

Array = np.ndarray[Any, Any]
MOST_ELEMENTS = 1 << 22
"""Elements of a constant matrix at most."""


def backward_slice(b: Rewriter) -> None:
    """Writes a Slice with a negative step as gathers of constant positions."""
    shape = b.shape(b.input(0))
    starts, ends = b.integers(b.input(1)), b.integers(b.input(2))
    axes = b.integers(b.input(3)) if b.input(3) else list(range(len(starts)))
    steps = b.integers(b.input(4)) if b.input(4) else [1] * len(starts)
    if all(step > 0 for step in steps):
        raise NoRewriteError("forward steps")
    value = b.input(0)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        value = b.gather(value, _taken(shape[axis], start, end, step), axis % len(shape))
    b.give(value)


def _taken(extent: int, start: int, end: int, step: int) -> Array:
    """The positions of a slice; a backward one that starts before the first element takes that, unlike Python's."""
    if step > 0 or extent == 0:
        return np.arange(extent)[slice(start, end, step)]
    first = min(max(start + extent if start < 0 else start, 0), extent - 1)
    last = min(max(end + extent if end < 0 else end, -1), extent - 1)
    return np.arange(first, last, step)


def depth_to_space(b: Rewriter) -> None:
    """Writes a DepthToSpace of "CRD" as one of "DCR" of channels in another order; height and width may be symbolic.

    torch-mlir takes the blocks of "CRD" for channels: right only where there are as many of one as of the other.
    """
    if b.attribute("mode", "DCR") == "DCR":
        raise NoRewriteError("the conversion is right")
    size = b.attribute("blocksize", 1)
    order = np.arange(b.extent(b.input(0), 1)).reshape(-1, size * size).T
    reordered = b.gather(b.input(0), order.reshape(-1), 1)
    b.give(b.op("DepthToSpace", reordered, blocksize=size, mode="DCR"))


def space_to_depth(b: Rewriter) -> None:
    """Writes a SpaceToDepth in either order of the channels."""
    batch, channels, height, width = b.shape(b.input(0))
    size = b.attribute("blocksize", 1)
    order = (0, 1, 3, 5, 2, 4) if b.attribute("mode", "DCR") == "CRD" else (0, 3, 5, 1, 2, 4)
    blocks = b.reshape(b.input(0), (batch, channels, height // size, size, width // size, size))
    b.give(b.reshape(b.transpose(blocks, order), (batch, channels * size**2, height // size, width // size)))


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
