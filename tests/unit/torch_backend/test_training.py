"""Training steps: losses, gradients, statistics and updated parameters as eager's, with float64 as the judge."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.support.torch_backend.beside_eager import compiled, programs


class Images(nn.Module):
    """Convolution, normalizations, attention, and a product."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.batch_norm = nn.BatchNorm2d(4)
        self.norm = nn.LayerNorm(4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(64, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = functional.gelu(self.batch_norm(self.convolution(x))).flatten(2).transpose(1, 2)
        rows = rows + self.attention(*[self.norm(rows)] * 3, need_weights=False)[0]
        return self.head(rows.flatten(1))


def loss_of(module: nn.Module, x: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(module(x), classes)


def assert_near(actual: torch.Tensor, expected: torch.Tensor, exact: torch.Tensor) -> None:
    """Within four times eager's own error, or four roundings of the largest value."""
    size = exact.abs().max()
    bound = 4 * (expected.double() - exact).abs().max() + 4 * torch.finfo(expected.dtype).eps * size
    assert (actual.double() - exact).abs().max() <= bound


def test_steps_of_several_batches_with_an_optimizer(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    ours = Images()
    theirs, wide = copy.deepcopy(ours), copy.deepcopy(ours).double()
    fast = compiled(loss_of)
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9) for module in (ours, theirs, wide)]
    with caplog.at_level(logging.WARNING, "lowerkit"):
        for batch in (4, 6, 3):
            x, classes = torch.randn(batch, 3, 8, 8), torch.randint(0, 5, (batch,))
            losses = [fast(ours, x, classes), loss_of(theirs, x, classes), loss_of(wide, x.double(), classes)]
            for optimizer, loss in zip(optimizers, losses, strict=True):
                optimizer.zero_grad()
                loss.backward()
            assert_near(*losses)
            for (name, mine), other, third in zip(
                ours.named_parameters(), theirs.parameters(), wide.parameters(), strict=True
            ):
                assert mine.grad is not None and other.grad is not None and third.grad is not None, name
                # The bias before a batch norm has gradient 0, of which rounding is all there is.
                if name != "convolution.bias":
                    assert_near(mine.grad, other.grad, third.grad)
            for optimizer in optimizers:
                optimizer.step()
            for mine, other, third in zip(ours.buffers(), theirs.buffers(), wide.buffers(), strict=True):
                assert_near(mine, other, third) if mine.is_floating_point() else None
                assert mine.is_floating_point() or torch.equal(mine, other)
    assert programs() == 4  # forward and backward, for the first batch and for all others
    assert not [record for record in caplog.records if record.name == "lowerkit.torch_backend"]


def _image(channels: int = 3, size: int = 8) -> torch.Tensor:
    return torch.randn(2, channels, size, size)


LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "convolution of steps": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), lambda: _image(4)),
    "convolution with gaps": (lambda: nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=4), lambda: _image(4)),
    "convolution of tiles": (lambda: nn.Conv2d(4, 6, (2, 3), stride=(2, 3), groups=2), lambda: _image(4)),
    "convolution of signals": (lambda: nn.Conv1d(3, 5, 4, stride=3, padding=2), lambda: torch.randn(2, 3, 20)),
    "convolution of volumes": (lambda: nn.Conv3d(2, 3, 2, padding=1), lambda: torch.randn(2, 2, 4, 5, 3)),
    "transposed convolution": (
        lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
        lambda: _image(4),
    ),
    "average pool": (lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), lambda: _image()),
    "average pool by 5": (lambda: nn.AvgPool2d(2, divisor_override=5), lambda: _image()),
    "adaptive average pool": (lambda: nn.AdaptiveAvgPool2d((5, 3)), lambda: _image()),
    "adaptive maximum pool": (lambda: nn.AdaptiveMaxPool2d((3, 2)), lambda: _image()),
    "maximum pool of volumes": (lambda: nn.MaxPool3d(2), lambda: torch.randn(2, 2, 4, 5, 6)),
    "bilinear": (lambda: nn.Upsample(scale_factor=1.7, mode="bilinear"), lambda: _image()),
    "bicubic": (lambda: nn.Upsample(size=(5, 11), mode="bicubic", align_corners=True), lambda: _image()),
    "nearest": (lambda: nn.Upsample(size=(5, 11)), lambda: _image()),
    "replicated edges": (lambda: nn.ReplicationPad2d((1, 2, 0, 3)), lambda: _image()),
}


class Weighted(nn.Module):
    """A layer behind a product, so that there is a gradient to compute of its input."""

    def __init__(self, layer: nn.Module, shape: Sequence[int]) -> None:
        super().__init__()
        self.layer = layer
        self.factor = nn.Parameter(torch.rand(*shape) + 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x * self.factor)


def gradients(function: Any, module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """The output, and the gradients of the parameters and of the input."""
    given = x.clone().requires_grad_()
    out = function(given)
    weights = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).reshape(out.shape).to(out.dtype)
    found = torch.autograd.grad((out * weights).sum(), [*module.parameters(), given])
    return [out.detach(), *found]


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_of_layers(name: str) -> None:
    torch.manual_seed(0)
    make, data = LAYERS[name]
    x = data()
    module = Weighted(make(), x.shape)
    actual = gradients(compiled(module, on_refusal="error"), module, x)
    expected = gradients(module, module, x)
    wide = copy.deepcopy(module).double()
    for mine, other, third in zip(actual, expected, gradients(wide, wide, x.double()), strict=True):
        assert mine.stride() == other.stride()
        assert_near(mine, other, third)


@pytest.mark.parametrize("kind", ["plain", "causal", "mask", "no place to look", "bias", "shared heads", "as it lies"])
def test_gradients_of_attention(kind: str) -> None:
    torch.manual_seed(0)
    heads = 2 if kind == "shared heads" else 4
    query, key, value = torch.randn(2, 4, 5, 8), torch.randn(2, heads, 6, 8), torch.randn(2, heads, 6, 8)
    if kind == "as it lies":
        query = torch.randn(2, 5, 4, 8).transpose(1, 2)
    allowed = torch.rand(5, 6) < 0.7
    allowed[:, 0] = True
    allowed[2] = kind != "no place to look"
    named: dict[str, Any] = {
        "causal": {"is_causal": True},
        "mask": {"attn_mask": allowed},
        "no place to look": {"attn_mask": allowed},
        "bias": {"attn_mask": torch.randn(5, 6), "scale": 0.3},
        "shared heads": {"enable_gqa": True},
    }.get(kind, {})

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **settings: Any) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, **settings)

    def run(function: Any, dtype: torch.dtype) -> list[torch.Tensor]:
        given = [tensor.to(dtype).requires_grad_() for tensor in (query, key, value)]
        settings = {
            name: value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
            for name, value in named.items()
        }
        out = function(*given, **settings)
        weights = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).reshape(out.shape).to(dtype)
        return [out.detach(), *torch.autograd.grad((out * weights).sum(), given)]

    actual = run(compiled(attend, on_refusal="error"), torch.float32)
    expected = run(attend, torch.float32)
    for mine, other, third in zip(actual, expected, run(attend, torch.float64), strict=True):
        assert_near(mine, other, third)
    assert actual[0].stride() == expected[0].stride()
