"""Reading an image at computed places: the taps of an interpolation are gathered, weighted and added."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onnx import TensorProto

from lowerkit.capture.onnx.rewrites.rewriter import NoRewriteError, Rewriter

CUBIC_COEFFICIENT = -0.75


@dataclass(frozen=True)
class Sampling:
    """How to read.

    Attributes:
        mode: ``nearest``, ``linear`` or ``cubic``.
        padding: what is outside: ``zeros``, ``border`` (the nearest element) or ``reflection``.
        align_corners: whether the image ends at the centres of its outermost elements, or at their outer edges.
    """

    mode: str
    padding: str
    align_corners: bool = False


@dataclass(frozen=True)
class _Tap:
    """One element an axis contributes: index (int64), weight and validity, each [N, Q] or None for one and true."""

    index: str
    weight: str | None
    valid: str | None


def sample(b: Rewriter, image: str, places: Sequence[str], count: int, sampling: Sampling) -> str:
    """Reads an image.

    Args:
        b: writes.
        image: [N, C, *dims].
        places: for each of dims, coordinates [N, Q] in elements, in the element type of the image.
        count: Q.
        sampling: how.

    Returns:
        [N, C, Q]
    """
    shape = b.shape(image)
    batch, channels, dims = shape[0], shape[1], shape[2:]
    flat = b.reshape(image, (batch, channels, math.prod(dims)))
    axes = [_taps(b, place, extent, sampling) for place, extent in zip(places, dims, strict=True)]
    total = ""
    for taps in itertools.product(*axes):
        index = taps[0].index
        for tap, extent in zip(taps[1:], dims[1:], strict=True):
            index = b.op("Add", b.op("Mul", index, b.constant(extent)), tap.index)
        index = b.op("Expand", b.unsqueeze(index, [1]), b.constant([batch, channels, count]))
        value = b.look_up(flat, index, 2)
        for tap in taps:
            if tap.valid is not None:
                value = b.op("Where", b.unsqueeze(tap.valid, [1]), value, b.scalar(0.0, image))
            if tap.weight is not None:
                value = b.op("Mul", value, b.unsqueeze(tap.weight, [1]))
        total = b.op("Add", total, value) if total else value
    return total


def _taps(b: Rewriter, place: str, extent: int, sampling: Sampling) -> list[_Tap]:
    image = b.input(0)

    def number(value: float) -> str:
        return b.scalar(value, image)

    if sampling.mode == "nearest":
        return [_tap(b, _padded(b, b.op("Round", place), extent, sampling, image), None, extent, sampling)]
    place = _padded(b, place, extent, sampling, image)
    base = b.op("Floor", place)
    t = b.op("Sub", place, base)
    if sampling.mode == "linear":
        weights = [b.op("Sub", number(1.0), t), t]
        offsets = [0, 1]
    elif sampling.mode == "cubic":
        weights = [_cubic(b, b.op("Add", t, number(1.0)), far=True, number=number)]
        weights.append(_cubic(b, t, far=False, number=number))
        weights.append(_cubic(b, b.op("Sub", number(1.0), t), far=False, number=number))
        weights.append(_cubic(b, b.op("Sub", number(2.0), t), far=True, number=number))
        offsets = [-1, 0, 1, 2]
    else:
        raise NoRewriteError(f"mode {sampling.mode}")
    return [
        _tap(b, b.op("Add", base, number(float(offset))) if offset else base, weight, extent, sampling)
        for offset, weight in zip(offsets, weights, strict=True)
    ]


def _cubic(b: Rewriter, distance: str, *, far: bool, number: Callable[[float], str]) -> str:
    """Returns the coefficient of Keys at a distance of 1 to 2 (far) or 0 to 1."""
    a = CUBIC_COEFFICIENT
    cube = [a, -5 * a, 8 * a, -4 * a] if far else [a + 2, -(a + 3), 0.0, 1.0]
    total = number(cube[0])
    for coefficient in cube[1:]:
        total = b.op("Add", b.op("Mul", total, distance), number(coefficient))
    return total


def _padded(b: Rewriter, place: str, extent: int, sampling: Sampling, image: str) -> str:
    """Brings places that lie outside of the image back, as the padding says; of a cubic each tap is brought back."""
    if sampling.padding == "zeros" or sampling.mode == "cubic":
        return place
    if sampling.padding == "reflection":
        return _reflected(b, place, *_borders(extent, sampling), image)
    return b.op("Clip", place, b.scalar(0.0, image), b.scalar(extent - 1.0, image))


def _borders(extent: int, sampling: Sampling) -> tuple[float, float]:
    return (0.0, extent - 1.0) if sampling.align_corners else (-0.5, extent - 0.5)


def _reflected(b: Rewriter, place: str, low: float, high: float, image: str) -> str:
    span = high - low
    if span == 0:
        return b.op("Mul", place, b.scalar(0.0, image))
    distance = b.op("Abs", b.op("Sub", place, b.scalar(low, image)))
    turns = b.op("Floor", b.op("Div", distance, b.scalar(2 * span, image)))
    rest = b.op("Sub", distance, b.op("Mul", turns, b.scalar(2 * span, image)))
    folded = b.op("Sub", b.scalar(2 * span, image), rest)
    return b.op("Add", b.op("Min", rest, folded), b.scalar(low, image))


def _tap(b: Rewriter, place: str, weight: str | None, extent: int, sampling: Sampling) -> _Tap:
    """Makes an index of a place that is a whole number; what is outside is read somewhere inside."""
    image = b.input(0)
    valid = None
    if sampling.padding == "zeros":
        inside = (
            b.op("GreaterOrEqual", place, b.scalar(0.0, image)),
            b.op("LessOrEqual", place, b.scalar(extent - 1.0, image)),
        )
        valid = b.op("And", *inside)
    elif sampling.padding == "reflection":
        low, high = _borders(extent, sampling)
        place = _reflected(b, place, low, high, image)
    clamped = b.op("Clip", place, b.scalar(0.0, image), b.scalar(extent - 1.0, image))
    # Clip keeps NaN, which no index can be.
    index = b.cast(b.op("Where", b.op("IsNaN", clamped), b.scalar(0.0, image), clamped), TensorProto.INT64)
    return _Tap(index, weight, valid)
