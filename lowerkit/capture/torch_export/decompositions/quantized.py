"""Quantization by formulas of its own: of each token, of weights alone, of training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lowerkit.capture.torch_export.operators import aten

_BEYOND_INT64 = 2.0**63


def _choose_per_token(value: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """``choose_qparams_per_token_asymmetric``: scale and zero point of each row, in PyTorch's order of operations."""
    low, high = -128, 127
    least = torch.clamp(torch.amin(value, -1, keepdim=True), max=0.0)
    most = torch.clamp(torch.amax(value, -1, keepdim=True), min=0.0)
    scale = torch.clamp((most - least) / float(high - low), min=torch.finfo(torch.float32).eps)
    from_least, from_most = least / scale, most / scale
    nearer = (low + from_least) + (high + from_most) > 0
    zero_point = torch.where(nearer, low - from_least, high - from_most)
    return scale.to(torch.float64), torch.round(torch.clamp(zero_point, low, high)).to(torch.int64)


def _quantize_per_token(
    value: Tensor, scales: Tensor, zero_points: Tensor, low: int, high: int, dtype: torch.dtype
) -> Tensor:
    return torch.clamp(torch.round(value * (1.0 / scales) + zero_points), low, high).to(dtype)


def _dequantize_per_token(
    value: Tensor,
    scales: Tensor,
    zero_points: Tensor,
    low: int,
    high: int,
    dtype: torch.dtype,
    output_dtype: torch.dtype = torch.float32,
) -> Tensor:
    return ((value - zero_points) * scales).to(output_dtype)


def _product_with_int8_weights(value: Tensor, weight: Tensor, scales: Tensor) -> Tensor:
    """``_weight_int8pack_mm``: sums in f32, scaled, rounded once."""
    found = torch.matmul(value.to(torch.float32), weight.to(torch.float32).t()) * scales.to(torch.float32)
    return found.to(value.dtype)


def _fake_quantize_per_channel(
    value: Tensor, scale: Tensor, zero_point: Tensor, axis: int, low: int, high: int
) -> tuple[Tensor, Tensor]:
    shape = [1] * value.dim()
    shape[axis] = value.shape[axis]
    scale, zero_point = scale.reshape(shape), zero_point.reshape(shape).to(torch.float32)
    codes = torch.round(value * (1.0 / scale)) + zero_point
    inside = (codes >= low) & (codes <= high)
    # PyTorch goes through int64: what that cannot hold, NaN and infinity too, is the least number there.
    codes = torch.where(codes < _BEYOND_INT64, torch.clamp(codes, low, high), low)
    return ((codes - zero_point) * scale).to(value.dtype), inside


def _fake_quantize(
    value: Tensor, scale: float | Tensor, zero_point: int | Tensor, low: int, high: int
) -> tuple[Tensor, Tensor]:
    """Values, and which codes were not limited; in f32 for 16-bit floats, with a NaN as the least code."""
    wide = value if value.dtype == torch.float64 else value.to(torch.float32)
    single = scale.reshape(()) if isinstance(scale, Tensor) else torch.full((), scale)
    single = single.to(torch.float32)
    point = zero_point if isinstance(zero_point, int) else zero_point.reshape(()).to(wide.dtype)
    codes = torch.round(wide * (1.0 / single)) + point
    inside = (codes >= low) & (codes <= high)
    codes = torch.where(torch.isnan(codes), low, torch.clamp(codes, low, high))
    return ((codes - point).to(torch.float32) * single).to(value.dtype), inside


def _switched_fake_quantize(
    value: Tensor, scale: Tensor, zero_point: Tensor, enabled: Tensor, low: int, high: int
) -> tuple[Tensor, Tensor]:
    found, inside = _fake_quantize(value, scale, zero_point, low, high)
    off = enabled.reshape(()) == 0
    return torch.where(off, value, found), off | inside


def _values_of(function: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., Tensor]:
    return lambda *arguments: function(*arguments)[0]


TABLE: dict[Any, Callable[..., Any]] = {
    aten._weight_int8pack_mm.default: _product_with_int8_weights,
    aten.fake_quantize_per_channel_affine.default: _values_of(_fake_quantize_per_channel),
    aten.fake_quantize_per_channel_affine_cachemask.default: _fake_quantize_per_channel,
    aten.fake_quantize_per_tensor_affine.default: _values_of(_fake_quantize),
    aten.fake_quantize_per_tensor_affine.tensor_qparams: _values_of(_fake_quantize),
    aten.fake_quantize_per_tensor_affine_cachemask.default: _fake_quantize,
    aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: _switched_fake_quantize,
}

BY_NAME: dict[str, Callable[..., Any]] = {
    "quantized_decomposed.choose_qparams_per_token_asymmetric.default": _choose_per_token,
    "quantized_decomposed.quantize_per_token.default": _quantize_per_token,
    "quantized_decomposed.dequantize_per_token.default": _dequantize_per_token,
}
"""By the text of the overload: PyTorch registers these ops when they are asked for."""
