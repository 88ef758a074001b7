"""Per-token and fake quantization, products with int8 weights and bags of embeddings, compiled, against eager."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lowerkit
from lowerkit.capture.capture import capture
from lowerkit.capture.torch_export.decompositions.own_table import OWN_DECOMPOSITIONS
from lowerkit.compiler import compile_program
from lowerkit.program.dtypes import to_torch
from tests.operators.test_decompositions import holds, same

importlib.import_module("torch.ao.quantization.fx._decomposed")  # registers the ops
DECOMPOSED = torch.ops.quantized_decomposed
INT8 = (-128, 127, torch.int8)


def extremes(*shape: int) -> Tensor:
    """Rows of usual values, of zeros, of one sign, of huge and of tiny values."""
    value = torch.randn(*shape)
    value[0, :] = 0
    value[1, :] = value[1, :].abs() + 1
    value[2, :] *= 1e30
    value[3, :] *= 1e-30
    return value


def per_token(value: Tensor) -> tuple[Tensor, ...]:
    scales, zero_points = DECOMPOSED.choose_qparams_per_token_asymmetric(value, torch.int8)
    codes = DECOMPOSED.quantize_per_token(value, scales, zero_points, *INT8)
    back = DECOMPOSED.dequantize_per_token(codes, scales, zero_points, *INT8, torch.float32)
    return scales, zero_points, codes, back


@pytest.mark.parametrize("shape", [(5, 16), (7, 33)])
def test_quantization_of_each_token(shape: tuple[int, int]) -> None:
    same(per_token, extremes(*shape))


def test_a_dynamic_linear_layer_of_each_token() -> None:
    codes, scales = torch.randint(-127, 128, (8, 16), dtype=torch.int8), torch.rand(8) / 50
    holds(lambda x: nn.functional.linear(per_token(x)[3], codes * scales.unsqueeze(1)), torch.randn(5, 16))


class Packed(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.codes = nn.Buffer(torch.randint(-127, 128, (9, 16), dtype=torch.int8))
        self.scales = nn.Buffer((torch.rand(9) / 50).to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.aten._weight_int8pack_mm(x, self.codes, self.scales)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_with_int8_weights(dtype: torch.dtype) -> None:
    """Beside float64: PyTorch's own kernel reads memory that is not its own for some shapes."""
    module, x = Packed(dtype).eval(), torch.randn(5, 16).to(dtype)
    wanted = (x.double() @ module.codes.double().t() * module.scales.double()).to(dtype)
    (found,) = compile_program(capture(module, (x,))).session.run(x)
    torch.testing.assert_close(to_torch(found), wanted)


@pytest.mark.parametrize("axis", [0, 1])
def test_fake_quantization_of_each_channel(axis: int) -> None:
    value = torch.randn(6, 6) * 3
    value[0, 0], value[1, 1] = 1e6, -1e6  # beyond 64 bits eager converts to an integer that C++ leaves open
    scales, zero_points = torch.rand(6) / 10 + 0.01, torch.randint(-4, 5, (6,), dtype=torch.int32)
    ties = torch.arange(-6.0, 6.0).reshape(2, 6) * 0.5
    same(lambda x: torch.fake_quantize_per_channel_affine(x, scales, zero_points, axis, -100, 99), value)
    same(lambda x: torch.fake_quantize_per_channel_affine(x, torch.ones(6), zero_points, 1, -4, 4), ties)
    for kind in (torch.float16, torch.float64):
        same(lambda x: torch.fake_quantize_per_channel_affine(x, scales, zero_points, axis, -100, 99), value.to(kind))


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "sum"},
        {"mode": "mean"},
        {"mode": "mean", "padding_idx": 3},
        {"mode": "sum", "include_last_offset": True},
    ],
    ids=str,
)
def test_bags_of_embeddings(options: dict[str, Any]) -> None:
    """Where bags begin is data: one artifact, several layouts, empty bags among them."""
    torch.manual_seed(3)
    bags = nn.EmbeddingBag(11, 8, **options).eval()
    indices = torch.tensor([1, 3, 3, 5, 7, 9, 3])
    last = 7 if "include_last_offset" in options else 6
    compiled = lowerkit.compile(bags, (indices, torch.tensor([0, 2, 2, last])))
    for offsets in ([0, 2, 2, last], [0, 1, 2, last], [0, 0, 0, last]):
        expected = bags(indices, torch.tensor(offsets)).detach()
        torch.testing.assert_close(torch.from_numpy(compiled(indices, torch.tensor(offsets))), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("padding", [None, 3, -1])
@pytest.mark.parametrize("mode", [0, 1])
def test_bags_that_end_before_the_last_index(mode: int, padding: int | None, dtype: torch.dtype) -> None:
    """All four results, as PyTorch's kernels have them: they differ with the dtype and the padding."""
    table, indices = torch.randn(10, 3, dtype=dtype), torch.tensor([1, 2, 4, 9, 4, 3, 2, 9])
    own = OWN_DECOMPOSITIONS[torch.ops.aten.embedding_bag.padding_idx]
    for ends, offsets in (
        (False, [0, 2, 2, 5]),
        (True, [0, 2, 2, 5, 8]),
        (True, [0, 2, 2, 5, 6]),
        (True, [0, 0, 3, 3]),
    ):
        arguments = (table, indices, torch.tensor(offsets), False, mode, False, None, ends, padding)
        for ours, eager in zip(own(*arguments)[::2], torch.embedding_bag(*arguments)[::2], strict=True):
            torch.testing.assert_close(ours, eager)


def test_a_bag_for_each_row_and_weights_for_each_sample() -> None:
    bags = nn.EmbeddingBag(11, 8, mode="sum").eval()
    holds(lambda i: bags(i), torch.randint(0, 11, (3, 5)))
    holds(lambda i, w: bags(i, per_sample_weights=w), torch.randint(0, 11, (3, 5)), torch.randn(3, 5))


def test_codes_of_nan_and_infinity_are_those_of_eager() -> None:
    """Codes of a NaN are 0; fake quantization takes it for the least number, and of channels an infinity too."""
    x = torch.tensor([float("nan"), 1.0, float("inf"), float("-inf"), 0.26, -3e20] * 5 + [float("nan")])
    scales, points = torch.tensor([0.1]), torch.tensor([3], dtype=torch.int32)

    def codes(x: Tensor) -> tuple[Tensor, ...]:
        ranges = ((torch.int8, -128, 127), (torch.uint8, 0, 255), (torch.int16, -32768, 32767))
        row = x.view(1, -1)
        return (
            *(DECOMPOSED.quantize_per_tensor(x, 0.1, 3, low, high, dtype) for dtype, low, high in ranges),
            DECOMPOSED.quantize_per_channel(row, scales, points, 0, *INT8),
            torch.fake_quantize_per_tensor_affine(x, 0.1, 3, -128, 127),
            torch.fake_quantize_per_channel_affine(row, scales, points, 0, -128, 127),
            per_token(x.view(-1, 1))[2],
        )

    same(codes, x)
