"""A mixture of experts: each rank has its tokens and its experts, and all_to_all brings the ones to the others.

    python experts.py         # compiles for two ranks, runs them in this process, and compares with eager PyTorch

One axis of the mesh does both: the input is split along its first dimension, the weights of the experts along theirs.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

import lowerkit


class Mixture(nn.Module):
    """A router, and experts whose weights are stacked; each expert takes as many tokens as it has room for."""

    def __init__(self, width: int, inner: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.experts = Experts(width, inner, experts)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Returns f32[groups, tokens, width] of tokens of the same shape."""
        shares = torch.softmax(self.router(tokens), dim=-1)
        return tokens + self.experts(tokens, shares)


class Experts(nn.Module):
    """Experts of two layers."""

    def __init__(self, width: int, inner: int, experts: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(experts, width, inner) / width**0.5)
        self.down = nn.Parameter(torch.randn(experts, inner, width) / inner**0.5)

    def forward(self, tokens: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        """Returns what the experts make of tokens f32[groups, tokens, width], by f32[groups, tokens, experts]."""
        groups, count, width = tokens.shape
        sent = (shares.permute(2, 0, 1).unsqueeze(-1) * tokens.unsqueeze(0)).reshape(-1, groups * count, width)
        made = torch.matmul(nn.functional.silu(torch.matmul(sent, self.up)), self.down)
        return made.reshape(-1, groups, count, width).sum(0)


def main() -> None:
    """Compiles, runs and compares."""
    torch.manual_seed(0)
    module, tokens = Mixture(16, 32, 4).eval(), torch.randn(4, 6, 16)
    compiled = lowerkit.compile(module, [tokens], mesh="ep=2", shard={"tokens": "batch", "experts": "expert"})
    assert compiled.sharding is not None
    print(compiled.sharding.render())
    with torch.no_grad():
        error = float(np.abs(compiled(tokens) - module(tokens).numpy()).max())
    print(f"largest error {error:.1e}")
    assert error < 1e-5


if __name__ == "__main__":
    main()
