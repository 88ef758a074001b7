"""LpPool and MaxUnpool, the places of a MaxPool, and means of windows that reach over the end."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from lowerkit.capture.onnx.rewrites.rewriter import NoRewriteError, Rewriter, is_float, require_static

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


def average_pool(b: Rewriter) -> None:
    """Writes an AveragePool that rounds up as one of full windows over a padded input, times what each leaves out.

    Bounds are those of ONNX Runtime and of the standard from opset 22 on: a window that begins behind the input and
    the padding before it is none, and what lies behind the padding never counts. torch-mlir's conversion puts half of
    the reach over the end in front.

    Raises:
        UnsupportedError: LK4001, the spatial extents are not static.
    """
    _require_sides(b)
    if not b.attribute("ceil_mode", 0):
        _padded_before(b)
        return
    if b.attribute("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise NoRewriteError("as many windows as strides, none over the end")
    kernel: list[int] = b.attribute("kernel_shape", [])
    ones, x = [1] * len(kernel), b.input(0)
    strides, dilations = b.attribute("strides", ones), b.attribute("dilations", ones)
    image = require_static(b, "the windows of AveragePool", [2 + axis for axis in range(len(kernel))])
    begins, behinds = _sides(b, image)
    ends: list[int] = []
    counts = np.ones((), np.int64)
    include = b.attribute("count_include_pad", 0)
    sizes = zip(kernel, strides, dilations, image, begins, behinds, strict=True)
    for size, stride, dilation, extent, begin, behind in sizes:
        whole = begin + extent + behind
        windows, end = _rounded_up(extent, begin, behind, (size - 1) * dilation + 1, stride)
        ends.append(end)
        taps = np.arange(windows)[:, None] * stride + np.arange(size) * dilation
        counted = taps < whole if include else (taps >= begin) & (taps < begin + extent)
        counts = np.multiply.outer(counts, counted.sum(1))
    dtype = b.dtype(x)
    narrow = dtype in (TensorProto.FLOAT16, TensorProto.BFLOAT16)
    wide = b.cast(x, TensorProto.FLOAT) if narrow else x
    pads = b.constant([0, 0, *begins, 0, 0, *ends])
    kind = np.float64 if dtype == TensorProto.DOUBLE else np.float32
    padded = b.op("Pad", wide, pads, b.constant(0, kind)) if any((*begins, *ends)) else wide
    means = b.op("AveragePool", padded, kernel_shape=kernel, strides=strides, **_dilated(b, dilations))
    with np.errstate(divide="ignore"):  # a window that lies in the padding gives 0 / 0
        factors = math.prod(kernel) / counts[None, None]
    if (factors != 1).any():
        means = b.op("Mul", means, b.constant(factors, kind))
    b.give(b.cast(means, dtype) if narrow else means)


def _padded_before(b: Rewriter) -> None:
    """Pads before an AveragePool of dilated windows that counts its padding: the conversion forgets some of that."""
    dilations, pads = b.attribute("dilations", []), b.attribute("pads", [])
    counted = b.attribute("count_include_pad", 0) and any(pads)
    if not counted or all(dilation == 1 for dilation in dilations):
        raise NoRewriteError("the conversion is right")
    count = len(pads) // 2
    given = b.constant([0, 0, *pads[:count], 0, 0, *pads[count:]])
    padded = b.op("Pad", b.input(0), given, b.scalar(0.0, b.input(0)))
    kept = {entry.name: b.attribute(entry.name, None) for entry in b.node.attribute if entry.name != "pads"}
    b.give(b.op("AveragePool", padded, **kept))


def _rounded_up(extent: int, begin: int, behind: int, reach: int, stride: int) -> tuple[int, int]:
    """How many windows there are, and how far they reach behind the input."""
    windows = -((reach - begin - extent - behind) // stride) + 1
    if (windows - 1) * stride >= begin + extent:
        windows -= 1
    return windows, max((windows - 1) * stride + reach - begin - extent, 0)


def _dilated(b: Rewriter, dilations: list[int]) -> dict[str, list[int]]:
    """An AveragePool knows dilations from opset 19 on."""
    return {"dilations": dilations} if b.version >= 19 else {}


def max_pool(b: Rewriter) -> None:
    """Pads before a MaxPool of uneven padding, and counts its places through the whole tensor.

    The conversion pads before it pools too, but counts in what it padded, within a channel; where the number of
    windows is rounded up, it puts half of the reach over the end in front.

    Raises:
        UnsupportedError: LK4001, the extents that they count through are not static.
    """
    if any(entry.key == _WITHIN_CHANNEL for entry in b.node.metadata_props):
        raise NoRewriteError("the places are counted")
    _require_sides(b)
    kept = {attribute.name: b.attribute(attribute.name, None) for attribute in b.node.attribute}
    rank = b.rank(b.input(0)) - 2
    pads = b.attribute("pads", [0] * (2 * rank))
    rounds_up = b.attribute("ceil_mode", 0) and pads[:rank] != pads[rank:]
    if not b.output(1) and not rounds_up:
        raise NoRewriteError("nobody wants the places, and the windows are right")
    image = require_static(b, "the windows of MaxPool", range(2, rank + 2))
    begins, ends = _sides(b, image)
    if rounds_up:
        reaches = [
            (size - 1) * dilation + 1
            for size, dilation in zip(kept["kernel_shape"], b.attribute("dilations", [1] * rank), strict=True)
        ]
        sides = zip(image, begins, ends, reaches, b.attribute("strides", [1] * rank), strict=True)
        ends = [_rounded_up(*side)[1] for side in sides]
        kept |= {"ceil_mode": 0, "pads": [*begins, *ends]}
    operand = b.input(0)
    if begins != ends:
        kind = b.numpy_dtype(operand)
        lowest = -np.inf if is_float(b.dtype(operand)) else np.iinfo(kind).min
        padding = b.constant([0, 0, *begins, 0, 0, *ends])
        operand = b.op("Pad", operand, padding, b.constant(lowest, kind))
        kept = {name: value for name, value in kept.items() if name not in ("pads", "auto_pad")}
    values, *found = b.ops("MaxPool", [operand], 2 if b.output(1) else 1, **kept)
    b.nodes[-1].metadata_props.add(key=_WITHIN_CHANNEL)
    b.give(values)
    if not found:
        return
    places = found[0]
    if begins != ends:
        places = _without_padding(b, places, image, begins, ends)
    batch, channels = require_static(b, "the places that MaxPool gives", range(2))
    first = np.arange(batch * channels).reshape(batch, channels, *[1] * rank) * math.prod(image)
    b.give(b.op("Add", places, b.constant(first)), 1)


def _require_sides(b: Rewriter) -> None:
    """Refuses padding that follows from extents that are open: the conversion takes them for -1."""
    if b.attribute("auto_pad", "NOTSET").startswith("SAME"):
        strides = b.attribute("strides", [])
        require_static(b, f"the padding of {b.node.op_type}", [2 + axis for axis, by in enumerate(strides) if by > 1])


def transposed_convolution(b: Rewriter) -> None:
    """Refuses a ConvTranspose to a given size from open extents: its padding follows from them.

    Raises:
        UnsupportedError: LK4001, a spatial extent is open.
    """
    if b.attribute("output_shape", []):
        require_static(b, "the padding of ConvTranspose", range(2, b.rank(b.input(0))))
    raise NoRewriteError("the conversion is right")


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
