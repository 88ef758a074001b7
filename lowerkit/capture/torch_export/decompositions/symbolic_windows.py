"""Operators whose windows or positions depend on sizes that are not known, out of look-ups at computed positions.

The functions are for symbolic sizes only; with known sizes they return NotImplemented and the op stays whole. Positions
are computed as PyTorch's CPU kernels compute them: in integers for pools, in f32 (f64 for f64) for resizing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lowerkit.capture.torch_export.decompositions.resize import resize_of
from lowerkit.capture.torch_export.decompositions.size_tensors import (
    Extent,
    along_axis,
    is_symbolic,
    number,
    positions,
    spread,
    widened,
)
from lowerkit.capture.torch_export.operators import aten
from lowerkit.errors import UnsupportedError

# Adaptive pools.


def _windows(size: Extent, outputs: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns positions [outputs, width], which of them belong to the window, and the windows' lengths [outputs]."""
    place, extent, count = torch.arange(outputs), number(size), number(outputs)
    start = torch.div(place * extent, count, rounding_mode="floor")
    end = torch.div((place + 1) * extent + (outputs - 1), count, rounding_mode="floor")
    width = (size + outputs - 1) // outputs + 1
    index = start[:, None] + positions(width)[None]
    inside = index < end[:, None]
    return torch.minimum(index, number(size - 1)), inside, end - start


def _adaptive(spatial: int, kind: str) -> Callable[..., Any]:
    def pool(value: Tensor, output_size: Sequence[Extent]) -> Any:
        outputs = spread(output_size, spatial)
        sizes = value.shape[-spatial:]
        if not is_symbolic(sizes) or is_symbolic(outputs) or all(count == 1 for count in outputs):
            return NotImplemented
        result = widened(value)
        for offset, (size, count) in enumerate(zip(sizes, outputs, strict=True)):
            axis = value.dim() - spatial + offset
            index, inside, lengths = _windows(size, count)
            found = aten.index.Tensor(result, [*[None] * axis, index])
            trailing = (1,) * (value.dim() - axis - 1)
            mask = inside[(..., *[None] * len(trailing))]
            if kind == "mean":
                total = torch.where(mask, found, 0.0).sum(axis + 1)
                result = total / lengths[(..., *[None] * len(trailing))].to(result.dtype)
            else:
                result = torch.where(mask, found, float("-inf")).amax(axis + 1)
        return result.to(value.dtype)

    return pool


# Pools that take a last window beyond the end, and pools of an input without a batch dim.


def _window_count(size: Extent, kernel: int, stride: int, low: int, dilation: int) -> Extent:
    """Returns how many windows ceil mode takes."""
    count = (size + 2 * low - dilation * (kernel - 1) - 1 + stride - 1) // stride + 1
    # The last one would start in the padding: the shape of the result has been decided by the same question.
    return count - 1 if (count - 1) * stride >= size + low else count


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
        kernels = spread(kernel_size, spatial)
        strides = spread(stride, spatial) or kernels
        lows = spread(padding, spatial)
        dilations = spread(rest[0] if kind == "max" and rest else 1, spatial)
        ceil = bool(rest[1] if kind == "max" else rest[0]) if len(rest) > (kind == "max") else False
        if value.dim() == spatial + 1:
            return operator(value[None], kernel_size, stride, padding, *rest)[0]
        if not ceil:
            return NotImplemented
        if spatial == 1 and kind == "avg":  # of which the operator takes no divisor
            plane, rows = _pool(2, kind), value[..., None, :]
            return plane(rows, [1, *kernels], [1, *strides], [0, *lows], *rest)[..., 0, :]
        windows = list(zip(sizes, kernels, strides, lows, dilations, strict=True))
        counts = [_window_count(*window) for window in windows]
        pads: list[int] = []  # any window that starts inside ends before this
        for _, kernel, _, low, dilation in reversed(windows):
            pads += [low, dilation * (kernel - 1)]

        def cut(result: Tensor) -> Tensor:
            for axis, count in enumerate(counts):
                result = aten.slice.Tensor(result, result.dim() - spatial + axis, 0, count)
            return result

        if kind == "max":
            lowest = float("-inf") if value.is_floating_point() else torch.iinfo(value.dtype).min
            padded = aten.constant_pad_nd(value, pads, lowest)
            return cut(operator(padded, kernels, strides, [0] * spatial, dilations, False))
        include = bool(rest[1]) if len(rest) > 1 else True
        divisor = rest[2] if len(rest) > 2 else None
        padded = aten.constant_pad_nd(widened(value), pads, 0)
        sums = cut(operator(padded, kernels, strides, [0] * spatial, False, True, 1))
        if divisor is not None:
            return _quotient(sums, number(divisor)).to(value.dtype)
        covered = number(1)
        for axis, ((size, kernel, step, low, _), count) in enumerate(zip(windows, counts, strict=True)):
            start = positions(count) * step - low
            end = torch.minimum(start + kernel, number(size + low))
            if not include:
                start, end = torch.clamp(start, min=0), torch.minimum(end, number(size))
            covered = covered * along_axis(end - start, sums, axis + sums.dim() - spatial)
        return _quotient(sums, covered).to(value.dtype)

    return pool


# Variances.


def _variance(value: Tensor, dims: Sequence[int] | None, correction: float | None, keepdim: bool) -> Any:
    axes = sorted(axis % value.dim() for axis in dims) if dims else list(range(value.dim()))
    counted = [value.shape[axis] for axis in axes]
    if not is_symbolic(counted) or not value.is_floating_point():
        return NotImplemented
    wide = widened(value)
    mean = wide.mean(axes, keepdim=True)
    deviation = wide - mean
    count: Extent = 1
    for extent in counted:
        count = count * extent
    left = torch.clamp(number(count, wide.dtype) - (1.0 if correction is None else float(correction)), min=0.0)
    variance = (deviation * deviation).sum(axes, keepdim=keepdim) / left
    if not keepdim:
        mean = mean.squeeze(axes)
    return variance.to(value.dtype), mean.to(value.dtype)


def _variances(pick: Callable[[Tensor, Tensor], Any]) -> dict[str, Callable[..., Any]]:
    def finished(found: Any) -> Any:
        return found if found is NotImplemented else pick(*found)

    def whole(value: Tensor, unbiased: bool = True) -> Any:
        return finished(_variance(value, None, float(unbiased), False))

    def along(value: Tensor, dim: Sequence[int] | None, unbiased: bool = True, keepdim: bool = False) -> Any:
        return finished(_variance(value, dim, float(unbiased), keepdim))

    def corrected(
        value: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
    ) -> Any:
        return finished(_variance(value, dim, correction, keepdim))

    return {"default": whole, "dim": along, "correction": corrected}


# Padding.


def _pad(value: Tensor, pads: Sequence[Extent], fill: Any = 0) -> Any:
    """constant_pad_nd with a negative amount: what is cut off is cut first."""
    if is_symbolic(pads) or not is_symbolic(value.shape) or all(amount >= 0 for amount in pads):
        return NotImplemented
    result = value
    for pair in range(len(pads) // 2):
        axis = value.dim() - 1 - pair
        low, high = (min(amount, 0) for amount in pads[2 * pair : 2 * pair + 2])
        if low or high:
            size = value.shape[axis]
            result = aten.slice.Tensor(result, axis, -low, size + high)
    return aten.constant_pad_nd(result, [max(amount, 0) for amount in pads], fill)


def _pad_in_mode(value: Tensor, pad: Sequence[Extent], mode: str = "constant", fill: float | None = None) -> Any:
    if mode == "constant":
        return _pad(value, pad, 0 if fill is None else fill)
    if is_symbolic(value.shape) and not is_symbolic(pad) and any(amount < 0 for amount in pad):
        raise UnsupportedError(
            "LK4001",
            f"a tensor of symbolic size is padded by {list(pad)} in mode {mode}",
            op="aten.pad",
            hint="cut the tensor by a slice, then pad by what is not negative",
        )
    return NotImplemented


# Channels out of squares.


def _pixel_unshuffle(value: Tensor, factor: int) -> Any:
    if not is_symbolic(value.shape):
        return NotImplemented
    parts = [value[..., row::factor, column::factor] for row in range(factor) for column in range(factor)]
    return torch.stack(parts, -3).flatten(-4, -3)


_MODES = {
    "nearest": ("nearest", "upsample_nearest{}d", (1, 2, 3)),
    "exact": ("nearest-exact", "_upsample_nearest_exact{}d", (1, 2, 3)),
    "linear": ("linear", "upsample_linear{}d", (1,)),
    "bilinear": ("linear", "upsample_bilinear{}d", (2,)),
    "trilinear": ("linear", "upsample_trilinear{}d", (3,)),
    "bicubic": ("cubic", "upsample_bicubic{}d", (2,)),
}

OF_SIZES: dict[Any, Callable[..., Any]] = {
    **{
        getattr(getattr(aten, name.format(count)), overload): resize_of(mode, count, vector=overload == "vec")
        for mode, name, counts in _MODES.values()
        for count in counts
        for overload in ("vec", "default")
    },
    **{getattr(aten, f"adaptive_avg_pool{count}d").default: _adaptive(count, "mean") for count in (1, 2, 3)},
    **{getattr(aten, f"_adaptive_avg_pool{count}d").default: _adaptive(count, "mean") for count in (2, 3)},
    **{
        getattr(aten, f"{kind}_pool{count}d").default: _pool(count, kind)
        for kind in ("avg", "max")
        for count in (1, 2, 3)
    },
    **{getattr(aten.var, name): rule for name, rule in _variances(lambda variance, _: variance).items()},
    **{getattr(aten.std, name): rule for name, rule in _variances(lambda variance, _: variance.sqrt()).items()},
    **{
        getattr(aten.var_mean, name): rule for name, rule in _variances(lambda variance, mean: (variance, mean)).items()
    },
    aten.constant_pad_nd.default: _pad,
    aten.pad.default: _pad_in_mode,
    aten.pixel_unshuffle.default: _pixel_unshuffle,
}
"""By overload."""
