"""Resizing at symbolic sizes, as look-ups at positions computed as PyTorch's CPU kernels do: in f32, in f64 for f64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lowerkit.capture.torch_export.decompositions.size_tensors import (
    Extent,
    along_axis,
    is_symbolic,
    number,
    positions,
    widened,
)
from lowerkit.errors import UnsupportedError

_LARGEST_TOP, _LARGEST_BOTTOM = 1 << 20, 1 << 10
"""Bounds of a factor as a fraction: times a size it stays exact."""


def _scale(before: Extent, after: Extent, factor: float | None, dtype: torch.dtype) -> Tensor:
    if factor is not None and factor > 0:
        return number(1.0 / factor, torch.float64).to(dtype)
    return number(before, dtype) / number(after, dtype)


def _nearest(value: Tensor, axis: int, after: Extent, factor: float | None, half: float) -> Tensor:
    before = value.shape[axis]
    dtype = torch.float64 if value.dtype == torch.float64 else torch.float32
    source = (positions(after).to(dtype) + half) * _scale(before, after, factor, dtype)
    index = torch.minimum(torch.floor(source).to(torch.int64), number(before - 1))
    return value.index_select(axis, index)


def _sources(value: Tensor, axis: int, after: Extent, aligned: bool, factor: float | None) -> Tensor:
    """The position in the input that each position of the output stands for."""
    before, dtype = value.shape[axis], value.dtype
    place = positions(after).to(dtype)
    if aligned:
        steps = torch.clamp(number(after - 1, dtype), min=1.0)  # one position only: its number is 0
        return place * (number(before - 1, dtype) / steps)
    return (place + 0.5) * _scale(before, after, factor, dtype) - 0.5


def _linear(value: Tensor, axis: int, after: Extent, aligned: bool, factor: float | None) -> Tensor:
    source = torch.clamp(_sources(value, axis, after, aligned, factor), min=0.0)
    last = number(value.shape[axis] - 1)
    low = torch.minimum(torch.floor(source).to(torch.int64), last)
    high = torch.minimum(low + 1, last)
    weight = along_axis(torch.clamp(source - low.to(value.dtype), 0.0, 1.0), value, axis)
    return value.index_select(axis, low) * (1.0 - weight) + value.index_select(axis, high) * weight


def _cubic(value: Tensor, axis: int, after: Extent, aligned: bool, factor: float | None) -> Tensor:
    source = _sources(value, axis, after, aligned, factor)
    floor = torch.floor(source)
    part, place = source - floor, floor.to(torch.int64)
    last = number(value.shape[axis] - 1)
    sharp = -0.75

    def near(x: Tensor) -> Tensor:
        return ((sharp + 2) * x - (sharp + 3)) * x * x + 1

    def far(x: Tensor) -> Tensor:
        return ((sharp * x - 5 * sharp) * x + 8 * sharp) * x - 4 * sharp

    weights = (far(part + 1), near(part), near(1 - part), far(2 - part))
    total: Tensor | None = None
    for offset, weight in enumerate(weights):
        index = torch.clamp(torch.minimum(place + (offset - 1), last), min=0)
        term = value.index_select(axis, index) * along_axis(weight, value, axis)
        total = term if total is None else total + term
    assert total is not None, "there are four terms"
    return total


def resize_of(mode: str, spatial: int, *, vector: bool) -> Callable[..., Any]:
    """``.vec``: (input, output_size or None, [align_corners,] factors or None); else a factor for each dim."""
    has_corners = mode in ("linear", "cubic")
    name = {("linear", 2): "bilinear", ("linear", 3): "trilinear", ("cubic", 2): "bicubic"}.get((mode, spatial), mode)

    def resize(value: Tensor, output_size: Sequence[Extent] | None, *rest: Any) -> Any:
        aligned = bool(rest[0]) if has_corners else False
        tail = rest[1:] if has_corners else rest
        factors: list[Any]
        if vector:
            factors = list(tail[0]) if tail and tail[0] is not None else [None] * spatial
        else:
            factors = [*tail, *[None] * (spatial - len(tail))]
        before = value.shape[2:]
        after = (
            list(output_size)
            if output_size is not None
            else [_scaled(n, f) for n, f in zip(before, factors, strict=True)]
        )
        if not is_symbolic([*before, *after]):
            return NotImplemented
        if has_corners and not value.is_floating_point():
            raise UnsupportedError(
                "LK4001",
                f"a tensor of {value.dtype} is resized in mode {name}, for which PyTorch has weights in whole numbers",
                op=f"aten.upsample_{name}{spatial}d",
                hint="convert the tensor to float32 first, or resize it in mode nearest",
            )
        result = widened(value)
        for offset, (size, factor) in enumerate(zip(after, factors, strict=True)):
            axis = 2 + offset
            if mode == "nearest":
                result = _nearest(result, axis, size, factor, 0.0)
            elif mode == "nearest-exact":
                result = _nearest(result, axis, size, factor, 0.5)
            else:
                interpolated = _linear if mode == "linear" else _cubic
                result = interpolated(result, axis, size, aligned, factor)
        return result.to(value.dtype)

    return resize


def _scaled(size: Extent, factor: float) -> Extent:
    """The size of a result: ``size * factor``, cut to a whole number; exact where the factor is a short fraction."""
    top, bottom = float(factor).as_integer_ratio()
    if top <= 0 or top > _LARGEST_TOP or bottom > _LARGEST_BOTTOM:
        raise UnsupportedError(
            "LK4002",
            f"a symbolic size is resized by {factor}: the size of the result is no integer expression of it",
            hint="give the size of the result, or a factor such as 2 or 0.5",
        )
    return size * top // bottom
