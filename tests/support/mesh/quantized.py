"""A model whose products and convolutions are of 8-bit integers, as decomposed graphs of PyTorch have them."""

from __future__ import annotations

import importlib

import torch
from torch import nn

importlib.import_module("torch.ao.quantization.fx._decomposed")  # registers the ops
decomposed = torch.ops.quantized_decomposed


def stored(x: torch.Tensor, scale: float, point: int) -> torch.Tensor:
    """Quantizes and dequantizes an activation."""
    arguments = (scale, point, -128, 127, torch.int8)
    return decomposed.dequantize_per_tensor(decomposed.quantize_per_tensor(x, *arguments), *arguments)


class IntegerWeight(nn.Module):
    """A weight of integers with one scale for each output channel, and a bias."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 128, shape, dtype=torch.int8))
        self.register_buffer("scales", torch.rand(shape[0]) * 0.01 + 0.001)
        self.register_buffer("points", torch.zeros(shape[0], dtype=torch.int64))
        self.bias = nn.Parameter(torch.randn(shape[0]) * 0.1)

    def dequantized(self) -> torch.Tensor:
        """Returns the weight in floats."""
        arguments = (self.weight, self.scales, self.points, 0, -127, 127, torch.int8)
        return decomposed.dequantize_per_channel(*arguments)


class IntegerLinear(IntegerWeight):
    """A product."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Computes in floats what becomes a product of integers."""
        return nn.functional.linear(x, self.dequantized(), self.bias)


class IntegerConv(IntegerWeight):
    """A convolution with a kernel of three by three, of one group or of one channel for each."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Computes in floats what becomes a convolution of integers."""
        groups = x.shape[1] // self.dequantized().shape[1]
        return nn.functional.conv2d(x, self.dequantized(), self.bias, padding=1, groups=groups)


class Quantized(nn.Module):
    """A dense and a depthwise convolution, and two products."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = IntegerConv(8, 3, 3, 3), IntegerConv(8, 1, 3, 3)
        self.up, self.head = IntegerLinear(16, 8), IntegerLinear(6, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Takes images of three channels."""
        x = stored(torch.relu(self.first(stored(x, 0.03, 3))), 0.02, -128)
        x = stored(torch.relu(self.second(x)), 0.02, -128)
        x = stored(x.mean((2, 3)), 0.02, -128)
        return self.head(stored(torch.relu(self.up(x)), 0.02, -128))


QUANTIZED = {"first": "column", "second": "column", "up": "column", "head": "row"}
"""A plan along one axis."""


def quantized() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Returns the model and its input."""
    return Quantized().eval(), (torch.randn(2, 3, 6, 5),)
