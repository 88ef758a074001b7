"""Conversions, functions near zero and sums of infinities: every element is eager's."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

import lowerkit
from lowerkit.program.dtypes import to_torch
from tests.operators.test_decompositions import Function
from tests.support.truth_table.values import DTYPES, FLOATS, special_values

_BEYOND = (300.0, -1.0, -1.5, 255.9, 256.0, -129.0, 1e5, -1e5, 3e9, -3e9, 5e9, 40000.0, 70000.0)


def test_floats_beyond_a_narrow_integer_keep_their_low_bits() -> None:
    """300 as a byte is 44 and a NaN is 0, in vectors and in what is left behind them."""
    values = [torch.cat([special_values(name), torch.tensor(_BEYOND).to(DTYPES[name])]) for name in FLOATS]
    narrow = (torch.int8, torch.uint8, torch.int16)

    def convert(*inputs: Tensor) -> list[Tensor]:
        return [value.to(dtype) for value in inputs for dtype in narrow]

    compiled = lowerkit.compile(Function(convert).eval(), tuple(values))
    for ours, eager in zip(compiled.session.run(*values), convert(*values), strict=True):
        np.testing.assert_array_equal(to_torch(ours).numpy(), eager.numpy())


def test_logarithms_and_exponentials_of_f64_keep_tiny_values() -> None:
    """log1p and expm1 are no logarithm of 1 + x and no exponential less 1: those give 0 for 1e-20."""
    x = torch.tensor([1e-214, 1e-20, -1e-20, -1e-9, 0.1, -0.0, 2.0, -30.0, float("nan")], dtype=torch.float64)

    def tiny(x: Tensor) -> list[Tensor]:
        return [torch.log1p(x), torch.expm1(x), torch.nn.functional.elu(x), torch.nn.functional.softplus(x)]

    compiled = lowerkit.compile(Function(tiny).eval(), (x,))
    for ours, eager in zip(compiled.session.run(x), tiny(x), strict=True):
        np.testing.assert_allclose(ours, eager.numpy(), rtol=4e-16, atol=0)


def test_sums_of_infinities_are_infinite() -> None:
    """What an addition loses is carried along, and is no number once the total is infinite."""
    blocks, rows = torch.ones(5, 5, 5), torch.ones(3, 4100)
    blocks[0, 1, 2] = rows[0, 7] = torch.inf
    rows[1, 4000] = -torch.inf
    large = torch.full((2, 2500), 3e38)

    def sums(blocks: Tensor, rows: Tensor, large: Tensor) -> list[Tensor]:
        return [
            *(blocks.sum([0, 2]), blocks.mean([0, 2]), torch.linalg.vector_norm(blocks, 2, [0, 2])),
            *(rows.sum(1), rows.sum(), rows.double().sum(1), rows.bfloat16().sum(1).float(), rows.t().sum(0)),
            *(rows.t().contiguous().sum(0), large.sum(1), torch.renorm(large.reshape(5, 10, 100), 2, 1, 0.5)),
        ]

    compiled = lowerkit.compile(Function(sums).eval(), (blocks, rows, large))
    for ours, eager in zip(compiled.session.run(blocks, rows, large), sums(blocks, rows, large), strict=True):
        np.testing.assert_allclose(ours, eager.numpy(), rtol=1e-6)
