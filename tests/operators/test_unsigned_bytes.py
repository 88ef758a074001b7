"""Unsigned bytes above 127, alone and beside other types: as eager, never as negative numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import lowerkit
from tests.operators.test_decompositions import Function

CASES: dict[str, Callable[..., Any]] = {
    "floor_divide": lambda x, y: (x // y, x // 7, torch.div(x, y, rounding_mode="floor")),
    "trunc": lambda x, y: (torch.div(x, y, rounding_mode="trunc"), torch.div(x, 200, rounding_mode="trunc")),
    "remainder": lambda x, y: (x % y, x % 7, torch.fmod(x, y), torch.fmod(x, 200)),
    "true division": lambda x, y: (x / y, x / 3, x / y.bfloat16().float()),
    "with numbers": lambda x, y: (x + 0.5, x - 0.25, 3 - x, x * 1.5, x.abs(), x + 300),
    "with integers": lambda x, y: (x + y.short(), x * y.int(), torch.maximum(x, y.int() - 300), x & (y.int() * 5)),
    "joined": lambda x, y: (torch.cat([x, y.short()]), torch.stack([x, y.short()])),
    "chosen": lambda x, y: (torch.where(x > y, x, y.int() - 300), torch.where(x > y, x, 7)),
    "compared": lambda x, y: (x > y, x <= y.int(), x >= y.float() + 0.5, x > y.char()),
    "compared with numbers": lambda x, y: (x > 100, x < 300, x > -1, x > 100.5),
    "as a place": lambda x, y: torch.arange(300)[x.long()] + torch.gather(x.long(), 0, (y % 8).long()),
    "functions": lambda x, y: (x.sqrt(), torch.log1p(x), torch.square(x.float())),
}


@pytest.mark.parametrize("name", CASES)
def test_bytes(name: str) -> None:
    x, y = torch.randint(0, 256, (64,), dtype=torch.uint8), torch.randint(1, 256, (64,), dtype=torch.uint8)
    x[:2], y[:2] = 255, torch.tensor([128, 1], dtype=torch.uint8)
    compiled = lowerkit.compile(Function(CASES[name]).eval(), (x, y))
    expected = CASES[name](x, y)
    for ours, wanted in zip(
        compiled.session.run(x, y), expected if isinstance(expected, tuple) else (expected,), strict=True
    ):
        assert ours.dtype == wanted.numpy().dtype
        np.testing.assert_allclose(ours, wanted.numpy(), rtol=1e-6)
