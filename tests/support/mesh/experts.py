"""A mixture of experts whose weights are stacked: all experts' inputs of a kind are one tensor of three dimensions."""

from __future__ import annotations

import torch
from torch import nn


class Experts(nn.Module):
    """All experts compute all tokens; each token keeps those of its two experts."""

    def __init__(self, width: int, inner: int, count: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(count, width, inner) / width**0.5)
        self.down = nn.Parameter(torch.randn(count, inner, width) / inner**0.5)

    def forward(self, x: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        """Returns f32[tokens, width] for tokens f32[tokens, width] and shares f32[tokens, experts]."""
        hidden = nn.functional.silu(torch.matmul(x.unsqueeze(0), self.up))
        return (torch.matmul(hidden, self.down) * shares.t().unsqueeze(-1)).sum(0)


class Mixture(nn.Module):
    """Layers of a router and experts."""

    def __init__(self, width: int = 16, inner: int = 32, count: int = 4, layers: int = 2) -> None:
        super().__init__()
        self.routers = nn.ModuleList(nn.Linear(width, count, bias=False) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.experts = nn.ModuleList(Experts(width, inner, count) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns f32[tokens, width]."""
        for router, norm, experts in zip(self.routers, self.norms, self.experts, strict=True):
            y = norm(x)
            shares = torch.softmax(router(y), dim=-1)
            best, places = torch.topk(shares, 2, dim=-1)
            x = x + experts(y, torch.zeros_like(shares).scatter(-1, places, best))
        return x


def mixture() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Returns a small mixture of experts and its inputs."""
    torch.manual_seed(0)
    return Mixture().eval(), (torch.randn(6, 16),)
