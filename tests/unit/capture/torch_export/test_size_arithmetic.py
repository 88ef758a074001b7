"""Arithmetic on sizes in a model: the numbers that Python computes, at other sizes than those of the export."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.export import Dim

import lowerkit
from lowerkit.errors import LowerkitError, UnsupportedError

Function = Callable[[torch.Tensor, Any, Any], Any]

FACTORS: dict[str, Function] = {
    "remainder": lambda x, n, m: n % m + m % 3,
    "remainder of a difference": lambda x, n, m: (n - m) % 3,
    "floor division of a difference": lambda x, n, m: (n - m) // 3,
    "power": lambda x, n, m: (n - m) ** 3,
    "shifts": lambda x, n, m: ((n - m) >> 2) + (m << 3),
    "lowest bits": lambda x, n, m: ((n - m) & 7) + (3 & m),
    "largest": lambda x, n, m: torch.sym_max(n, m),
    "smallest": lambda x, n, m: torch.sym_min(n, torch.sym_min(m, 4)),
    "floor": lambda x, n, m: math.floor((n - m) / 2),
    "ceil": lambda x, n, m: math.ceil((n - m) / 2),
    "trunc": lambda x, n, m: math.trunc((n + 1) / 4),
    "float": lambda x, n, m: torch.sym_float(n) / m,
    "square root": lambda x, n, m: torch.sym_sqrt(m),
    "root": lambda x, n, m: n**0.5,
    "one over the root": lambda x, n, m: m**-0.5,
    "sum": lambda x, n, m: torch.sym_sum([n, m, n]),
    "float less than": lambda x, n, m: torch.tensor(n / 3 < 2),
    "float greater than": lambda x, n, m: torch.tensor(n / 3 > 2),
    "size less than a float": lambda x, n, m: torch.tensor(m < n * 0.75),
    "floats less or equal": lambda x, n, m: torch.tensor(m / 2 <= n / 2),
    "floats greater": lambda x, n, m: torch.tensor(n / 2 > m * 1.5),
    "floats greater or equal": lambda x, n, m: torch.tensor(n * 0.5 >= m / 2),
    "floats equal": lambda x, n, m: torch.tensor(n / 2 == m / 2),
    "floats not equal": lambda x, n, m: torch.tensor(m / 4 != 2),
    "float minus size": lambda x, n, m: 2.5 * n - m,
    "size minus float": lambda x, n, m: m - n / 3,
    "quotients": lambda x, n, m: n / 3 / m + 2.5 / n,
}
SHAPES: dict[str, Function] = {
    "padded to a multiple": lambda x, n, m: torch.nn.functional.pad(x, (0, -m % 7, 0, -n % 4)),
    "largest": lambda x, n, m: x.new_zeros(max(n, 3)) + x.sum(),
    "smallest": lambda x, n, m: x[: min(n, 3)],
    "power": lambda x, n, m: x.new_ones(n**2) * x.sum(),
    "halves": lambda x, n, m: x.new_ones(n >> 1, math.ceil(m / 2), math.floor(n / 2)) * x.sum(),
    "lowest bits": lambda x, n, m: x.new_ones((n & 3) + 2) * x.sum(),
    "in a branch": lambda x, n, m: torch.cond(
        x.sum() > 0, lambda x: x * (n % 4), lambda x: x + torch.sym_max(n - 3, m), (x,)
    ),
}
SIZES = [(6, 4), (7, 5), (13, 9), (2, 2), (3, 8), (101, 33)]


class Model(torch.nn.Module):
    """A function of a tensor and its two extents."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.function(x, x.shape[0], x.shape[1])
        return result


def exported(function: Function) -> torch.export.ExportedProgram:
    """Exports with both extents open."""
    shapes = ({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},)
    return torch.export.export(Model(function), (torch.randn(6, 4),), dynamic_shapes=shapes, strict=False)


def compare(program: torch.export.ExportedProgram, model: Any) -> int:
    """Compares at all sizes; returns at how many the exported program ran. What it refuses is refused.

    Elements are small whole numbers: their sums, and their products with sizes, stay below 2**24 and are exact in f32
    in any order. What is left to round is a factor that is no whole number, to f32, and its product: either side errs
    by two halves of an epsilon at most, so they differ by two epsilons at most.
    """
    ran = 0
    for shape in SIZES:
        x = torch.randint(-9, 10, shape).float()
        try:
            wanted = program.module()(x)
        except AssertionError:
            with pytest.raises(LowerkitError, match="LK8004"):
                model(x)
            continue
        np.testing.assert_allclose(model(x), wanted, rtol=2 * torch.finfo(torch.float32).eps)
        ran += 1
    return ran


@pytest.mark.parametrize("name", FACTORS)
def test_numbers(name: str) -> None:
    program = exported(lambda x, n, m: x * FACTORS[name](x, n, m))
    assert compare(program, lowerkit.compile(program)) == len(SIZES)


@pytest.mark.parametrize("name", SHAPES)
def test_extents(name: str) -> None:
    program = exported(SHAPES[name])
    assert compare(program, lowerkit.compile(program)) >= 4


def test_from_a_file(tmp_path: Path) -> None:
    program = exported(SHAPES["padded to a multiple"])
    torch.export.save(program, tmp_path / "model.pt2")
    assert compare(program, lowerkit.compile(tmp_path / "model.pt2")) == len(SIZES)


def test_what_has_no_words_is_refused_with_its_lines() -> None:
    program = exported(lambda x, n, m: x * (n | 1) + round(m / 2))
    with pytest.raises(UnsupportedError) as caught:
        lowerkit.compile(program)
    assert caught.value.code == "LK4001"
    assert "or_ of sizes at" in str(caught.value) and "round of sizes at" in str(caught.value)
    assert "test_size_arithmetic.py" in str(caught.value)
