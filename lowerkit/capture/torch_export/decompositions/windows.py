"""Pools by look-ups: windows of unequal sizes, places of maxima, and, of open extents, windows that reach over the end.

Vocabulary
    places    which elements of a dim each window covers, [windows, longest]: a shorter one repeats its last element,
              one that begins in the padding its first
    behind    the end of each window, [windows, 1]: the first element that it does not cover

Known and open extents share the rules; a plain pool stays one op for the passes to see. Positions are integers, as in
PyTorch's CPU kernels.
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
    spread,
    taken,
    widened,
)
from lowerkit.capture.torch_export.operators import aten
from lowerkit.dialect.window import Window

# Adaptive pools.


def _uneven(size: Extent, count: Extent) -> tuple[Tensor, Tensor, Tensor]:
    """Returns places, which of them are no repetitions, and how many elements each window has.

    Window i goes from floor(i size / count) to ceil((i + 1) size / count).
    """
    window, extent, windows = positions(count)[:, None], number(size), number(count)
    first = torch.div(window * extent, windows, rounding_mode="floor")
    behind = torch.div((window + 1) * extent + (windows - 1), windows, rounding_mode="floor")
    place = first + positions((size + count - 1) // count + 1)
    return torch.minimum(place, behind - 1), place < behind, behind - first


def _adaptive_mean(value: Tensor, output_size: Sequence[Extent]) -> Any:
    sizes = value.shape[-len(output_size) :]
    if not _is_uneven(sizes, output_size):
        return NotImplemented
    result = widened(value)
    for axis, (size, count) in enumerate(zip(sizes, output_size, strict=True), value.dim() - len(sizes)):
        places, inside, lengths = _uneven(size, count)
        found = taken(result, axis, places)
        total = torch.where(along_axis(inside, found, axis + 1), found, 0.0).sum(axis + 1)
        result = total / along_axis(lengths[:, 0], total, axis).to(result.dtype)
    return result.to(value.dtype)


def _adaptive_maximum(value: Tensor, output_size: Sequence[Extent]) -> Any:
    """Nobody reads the places."""
    uneven = _is_uneven(value.shape[-len(output_size) :], output_size)
    return _adaptive_maxima(value, output_size) if uneven else NotImplemented


def _is_uneven(sizes: Sequence[Extent], outputs: Sequence[Extent]) -> bool:
    """Whether extents decide about the windows; one for the whole dim is a reduction."""
    return is_symbolic(outputs) or (is_symbolic(sizes) and any(count != 1 for count in outputs))


def _adaptive_maxima(value: Tensor, output_size: Sequence[Extent]) -> Any:
    sizes = value.shape[-len(output_size) :]
    if any(not is_symbolic([extent]) and extent == 0 for extent in (*sizes, *output_size)):
        return NotImplemented
    return _maxima(value, [_uneven(size, count)[0] for size, count in zip(sizes, output_size, strict=True)])


# Places of maxima.


def _maxima(value: Tensor, windows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The maximum of each window, and its place in the flattened spatial dims: of equals the first, of NaN the last.

    Dim by dim, the last one first, which keeps the order. ``windows`` has the places for each spatial dim.
    """
    lead = value.dim() - len(windows)
    index: Tensor | None = None
    unit: Extent = 1
    for axis, places in reversed(list(enumerate(windows, lead))):
        size = value.shape[axis]
        taps = taken(value, axis, places)
        value, within = torch.max(taps, dim=axis + 1)
        if taps.is_floating_point():
            tap = along_axis(positions(taps.shape[axis + 1]), taps, axis + 1)
            last_nan = torch.where(torch.isnan(taps), tap, -1).amax(axis + 1)
            within = torch.where(last_nan >= 0, last_nan, within)
        chosen = within.unsqueeze(axis + 1)
        place = along_axis(places, taps, axis + 1).expand(taps.shape) * number(unit)
        if index is not None:
            place = place + taken(index, axis, places)
        index = torch.gather(place, axis + 1, chosen).squeeze(axis + 1)
        unit = unit * size
    assert index is not None, "a window has a dim"
    return value, index


def _places(size: Extent, window: Window) -> Tensor:
    start = positions(window.count(size))[:, None] * window.stride - window.low
    apart, reach = window.dilation, window.span - 1
    first = start + (start.clamp(max=0).neg() + apart - 1) // apart * apart
    last = start + ((size - 1 - start) // apart * apart).clamp(max=reach)
    place = start + torch.arange(window.kernel) * apart
    return torch.minimum(torch.maximum(place, first), last)


def _described(spatial: int, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> list[Window]:
    kernels, lows = spread(kernel, spatial), spread(padding, spatial)
    strides = spread(stride, spatial) or kernels
    dims = zip(kernels, strides, lows, lows, spread(dilation, spatial), strict=True)
    return [Window(*dim, ceil) for dim in dims]


def _pooled_maxima(spatial: int) -> Callable[..., Any]:
    def pool(
        value: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil_mode: bool = False
    ) -> Any:
        windows = _described(spatial, kernel, stride, padding, dilation, ceil_mode)
        dims = list(zip(value.shape[-spatial:], windows, strict=True))
        # A window of padding alone is the only one along its dim, which torch.export lets no open extent have.
        if any(window.low and not is_symbolic([size]) and size < window.dilation for size, window in dims):
            return NotImplemented
        return _maxima(value, [_places(size, window) for size, window in dims])

    return pool


def _lowest(dtype: torch.dtype) -> float | int:
    return float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min


# Pools that take a last window beyond the end, and pools of an input without a batch dim.


def _quotient(sums: Tensor, count: Tensor) -> Tensor:
    """Means, of integers cut off as eager's are."""
    if sums.is_floating_point():
        return sums / count.to(sums.dtype)
    return torch.div(sums, count, rounding_mode="trunc")


def _pool(spatial: int, kind: str) -> Callable[..., Any]:
    """avg: (input, kernel, stride, padding, ceil_mode, count_include_pad, divisor); max: (..., dilation, ceil)."""
    operator: Any = getattr(aten, f"{kind}_pool{spatial}d").default

    def pool(value: Tensor, kernel_size: Any, stride: Any = (), padding: Any = 0, *rest: Any) -> Any:
        sizes = value.shape[-spatial:]
        if not is_symbolic(sizes):
            return NotImplemented
        if not value.is_floating_point() and kind == "avg":
            return _means_of_integers(spatial)(value, kernel_size, stride, padding, *rest)
        ceil = bool(rest[1] if kind == "max" else rest[0]) if len(rest) > (kind == "max") else False
        windows = _described(spatial, kernel_size, stride, padding, rest[0] if kind == "max" and rest else 1, ceil)
        if not ceil:
            return NotImplemented
        kernels, strides = [window.kernel for window in windows], [window.stride for window in windows]
        if spatial == 1 and kind == "avg":  # of which the operator takes no divisor
            plane, rows = _pool(2, kind), value[..., None, :]
            return plane(rows, [1, *kernels], [1, *strides], [0, windows[0].low], *rest)[..., 0, :]
        counts = [window.count(size) for size, window in zip(sizes, windows, strict=True)]
        pads: list[int] = []  # any window that starts inside ends before this
        for window in reversed(windows):
            pads += [window.low, window.span - 1]

        def cut(result: Tensor) -> Tensor:
            for axis, count in enumerate(counts, result.dim() - spatial):
                result = aten.slice.Tensor(result, axis, 0, count)
            return result

        if kind == "max":
            padded = aten.constant_pad_nd(value, pads, _lowest(value.dtype))
            dilations = [window.dilation for window in windows]
            return cut(operator(padded, kernels, strides, [0] * spatial, dilations, False))
        padded = aten.constant_pad_nd(widened(value), pads, 0)
        sums = cut(operator(padded, kernels, strides, [0] * spatial, False, True, 1))
        return _quotient(sums, _divisor(sums, sizes, windows, *rest[1:])).to(value.dtype)

    return pool


def _divisor(
    sums: Tensor, sizes: Sequence[Extent], windows: Sequence[Window], include: bool = True, divisor: int | None = None
) -> Tensor:
    """By what the sum of each window is divided: how many elements it covers, with or without the padding's."""
    if divisor is not None:
        return number(divisor)
    covered = number(1)
    for axis, (size, window) in enumerate(zip(sizes, windows, strict=True), sums.dim() - len(windows)):
        start = positions(window.count(size)) * window.stride - window.low
        end = torch.minimum(start + window.kernel, number(size + window.low))
        if not include:
            start, end = torch.clamp(start, min=0), torch.minimum(end, number(size))
        covered = covered * along_axis(end - start, sums, axis)
    return covered


def _means_of_integers(spatial: int) -> Callable[..., Any]:
    """avg_pool of int64: sums dim by dim, exact as eager's are."""

    def pool(value: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, ceil: bool = False, *rest: Any) -> Any:
        if value.is_floating_point():
            return NotImplemented
        windows = _described(spatial, kernel, stride, padding, 1, ceil)
        sizes = value.shape[-spatial:]
        sums = value
        for axis, (size, window) in enumerate(zip(sizes, windows, strict=True), value.dim() - spatial):
            place = positions(window.count(size))[:, None] * window.stride - window.low + torch.arange(window.kernel)
            taps = taken(sums, axis, torch.minimum(torch.clamp(place, min=0), number(size - 1)))
            inside = along_axis((place >= 0) & (place < number(size)), taps, axis + 1)
            sums = torch.where(inside, taps, 0).sum(axis + 1)
        return _quotient(sums, _divisor(sums, sizes, windows, *rest))

    return pool


def _conv_tbc(value: Tensor, weight: Tensor, bias: Tensor, pad: int = 0) -> Tensor:
    """A convolution over the first dim of [time, batch, channels] by [kernel, input channels, output channels]."""
    result = aten.convolution(
        *(value.permute(1, 2, 0), weight.permute(2, 1, 0), bias, [1], [pad], [1], False, [0], 1),
    )
    return result.permute(2, 0, 1)


TABLE: dict[Any, Callable[..., Any]] = {
    aten.conv_tbc.default: _conv_tbc,
    **{getattr(aten, f"avg_pool{count}d").default: _means_of_integers(count) for count in (1, 2, 3)},
}
"""By overload."""

TAKES: dict[Any, Callable[..., bool]] = {
    getattr(aten, f"avg_pool{count}d").default: lambda value, *_: not value.is_floating_point() for count in (1, 2, 3)
}
"""Whether the function of an overload in :data:`TABLE` takes the arguments: pools of floats ask for no new tracing."""

OF_SIZES: dict[Any, Callable[..., Any]] = {
    **{getattr(aten, f"adaptive_avg_pool{count}d").default: _adaptive_mean for count in (1, 2, 3)},
    **{getattr(aten, f"_adaptive_avg_pool{count}d").default: _adaptive_mean for count in (2, 3)},
    **{getattr(aten, f"adaptive_max_pool{count}d").default: _adaptive_maximum for count in (2, 3)},
    **{
        getattr(aten, f"{kind}_pool{count}d").default: _pool(count, kind)
        for kind in ("avg", "max")
        for count in (1, 2, 3)
    },
}
"""By overload; for symbolic sizes only."""

WITH_PLACES: dict[Any, Callable[..., Any]] = {
    **{getattr(aten, f"adaptive_max_pool{count}d").default: _adaptive_maxima for count in (2, 3)},
    **{getattr(aten, f"max_pool{count}d_with_indices").default: _pooled_maxima(count) for count in (2, 3)},
}
"""By overload; for nodes whose places are read. Without them, a pool stays one op for the passes to see."""
