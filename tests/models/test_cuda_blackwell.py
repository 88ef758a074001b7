"""Models compiled for sm_100, run launch for launch on the simulated device, by gate A."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lowerkit.capture.capture import capture
from lowerkit.compiler import CompileOptions, compile_program
from lowerkit.parity.check import check_program
from lowerkit.program.program import Program
from tests.support.models import fresh, tiny_program

TARGET, SIMULATED = "cuda:sm_100", "cuda-sim"


def holds(program: Program) -> None:
    report = check_program(program, target=TARGET, device=SIMULATED, per_op=True)
    failing = [(row.name, row.verdict.reason) for row in (*report.ops, *report.outputs) if not row.verdict.passed]
    assert report.outputs and not failing, failing


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("bert_base", torch.bfloat16),
        ("llama", torch.float32),
        pytest.param("resnet50", torch.bfloat16, marks=pytest.mark.exhaustive),
    ],
)
def test_small_models(name: str, dtype: torch.dtype) -> None:
    """Products of these sizes go to mma.sync; pairs of f32 and extremes of a warp are those of sm_100."""
    holds(tiny_program(name, dtype))


class Block(nn.Module):
    """Attention over a sequence that is long enough for tiles of 64 queries, and what follows it."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(64, 192), nn.Linear(64, 64), nn.LayerNorm(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).reshape(x.shape[0], x.shape[1], 3, 2, 32).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.norm(x + self.out(y.transpose(1, 2).flatten(2)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_model_that_multiplies_in_tensor_memory(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    program = capture(Block().eval().to(dtype), (torch.randn(1, 150, 64).to(dtype),))
    made = compile_program(fresh(program), CompileOptions(TARGET, golden=False, device=SIMULATED))
    (summary,) = made.offload
    assert summary.ops == summary.all_ops
    assert any(b"tcgen05.mma" in code for code in made.parts.code.values())
    holds(program)
