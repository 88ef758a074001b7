"""Kernels read and write nothing beside their operands: programs whose memory lies between pages without access."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import lowerkit
from lowerkit.program.dtypes import to_numpy, to_torch
from tests.support.fuzz_tools import fuzz_tool

DTYPES = (torch.bool, torch.uint8, torch.int16, torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Slices(torch.nn.Module):
    """The last element of each row, or every second and third: vectors of them end where the buffer ends."""

    def forward(self, *values: torch.Tensor) -> list[torch.Tensor]:
        return [part for value in values for part in (value[..., 2:3:2], value[..., ::2], value[:, 1:, 3::3])]


@pytest.fixture(scope="module")
def guarded() -> Any:
    return fuzz_tool("guarded_memory")


@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("shape", [(24, 16, 3), (5, 11, 8)], ids=["whole", "tails"])
def test_slices_with_gaps(guarded: Any, shape: tuple[int, ...], symbolic: bool) -> None:
    """384 results are whole vectors of any machine, 55 are not."""
    torch.manual_seed(0)
    inputs = tuple((torch.randn(shape) * 9).to(dtype) for dtype in DTYPES)
    dims = (tuple({0: torch.export.Dim.DYNAMIC} for _ in inputs),) if symbolic else None
    exported = torch.export.export(Slices(), inputs, dynamic_shapes=dims)
    session = lowerkit.compile(exported, threads=1).session
    for at_end in (False, True):
        results = guarded.guarded_results(session, [np.asarray(to_numpy(v)) for v in inputs], at_end=at_end)
        for ours, eager in zip(results, Slices()(*inputs), strict=True):
            assert torch.equal(to_torch(ours), eager)
