"""Quantization by formulas of its own: of each token, of weights alone, of training; and bags of embeddings."""

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
) -> Tensor:
    shape = [1] * value.dim()
    shape[axis] = value.shape[axis]
    scale, zero_point = scale.reshape(shape), zero_point.reshape(shape).to(torch.float32)
    codes = torch.round(value * (1.0 / scale)) + zero_point
    # PyTorch goes through int64: what that cannot hold, NaN and infinity too, is the least number there.
    codes = torch.where(codes < _BEYOND_INT64, torch.clamp(codes, low, high), low)
    return ((codes - zero_point) * scale).to(value.dtype)


def _embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sums (mode 0) and means (1) of rows; bags begin at ``offsets``, which may be data.

    With ``include_last_offset``, rows behind the last of ``offsets`` belong to the last bag: PyTorch's kernels count
    them in its size, and its fast one (without ``padding_idx``, not in f64) alone leaves them out of the sum.
    """
    if mode == 2:
        return NotImplemented
    unused = torch.zeros_like(offsets)
    places = torch.arange(indices.shape[0])
    counts = torch.ones_like(indices, dtype=torch.bool)
    rows = aten.embedding(weight, indices)
    if padding_idx is not None:
        counts = indices != padding_idx % weight.shape[0]
        rows = torch.where(counts.unsqueeze(1), rows, 0.0)
    elif include_last_offset and weight.dtype != torch.float64:
        rows = torch.where((places < offsets[-1:]).unsqueeze(1), rows, 0.0)
    offsets = offsets[:-1] if include_last_offset else offsets
    bags = offsets.shape[0]
    bag = (offsets.unsqueeze(0) <= places.unsqueeze(1)).sum(1) - 1
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    total = aten.index_add(weight.new_zeros([bags, weight.shape[1]]), 0, bag, rows)
    if mode == 0:
        return total, bag, unused, unused
    size = aten.index_add(offsets.new_zeros([bags]), 0, bag, counts.to(offsets.dtype))
    total = total / torch.clamp(size, min=1).to(total.dtype).unsqueeze(1)
    return total, bag, size, size


TABLE: dict[Any, Callable[..., Any]] = {
    aten._weight_int8pack_mm.default: _product_with_int8_weights,
    aten.fake_quantize_per_channel_affine.default: _fake_quantize_per_channel,
    aten.embedding_bag.padding_idx: _embedding_bag,
}

BY_NAME: dict[str, Callable[..., Any]] = {
    "quantized_decomposed.choose_qparams_per_token_asymmetric.default": _choose_per_token,
    "quantized_decomposed.quantize_per_token.default": _quantize_per_token,
    "quantized_decomposed.dequantize_per_token.default": _dequantize_per_token,
}
"""By the text of the overload: PyTorch registers these ops when they are asked for."""
