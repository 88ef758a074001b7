"""The regions that the ranks of a mesh run are witnessed, of each stage of a pipeline."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lowerkit.capture.torch_export.capture import capture_module
from lowerkit.compiled import CompileOptions
from lowerkit.compiler import lower_stages
from lowerkit.parity.witness.kernels import witness_kernels
from lowerkit.parity.witness.verdicts import Witnessed
from lowerkit.spmd.sharding import sharding_of
from tests.unit.parity.witness.test_witness import plant


def witnessed(mesh: str) -> list[Witnessed]:
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16), nn.Softmax(-1), nn.Linear(16, 8)).eval()
    program = capture_module(model, [torch.randn(4, 16)])
    sharding = sharding_of(mesh, "auto", program, invariant=False, target="cpu")
    stages, _, _ = lower_stages(program, CompileOptions(sharding=sharding), None)
    return witness_kernels([each for each, _ in stages], CompileOptions(), None)


@pytest.mark.parametrize(("mesh", "first"), [("tp=2", "16,16"), ("pp=2", "32,16"), ("tp=2,pp=2", "16,16")])
def test_the_regions_of_ranks_are_compared(mesh: str, first: str) -> None:
    found = witnessed(mesh)
    assert {each.verdict for each in found} == {"same"}
    products = [each.operands for each in found if each.name == "matmul"]
    assert products[0].startswith(f"f32[4,16], f32[{first}]") and products[-1].startswith("f32[4,16], f32[8,16]")


def test_a_wrong_number_of_a_later_stage_is_flagged(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert any(each.verdict == "differs" for each in witnessed("pp=2"))
