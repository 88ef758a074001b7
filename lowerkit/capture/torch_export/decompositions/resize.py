"""Resizing as sums of weighted look-ups, one dim after the other: at symbolic sizes, and with antialiasing at any.

Vocabulary
    step     how far apart in the input two neighbours of the result lie
    source   where in the input an element of the result stands, between two elements
    taps     the elements of the input that one element of the result is made of, and their weights: [after, taps]

Steps and sources are computed as PyTorch's CPU kernels do: in f32, in f64 for f64 and with antialiasing. Without
antialiasing, resizing at known sizes stays whole and becomes ``lk.resize``.
"""

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
    taken,
    widened,
)
from lowerkit.capture.torch_export.operators import aten
from lowerkit.capture.torch_export.symbolic.expressions import floored_factor
from lowerkit.dialect.sampling import SAMPLINGS, Sampling
from lowerkit.errors import UnsupportedError


def _step(before: Extent, after: Extent, factor: float | None, sampling: Sampling, dtype: torch.dtype) -> Tensor:
    by_sizes = number(before, dtype) / number(after, dtype)
    if not factor or factor < 0:
        return by_sizes
    step = number(1.0 / factor, torch.float64).to(dtype)
    for ratio in sampling.exact_ratios:
        step = torch.where(number(after) == number(before * ratio), by_sizes, step)
    return step


def _aligned_step(before: Extent, after: Extent, dtype: torch.dtype) -> Tensor:
    """One element alone stands at the first."""
    step = number(before - 1, dtype) / torch.clamp(number(after - 1, dtype), min=1.0)
    return torch.where(number(after) > 1, step, 0.0)


def _half_pixel(after: Extent, step: Tensor) -> Tensor:
    """``(o + 0.5) * step - 0.5``, rounded once: the larger half of the step's digits has exact products in f64."""
    place, wide = positions(after).to(torch.float64) + 0.5, step.to(torch.float64)
    large = step.to(torch.float32).to(torch.float64)
    return ((place * large - 0.5) + place * (wide - large)).to(step.dtype)


def _nearest(value: Tensor, axis: int, after: Extent, step: Tensor, rounding: str) -> Tensor:
    half = 0.5 if rounding == "round_prefer_ceil" else 0.0
    source = (positions(after).to(step.dtype) + half) * step
    last = number(value.shape[axis] - 1)
    return value.index_select(axis, torch.minimum(torch.floor(source).to(torch.int64), last))


def _linear_taps(source: Tensor, before: Extent, after: Extent) -> tuple[Tensor, Tensor]:
    source = torch.clamp(source, min=0.0)
    last = number(before - 1)
    low = torch.minimum(torch.floor(source).to(torch.int64), last)
    # As in PyTorch, equal sizes read no neighbour: 0 times an infinite one would be NaN.
    high = torch.where(number(before) == number(after), low, torch.minimum(low + 1, last))
    weight = torch.clamp(source - low.to(source.dtype), 0.0, 1.0)
    return torch.stack([low, high], 1), torch.stack([1.0 - weight, weight], 1)


def _cubic_taps(source: Tensor, before: Extent, after: Extent) -> tuple[Tensor, Tensor]:
    floor = torch.floor(source)
    part = source - floor
    sharp = -0.75

    def near(x: Tensor) -> Tensor:
        return ((sharp + 2) * x - (sharp + 3)) * x * x + 1

    def far(x: Tensor) -> Tensor:
        return ((sharp * x - 5 * sharp) * x + 8 * sharp) * x - 4 * sharp

    place = floor.to(torch.int64)[:, None] + (torch.arange(4) - 1)
    place = torch.clamp(torch.minimum(place, number(before - 1)), min=0)
    return place, torch.stack([far(part + 1), near(part), near(1 - part), far(2 - part)], 1)


_TAPS = {"linear": _linear_taps, "cubic": _cubic_taps}


def _sums(value: Tensor, axis: int, places: Tensor, weights: Tensor) -> Tensor:
    """The weighted sums of taps, whose number is known."""
    total: Tensor | None = None
    for tap in range(places.shape[1]):
        term = value.index_select(axis, places[:, tap]) * along_axis(weights[:, tap].to(value.dtype), value, axis)
        total = term if total is None else total + term
    assert total is not None, "an element is made of some"
    return total


def _resized_dim(
    value: Tensor, axis: int, after: Extent, sampling: Sampling, aligned: bool, factor: float | None
) -> Tensor:
    before = value.shape[axis]
    dtype = torch.float64 if value.dtype == torch.float64 else torch.float32
    if aligned:
        source = positions(after).to(dtype) * _aligned_step(before, after, dtype)
    else:
        step = _step(before, after, factor, sampling, dtype)
        if sampling.mode == "nearest":
            return _nearest(value, axis, after, step, sampling.rounding)
        source = _half_pixel(after, step)
    return _sums(value, axis, *_TAPS[sampling.mode](source, before, after))


def _antialiased_dim(value: Tensor, axis: int, after: Extent, aligned: bool, factor: float | None) -> Tensor:
    """Each element is made of those around it under a triangle as wide as the step, of sum one.

    What has no weight is not read: a NaN would spread.
    """
    before, dtype = value.shape[axis], torch.float64
    if aligned:
        step = _aligned_step(before, after, dtype)
        most = before if is_symbolic([after]) else 2 * (before - 1) // max(after - 1, 1) + 3
    elif factor:
        step, most = number(1.0 / factor, dtype), int(2 * max(1 / factor, 1.0)) + 3
    else:
        step, most = number(before, dtype) / number(after, dtype), 2 * before // after + 3
    support = torch.clamp(step, min=1.0)
    center = ((positions(after).to(dtype) + 0.5) * step)[:, None]
    first = torch.trunc(center - support + 0.5).clamp(min=0).long()
    behind = torch.minimum(torch.trunc(center + support + 0.5).long(), number(before))
    place = first + positions(most)[None]
    inside = place < behind
    weight = (1 - ((place.to(dtype) - center + 0.5) / support).abs()).clamp(min=0)
    # As in PyTorch, equal sizes read no neighbour: 0 times an infinite one would be NaN.
    inside = inside & ((weight > 0) | (number(before) != number(after)))
    weight = torch.where(inside, weight, 0.0)
    total = weight.sum(1, keepdim=True)
    weight = (weight / torch.where(total == 0, 1.0, total)).to(value.dtype)
    terms = taken(value, axis, torch.minimum(place, behind - 1))
    weight, inside = (along_axis(each, terms, axis + 1) for each in (weight, inside))
    return torch.where(inside, terms * weight, 0.0).sum(axis + 1)


def _resize(name: str, spatial: int, *, vector: bool) -> Callable[..., Any]:
    """``.vec``: (input, output_size or None, [align_corners,] factors or None); else a factor for each dim."""
    antialiased = name.endswith("_aa")
    sampling = SAMPLINGS[name.strip("_").removesuffix("_aa") if antialiased else name]
    has_corners = sampling.has_align_corners

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
        if not antialiased and not is_symbolic([*before, *after]):
            return NotImplemented
        if has_corners and not value.is_floating_point():
            raise UnsupportedError(
                "LK4001",
                f"a tensor of {value.dtype} is resized by {name}, for which PyTorch has weights in whole numbers",
                op=f"aten.{name}",
                hint="convert the tensor to float32 first, or resize it in mode nearest",
            )
        result = widened(value)
        dims = list(zip(range(2, 2 + spatial), after, factors, strict=True))
        for axis, size, factor in reversed(dims) if antialiased else dims:
            if antialiased:
                result = _antialiased_dim(result, axis, size, aligned, factor)
            else:
                result = _resized_dim(result, axis, size, sampling, aligned, factor)
        return result.to(value.dtype)

    return resize


def _scaled(size: Extent, factor: float) -> Extent:
    """The size of a result: ``size * factor``, cut to a whole number."""
    if not is_symbolic([size]):
        return int(int(size) * factor)
    fraction = floored_factor(factor)
    if fraction is None:
        raise UnsupportedError(
            "LK4002",
            f"a symbolic size is resized by {factor}: the size of the result is no integer expression of it",
            hint="give the size of the result, or a factor such as 2 or 0.5",
        )
    return size * fraction[0] // fraction[1]


def _overloads(name: str) -> dict[Any, Callable[..., Any]]:
    spatial = int(name.removesuffix("_aa")[-2])
    operator: Any = getattr(aten, name)
    return {
        getattr(operator, overload): _resize(name, spatial, vector=overload == "vec") for overload in ("vec", "default")
    }


TABLE: dict[Any, Callable[..., Any]] = _overloads("_upsample_bilinear2d_aa")
"""By overload."""

OF_SIZES = {overload: rule for name in SAMPLINGS for overload, rule in _overloads(name).items()}
"""By overload; for symbolic sizes only."""
