"""TorchScript of models that PyTorch's eager mode quantized: PyTorch's own integer kernels, within one step."""

# PyTorch's eager mode of quantization has no types.
# pyright: reportUnknownMemberType=false, reportPrivateImportUsage=false, reportDeprecated=false

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.ao import quantization
from torch.ao.nn.quantized import FloatFunctional

import lowerkit
from lowerkit.errors import UnsupportedError


class Convolutions(nn.Module):
    """Fused and plain convolutions, pools, a sum, a product and a concatenation of quantized tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.quantize, self.dequantize = quantization.QuantStub(), quantization.DeQuantStub()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, stride=2), nn.ReLU())
        self.second = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=4, bias=False)
        self.adds, self.joins, self.scales = (FloatFunctional() for _ in range(3))
        self.last = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(self.quantize(x))
        y = self.adds.add_relu(x, self.second(x))
        y = self.joins.cat([torch.max_pool2d(y, 3, 2), self.scales.mul(x, x)[:, :, 1:4, :3]], 1)
        return self.dequantize(self.last(torch.flatten(nn.functional.adaptive_avg_pool2d(y, 1), 1)))


class Rows(nn.Module):
    """Products behind each other, one of them fused with its activation, and a convolution over one axis."""

    def __init__(self) -> None:
        super().__init__()
        self.quantize, self.dequantize = quantization.QuantStub(), quantization.DeQuantStub()
        self.across = nn.Conv1d(3, 6, 3, stride=2)
        self.first = nn.Sequential(nn.Linear(7, 33), nn.ReLU())
        self.activation = nn.Hardswish()
        self.last = nn.Linear(33, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(self.across(self.quantize(x)))
        return self.dequantize(self.last(self.activation(x)).mean(1))


def quantized(model: nn.Module, example: torch.Tensor, *, per_channel: bool) -> Any:
    weights = quantization.default_per_channel_weight_observer if per_channel else quantization.default_weight_observer
    prepared: Any = model.eval()
    # Seven bits: PyTorch's kernels add pairs of products in 16 bits on some machines.
    activations = quantization.HistogramObserver.with_args(reduce_range=True)
    prepared.qconfig = quantization.QConfig(activation=activations, weight=weights)
    prepared = quantization.fuse_modules(prepared, [["first.0", "first.1"]])
    prepared = quantization.prepare(prepared)
    for _ in range(4):
        prepared(torch.randn_like(example))
    return quantization.convert(prepared)


@pytest.mark.parametrize("scripted", [False, True], ids=["traced", "scripted"])
@pytest.mark.parametrize("per_channel", [False, True], ids=["per-tensor", "per-channel"])
@pytest.mark.parametrize(("kind", "shape"), [(Convolutions, (6, 3, 15, 13)), (Rows, (16, 3, 15))])
def test_integers_are_pytorchs(
    kind: type[nn.Module], shape: tuple[int, ...], per_channel: bool, scripted: bool
) -> None:
    torch.manual_seed(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated
        model = quantized(kind(), torch.randn(shape), per_channel=per_channel)
        script = torch.jit.script(model) if scripted else torch.jit.trace(model, torch.randn(shape))
    compiled = lowerkit.compile(script, (torch.randn(shape),))
    step = float(model.last.scale)
    shares: list[float] = []
    for _ in range(4):
        x = torch.randn(shape) * 1.5
        expected = model(x).numpy()
        found = compiled(x)
        assert np.ptp(expected) > 10 * step
        assert np.abs(found - expected).max() <= 1.01 * step
        shares.append(float(np.mean(found != expected)))
    assert np.mean(shares) <= 0.1  # PyTorch rounds ties of products and averages in its own ways


def test_what_is_quantized_at_run_time_is_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = quantization.quantize_dynamic(nn.Sequential(nn.Linear(8, 4)).eval(), {nn.Linear}, dtype=torch.qint8)
        script = torch.jit.trace(model, torch.randn(2, 8))
    with pytest.raises(UnsupportedError, match="linear_dynamic") as raised:
        lowerkit.compile(script, (torch.randn(2, 8),))
    assert raised.value.code == "LK4001" and "PT2E" in (raised.value.hint or "")
