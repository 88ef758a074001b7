"""DeformConv: a convolution whose taps are read at computed places."""

from __future__ import annotations

import math

import numpy as np

from lowerkit.capture.onnx.rewrites.interpolation import Sampling, sample
from lowerkit.capture.onnx.rewrites.rewriter import NoRewriteError, Rewriter


def deform_conv(b: Rewriter) -> None:
    """Writes a DeformConv over two dims: bilinear reads make columns, a matrix product takes them together."""
    x, weight = b.shape(b.input(0)), b.shape(b.input(1))
    if len(x) != 4:
        raise NoRewriteError("other than two dims")
    kernel = weight[2:]
    taps = math.prod(kernel)
    strides, dilations = b.attribute("strides", [1, 1]), b.attribute("dilations", [1, 1])
    pads, groups = b.attribute("pads", [0, 0, 0, 0]), b.attribute("group", 1)
    parts = b.attribute("offset_group", 1)
    offsets = b.shape(b.input(2))
    out = offsets[2:]
    positions = math.prod(out)
    moves = b.reshape(b.input(2), (x[0], parts, taps, 2, positions))
    columns: list[str] = []
    for part in range(parts):
        width = x[1] // parts
        image = b.named_slice(b.input(0), 1, part * width, (part + 1) * width)
        places: list[str] = []
        for axis in range(2):
            steps = np.arange(out[axis]) * strides[axis] - pads[axis]
            grid = steps.reshape([-1 if index == axis else 1 for index in range(2)])
            grid = np.broadcast_to(grid, out).reshape(1, positions)
            kernel_steps = np.indices(kernel)[axis].reshape(taps, 1) * dilations[axis]
            fixed = b.constant((grid + kernel_steps).reshape(1, -1), b.numpy_dtype(b.input(0)))
            move = b.gather(b.gather(moves, part, 1), axis, 2)
            places.append(b.op("Add", b.reshape(move, (x[0], taps * positions)), fixed))
        read = sample(b, image, places, taps * positions, Sampling("linear", "zeros"))
        if b.input(4):
            mask = b.gather(b.reshape(b.input(4), (x[0], parts, taps * positions)), part, 1)
            read = b.op("Mul", read, b.unsqueeze(mask, [1]))
        columns.append(read)
    joined = columns[0] if parts == 1 else b.op("Concat", *columns, axis=1)
    inner = x[1] // groups * taps
    joined = b.reshape(joined, (x[0], groups, inner, positions))
    matrix = b.reshape(b.input(1), (1, groups, weight[0] // groups, inner))
    result = b.reshape(b.op("MatMul", matrix, joined), (x[0], weight[0], *out))
    if b.input(3):
        result = b.op("Add", result, b.reshape(b.input(3), (1, weight[0], 1, 1)))
    b.give(result)
