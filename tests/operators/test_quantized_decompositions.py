"""Per-token and fake quantization and products with int8 weights, compiled, against eager."""

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("scale", "point", "limits"), [(0.1, 3, (-128, 127)), (0.37, 0, (0, 255)), (1.0, -5, (-8, 7))])
def test_fake_quantization_of_a_whole_tensor(
    dtype: torch.dtype, scale: float, point: int, limits: tuple[int, int]
) -> None:
    """To the bit, with the mask of what was not limited; a NaN is the least code, infinities are limited."""
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), 3e20, 0.05, -12.85])
    value = torch.cat([special, torch.arange(-300, 300) / 20, torch.randn(100) * 5]).to(dtype)
    scales, points = torch.tensor([scale]), torch.tensor([point], dtype=torch.int32)
    aten = torch.ops.aten
    switched = aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default
    calls: list[tuple[Any, ...]] = [
        (aten.fake_quantize_per_tensor_affine.default, value, scale, point),
        (aten.fake_quantize_per_tensor_affine.default, value[6], scale, point),
        (aten.fake_quantize_per_tensor_affine.tensor_qparams, value, scales, points),
        (aten.fake_quantize_per_tensor_affine_cachemask.default, value, scale, point),
        *((switched, value, scales, points, torch.tensor([enabled])) for enabled in (0, 1)),
        (aten.fake_quantize_per_channel_affine_cachemask.default, value[None], scales, points, 0),
    ]
    for operator, *arguments in calls:
        ours = OWN_DECOMPOSITIONS[operator](*arguments, *limits)
        torch.testing.assert_close(ours, operator(*arguments, *limits), rtol=0, atol=0, equal_nan=True)


def test_products_of_bytes_are_summed_in_32_bits() -> None:
    x, y = torch.randint(-128, 128, (17, 40), dtype=torch.int8), torch.randint(-128, 128, (40, 8), dtype=torch.int8)
    compiled = lowerkit.compile(Product(), (x, y))
    assert torch.equal(torch.from_numpy(compiled(x, y)), torch.ops.aten._int_mm(x, y))


class Product(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.ops.aten._int_mm(x, y)
