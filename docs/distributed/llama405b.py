"""Llama 3.1 405B, by its shapes, to be planned for a mesh of devices without its 810 GB of weights:

    lowerkit plan docs/distributed/llama405b.py:prefill --meta --memory 80GiB --link 450GB/s,2us --devices 8,16,64,512
    lowerkit plan docs/distributed/llama405b.py:decode --meta --memory 80GiB --link 450GB/s,2us --mesh pp=4,tp=8

``prefill`` takes a prompt of 8192 tokens, ``decode`` one token beside a cache of 8192; ``tiny_prefill`` and
``tiny_decode`` are the same model, small enough to be compiled and run.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

PROMPT = 8192
CACHE = 8192


@dataclass(frozen=True)
class Sizes:
    """The shapes of a Llama: the published ones of 405B."""

    layers: int = 126
    hidden: int = 16384
    heads: int = 128
    key_heads: int = 8
    inner: int = 53248
    vocabulary: int = 128256

    @property
    def head(self) -> int:
        """Features of a head."""
        return self.hidden // self.heads


TINY = Sizes(layers=3, hidden=64, heads=8, key_heads=2, inner=96, vocabulary=128)


class Attention(nn.Module):
    """Grouped heads, rotated; with a cache of ``cache`` tokens or, for 0, on the prompt alone."""

    keys: Tensor
    values: Tensor

    def __init__(self, sizes: Sizes, cache: int) -> None:
        super().__init__()
        self.head = sizes.head
        own, shared = sizes.heads * sizes.head, sizes.key_heads * sizes.head
        self.q_proj = nn.Linear(sizes.hidden, own, bias=False)
        self.k_proj = nn.Linear(sizes.hidden, shared, bias=False)
        self.v_proj = nn.Linear(sizes.hidden, shared, bias=False)
        self.o_proj = nn.Linear(own, sizes.hidden, bias=False)
        self.cached = cache > 0
        if self.cached:
            self.register_buffer("keys", torch.zeros(1, sizes.key_heads, cache, sizes.head))
            self.register_buffer("values", torch.zeros(1, sizes.key_heads, cache, sizes.head))

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        """Returns bf16[1, tokens, hidden], as ``x``."""
        query, key, value = (
            project(x).unflatten(-1, (-1, self.head)).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = rotated(query, cosine, sine), rotated(key, cosine, sine)
        if self.cached:
            key = self.keys.index_copy_(2, positions, key)
            value = self.values.index_copy_(2, positions, value)
        found = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )
        return self.o_proj(found.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    """A gated product."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(sizes.hidden, sizes.inner, bias=False)
        self.up_proj = nn.Linear(sizes.hidden, sizes.inner, bias=False)
        self.down_proj = nn.Linear(sizes.inner, sizes.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Returns what ``x`` is in shape."""
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention, then the gated product, each behind a norm."""

    def __init__(self, sizes: Sizes, cache: int) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(sizes.hidden, eps=1e-5)
        self.self_attn = Attention(sizes, cache)
        self.post_attention_layernorm = nn.RMSNorm(sizes.hidden, eps=1e-5)
        self.mlp = Mlp(sizes)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        """Returns what ``x`` is in shape."""
        x = x + self.self_attn(self.input_layernorm(x), cosine, sine, positions, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """From token ids i64[1, tokens] and their positions i64[tokens] to the logits of the last token."""

    def __init__(self, sizes: Sizes, cache: int = 0) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.layers = nn.ModuleList(Layer(sizes, cache) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.hidden, eps=1e-5)
        self.lm_head = nn.Linear(sizes.hidden, sizes.vocabulary, bias=False)
        self.pairs, self.cache = sizes.head // 2, cache

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Returns bf16[1, 1, vocabulary]."""
        rates = 500000.0 ** -(torch.arange(self.pairs, dtype=torch.float32) / self.pairs)
        angles = torch.outer(positions.to(torch.float32), rates)
        x = self.embed_tokens(ids)
        turns = torch.cat([angles, angles], dim=-1)
        cosine, sine = turns.cos().to(x.dtype), turns.sin().to(x.dtype)
        mask = torch.arange(self.cache)[None, :] <= positions[:, None] if self.cache else None
        for layer in self.layers:
            x = layer(x, cosine, sine, positions, mask)
        return self.lm_head(self.norm(x[:, -1:]))


def rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Turns each pair of features by the angle of its position."""
    half = x.shape[-1] // 2
    return x * cosine + torch.cat([-x[..., half:], x[..., :half]], dim=-1) * sine


def _made(sizes: Sizes, tokens: int, cache: int) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    model = Llama(sizes, cache).eval().to(torch.bfloat16).requires_grad_(False)
    return model, (torch.zeros(1, tokens, dtype=torch.int64), torch.arange(tokens))


def prefill() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """A prompt of 8192 tokens."""
    return _made(Sizes(), PROMPT, 0)


def decode() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """One token beside a cache of 8192."""
    return _made(Sizes(), 1, CACHE)


def tiny_prefill() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """A prompt of 12 tokens for a model of three layers."""
    return _made(TINY, 12, 0)


def tiny_decode() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """One token beside a cache of 16 for a model of three layers."""
    return _made(TINY, 1, 16)
