"""Attention with what its gradient needs, and the gradient.

The softmax is made again from the logarithms of its sums, which the forward keeps (Dao et al., FlashAttention, 2022,
algorithm 4, without its blocks). A row that may look nowhere has the logarithm 0, weights 0 and gradients 0. Attention
that drops values at random is left as it is.

Shapes: query, the output and its gradient are batch x heads x rows x width; key and value have fewer heads where
several heads of the query share one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Any:
    """``_scaled_dot_product_flash_attention_for_cpu``: the output, and the logarithms, batch x heads x rows."""
    if dropout_p != 0.0:
        return NotImplemented
    scores = _scores(query, _shared(key, query), is_causal, attn_mask, scale)
    sums = torch.logsumexp(scores, -1)
    sums = torch.where(sums == float("-inf"), 0.0, sums)
    weights = torch.exp(scores - sums.unsqueeze(-1)).to(value.dtype)
    out = torch.matmul(weights, _shared(value, query))
    if query.transpose(1, 2).is_contiguous():  # the output lies in memory as the query does
        out = out.transpose(1, 2).contiguous().transpose(1, 2)
    return out, sums


def attention_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> Any:
    """Gradients of query, key and value."""
    if dropout_p != 0.0:
        return NotImplemented
    wide = logsumexp.dtype
    keys, values = _shared(key, query), _shared(value, query)
    weights = torch.exp(_scores(query, keys, is_causal, attn_mask, scale) - logsumexp.unsqueeze(-1))
    of_values = torch.matmul(weights.transpose(-2, -1).to(grad.dtype), grad)
    of_weights = torch.matmul(grad, values.transpose(-2, -1)).to(wide)
    mean = (grad.to(wide) * out.to(wide)).sum(-1, keepdim=True)
    of_scores = (weights * (of_weights - mean) * _scale(query, scale)).to(query.dtype)
    of_keys = torch.matmul(of_scores.transpose(-2, -1), query)
    return torch.matmul(of_scores, keys), _summed(of_keys, key), _summed(of_values, value)


def _scale(query: Tensor, scale: float | None) -> Any:
    return query.shape[-1] ** -0.5 if scale is None else scale


def _shared(values: Tensor, query: Tensor) -> Tensor:
    """Keys or values with as many heads as the query."""
    batch, heads, rows, width = values.shape
    if heads == query.shape[1]:
        return values
    shares = query.shape[1] // heads
    return values.unsqueeze(2).expand(batch, heads, shares, rows, width).reshape(batch, heads * shares, rows, width)


def _summed(grad: Tensor, values: Tensor) -> Tensor:
    """The gradient of keys or values out of that of :func:`_shared`."""
    if grad.shape[1] == values.shape[1]:
        return grad
    batch, heads, rows, width = values.shape
    return grad.reshape(batch, heads, -1, rows, width).sum(2)


def _scores(query: Tensor, key: Tensor, is_causal: bool, attn_mask: Tensor | None, scale: float | None) -> Tensor:
    wide = torch.float64 if query.dtype == torch.float64 else torch.float32
    scores = torch.matmul(query, key.transpose(-2, -1)).to(wide) * _scale(query, scale)
    if is_causal:
        rows = torch.arange(query.shape[-2], device=query.device).unsqueeze(-1)
        columns = torch.arange(key.shape[-2], device=query.device)
        scores = torch.where(rows >= columns, scores, float("-inf"))
    if attn_mask is None:
        return scores
    if attn_mask.dtype == torch.bool:
        return torch.where(attn_mask, scores, float("-inf"))
    return scores + attn_mask
