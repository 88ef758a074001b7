"""The FLOPs of symbolic models are expressions: at every size those that the same model has with fixed shapes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lowerkit
from lowerkit.runtimes.expressions import evaluate


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 32)
        self.norm = nn.LayerNorm(32)
        self.convolution = nn.Conv1d(32, 8, 3, padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.norm(nn.functional.gelu(self.first(x)))[:, None]
        attended = nn.functional.scaled_dot_product_attention(y, y, y)[:, 0]
        scores = self.convolution(attended.transpose(1, 2))
        return scores.softmax(-1), (x @ x.transpose(1, 2)).cumsum(-1)


@pytest.fixture(scope="module")
def symbolic() -> lowerkit.Compiled:
    batch, length = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("length", min=2, max=128)
    return lowerkit.compile(Block().eval(), (torch.randn(3, 5, 16),), dynamic_shapes=({0: batch, 1: length},))


@pytest.mark.parametrize(("batch", "length"), [(3, 5), (64, 127)])
def test_flops_are_those_of_the_static_model(symbolic: lowerkit.Compiled, batch: int, length: int) -> None:
    def counted(compiled: lowerkit.Compiled, kind: str) -> list[int]:
        values = {"batch": batch, "length": length}
        return [evaluate(step.flops, values) for step in compiled.parts.program.steps if step.kind == kind]

    static = lowerkit.compile(Block().eval(), (torch.randn(batch, length, 16),))
    for kind in ("matmul", "conv", "attention", "layer_norm", "softmax", "cumulative"):
        found = counted(symbolic, kind)
        assert found == counted(static, kind)
        assert found
        assert all(found), kind


def test_a_profile_counts_what_was_run(symbolic: lowerkit.Compiled) -> None:
    flops = {size: sum(step.flops for step in symbolic.session.profile(torch.randn(size, 5, 16))) for size in (1, 8)}
    assert flops[8] == 8 * flops[1] > 0
