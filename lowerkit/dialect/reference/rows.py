"""Softmax, norms, attention and rope."""

from __future__ import annotations

import numpy as np

from lowerkit.dialect.reference.factors import factor
from lowerkit.dialect.reference.numeric import Array, widen


def softmax(source: Array, axis: int, log: bool) -> Array:
    """Softmax or log-softmax along ``axis``, in float64."""
    wide = widen(source)
    shifted = wide - wide.max(axis=axis, keepdims=True, initial=-np.inf)  # of no elements, none
    exponentials = np.exp(shifted)
    total = exponentials.sum(axis=axis, keepdims=True)
    return shifted - np.log(total) if log else exponentials / total


def layer_norm(source: Array, scale: Array | None, bias: Array | None, axes: tuple[int, ...], epsilon: float) -> Array:
    """Normalizes over ``axes``; scale and bias must broadcast against the input already. In float64."""
    wide = widen(source)
    centred = wide - wide.mean(axis=axes, keepdims=True)
    result = centred / np.sqrt((centred * centred).mean(axis=axes, keepdims=True) + epsilon)
    if scale is not None:
        result = result * widen(scale)
    return result if bias is None else result + widen(bias)


def rms_norm(source: Array, scale: Array | None, axes: tuple[int, ...], epsilon: float) -> Array:
    """Divides by the root mean square over ``axes``, in float64."""
    wide = widen(source)
    result = wide / np.sqrt((wide * wide).mean(axis=axes, keepdims=True) + epsilon)
    return result if scale is None else result * widen(scale)


def attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None,
    *,
    scale: float,
    causal: bool,
    masking: str,
    fill: float,
    empty_rows: str,
) -> Array:
    """Scaled dot-product attention with grouped queries, in float64; see ``lk.attention``."""
    groups = query.shape[1] // key.shape[1]
    keys, values = np.repeat(factor(key), groups, axis=1), np.repeat(factor(value), groups, axis=1)
    scores = np.matmul(factor(query), np.swapaxes(keys, -1, -2)) * scale
    if mask is not None and masking == "select":
        scores = np.where(mask, scores, fill)
    elif mask is not None:
        scores = scores + (np.where(mask, 0.0, -np.inf) if mask.dtype == np.bool_ else widen(mask))
    if causal:
        rows, columns = scores.shape[-2:]
        scores = np.where(np.tri(rows, columns, dtype=np.bool_), scores, -np.inf)
    peak = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(peak == -np.inf, 0.0, peak))
    total = weights.sum(axis=-1, keepdims=True)
    without = total == 0.0
    if empty_rows == "nan" and scores.shape[-1]:
        total = np.where(without, np.nan, total)
    else:
        total = np.where(without, 1.0, total)
    result = np.matmul(factor(weights, value.dtype), values) / total
    return np.where(np.isnan(total), 0.0, result) if empty_rows == "guarded" else result


def rope(source: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """Rotates pairs of features, in float64."""
    wide = widen(source)
    features = wide.shape[-1]
    cosine, sine = (_per_feature(widen(table), features, interleaved) for table in (cos, sin))
    if interleaved:
        first, second = wide[..., 0::2], wide[..., 1::2]
        partner = np.stack([-second, first], axis=-1).reshape(wide.shape)
    else:
        first, second = wide[..., : features // 2], wide[..., features // 2 :]
        partner = np.concatenate([-second, first], axis=-1)
    return wide * cosine + partner * sine


def _per_feature(table: Array, features: int, interleaved: bool) -> Array:
    if table.shape[-1] == features:
        return table
    return np.repeat(table, 2, axis=-1) if interleaved else np.concatenate([table, table], axis=-1)
