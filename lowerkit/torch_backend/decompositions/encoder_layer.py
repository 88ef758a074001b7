"""The one op that an ``nn.TransformerEncoderLayer`` in eval mode is without gradients, as the layers in it."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional

_OF_ROWS, _OF_KEYS, _OF_HEADS = 0, 1, 2
"""What a mask is of: (rows, keys), (batch, keys) or (batch, heads, rows, keys)."""


def encoder_layer(
    data: Tensor,
    width: int,
    heads: int,
    qkv_weight: Tensor,
    qkv_bias: Tensor,
    out_weight: Tensor,
    out_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: Tensor,
    norm_bias_1: Tensor,
    norm_weight_2: Tensor,
    norm_bias_2: Tensor,
    weight_1: Tensor,
    bias_1: Tensor,
    weight_2: Tensor,
    bias_2: Tensor,
    mask: Tensor | None = None,
    mask_type: int | None = None,
) -> Any:
    """``_transformer_encoder_layer_fwd`` of data (batch, rows, width); nobody may look where ``mask`` is not 0."""
    if mask is not None and mask_type not in (_OF_ROWS, _OF_KEYS, _OF_HEADS):
        return NotImplemented
    allowed = None if mask is None else (mask[:, None, None] if mask_type == _OF_KEYS else mask) == 0
    batch, rows, _ = data.shape

    def attention(x: Tensor) -> Tensor:
        split = functional.linear(x, qkv_weight, qkv_bias).reshape(batch, rows, 3, heads, width // heads)
        query, key, value = split.permute(2, 0, 3, 1, 4).unbind(0)
        found = functional.scaled_dot_product_attention(query, key, value, attn_mask=allowed)
        return functional.linear(found.transpose(1, 2).reshape(batch, rows, width), out_weight, out_bias)

    def feed_forward(x: Tensor) -> Tensor:
        inner = functional.linear(x, weight_1, bias_1)
        return functional.linear(functional.gelu(inner) if use_gelu else functional.relu(inner), weight_2, bias_2)

    def first(x: Tensor) -> Tensor:
        return functional.layer_norm(x, [width], norm_weight_1, norm_bias_1, eps)

    def second(x: Tensor) -> Tensor:
        return functional.layer_norm(x, [width], norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = data + attention(first(data))
        return x + feed_forward(second(x))
    x = first(data + attention(data))
    return second(x + feed_forward(x))
