"""Operators of symbolic sizes whose arithmetic needs those as numbers: variances, padding by less than nothing.

The functions are for symbolic sizes only; with known sizes they return NotImplemented and the op stays whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lowerkit.capture.torch_export.decompositions import resize, windows
from lowerkit.capture.torch_export.decompositions.size_tensors import Extent, is_symbolic, number, widened
from lowerkit.capture.torch_export.operators import aten
from lowerkit.errors import UnsupportedError

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


# Membership.


def _is_in(elements: Tensor, among: Tensor, *, assume_unique: bool = False, invert: bool = False) -> Any:
    """Each with each: PyTorch's own decomposition asks of the sizes whether sorting is faster."""
    if not is_symbolic([*elements.shape, *among.shape]):
        return NotImplemented
    found = (elements[..., None] == among.reshape(-1)).any(-1)
    return torch.logical_not(found) if invert else found


OF_SIZES: dict[Any, Callable[..., Any]] = {
    **resize.OF_SIZES,
    **windows.OF_SIZES,
    **{getattr(aten.var, name): rule for name, rule in _variances(lambda variance, _: variance).items()},
    **{getattr(aten.std, name): rule for name, rule in _variances(lambda variance, _: variance.sqrt()).items()},
    **{
        getattr(aten.var_mean, name): rule for name, rule in _variances(lambda variance, mean: (variance, mean)).items()
    },
    aten.constant_pad_nd.default: _pad,
    aten.pad.default: _pad_in_mode,
    aten.pixel_unshuffle.default: _pixel_unshuffle,
    aten.isin.Tensor_Tensor: _is_in,
}
"""By overload."""
