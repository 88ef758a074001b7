"""LpPool and MaxUnpool, and the places of a MaxPool."""

from __future__ import annotations

import math
from collections.abc import Sequence

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
    begins, ends = _sides(b, image)
    operand = b.input(0)
    if begins != ends:  # the conversion pads before it pools, and counts in what it padded
        kind = b.numpy_dtype(operand)
        lowest = -np.inf if kind.kind == "f" else np.iinfo(kind).min
        pads = b.constant([0, 0, *begins, 0, 0, *ends])
        operand = b.op("Pad", operand, pads, b.constant(lowest, kind))
        kept = {name: value for name, value in kept.items() if name not in ("pads", "auto_pad")}
    values, places = b.ops("MaxPool", [operand], 2, **kept)
    b.nodes[-1].metadata_props.add(key=_WITHIN_CHANNEL)
    if begins != ends:
        places = _without_padding(b, places, image, begins, ends)
    first = np.arange(batch * channels).reshape(batch, channels, *[1] * len(image)) * math.prod(image)
    b.give(values)
    b.give(b.op("Add", places, b.constant(first)), 1)


def _sides(b: Rewriter, image: Sequence[int]) -> tuple[list[int], list[int]]:
    """The padding before and behind each spatial dim."""
    rank = len(image)
    automatic = b.attribute("auto_pad", "NOTSET")
    if automatic == "NOTSET":
        pads = b.attribute("pads", [0] * (2 * rank))
        return pads[:rank], pads[rank:]
    if automatic == "VALID":
        return [0] * rank, [0] * rank
    strides, dilations = b.attribute("strides", [1] * rank), b.attribute("dilations", [1] * rank)
    kernel = b.attribute("kernel_shape", [])
    less: list[int] = []
    more: list[int] = []
    for extent, stride, dilation, size in zip(image, strides, dilations, kernel, strict=True):
        total = max((-(-extent // stride) - 1) * stride + (size - 1) * dilation + 1 - extent, 0)
        less.append(total // 2)
        more.append(total - total // 2)
    return (less, more) if automatic == "SAME_UPPER" else (more, less)


def _without_padding(b: Rewriter, places: str, image: Sequence[int], begins: Sequence[int], ends: Sequence[int]) -> str:
    """Places in a padded image as places in the image: taken apart by dim, and put together again."""
    padded = [begin + extent + end for begin, extent, end in zip(begins, image, ends, strict=True)]
    found = b.constant(0)
    for axis, begin in enumerate(begins):
        at = b.op("Div", places, b.constant(math.prod(padded[axis + 1 :])))
        at = b.op("Sub", b.op("Mod", at, b.constant(padded[axis])), b.constant(begin))
        found = b.op("Add", found, b.op("Mul", at, b.constant(math.prod(image[axis + 1 :]))))
    return found


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
