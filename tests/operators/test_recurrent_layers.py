"""Recurrent layers of long sequences run as loops; windows of unequal sizes; both against eager by gate A."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lowerkit
from lowerkit.capture.torch_export.decompositions.recurrent import UNROLLED
from lowerkit.errors import CaptureError

LONG = 13
"""A prime: steps are left behind the loop whatever the size of a block."""
assert LONG > UNROLLED


def holds(module: nn.Module, *arguments: Tensor) -> None:
    report = lowerkit.check(module.eval(), arguments, per_op=False)
    assert report.outputs
    assert report.passed, [row.verdict.reason for row in report.outputs if not row.verdict.passed]


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        pytest.param(nn.LSTM(5, 6, bias=False, batch_first=True), (3, LONG, 5), id="lstm-batch-first"),
        pytest.param(nn.LSTM(5, 6, proj_size=4), (LONG, 5), id="lstm-projection-no-batch"),
        pytest.param(nn.GRU(5, 6, batch_first=True), (3, LONG, 5), id="gru"),
        pytest.param(nn.RNN(5, 6, bidirectional=True), (LONG, 3, 5), id="rnn-directions"),
        pytest.param(nn.RNN(5, 6, nonlinearity="relu"), (LONG, 3, 5), id="rnn-relu"),
        pytest.param(nn.RNN(5, 6, num_layers=2, dtype=torch.bfloat16), (LONG, 3, 5), id="rnn-layers-bf16"),
        pytest.param(nn.RNN(5, 6), (UNROLLED, 3, 5), id="written-out"),
        pytest.param(nn.RNN(5, 6), (UNROLLED + 1, 3, 5), id="shortest-loop"),
    ],
)
def test_sequences_of_known_length(layer: nn.RNNBase, shape: tuple[int, ...]) -> None:
    holds(layer, torch.randn(shape, dtype=next(layer.parameters()).dtype))


def test_a_program_is_as_large_for_every_length() -> None:
    short, long = (lowerkit.compile(nn.RNN(4, 4).eval(), (torch.randn(length, 1, 4),)) for length in (16, 400))
    assert len(short.session.program.steps) == len(long.session.program.steps)


def test_a_batch_may_be_symbolic() -> None:
    layer = nn.RNN(4, 6, batch_first=True).eval()
    batch = torch.export.Dim("batch", min=2, max=9)
    compiled = lowerkit.compile(layer, (torch.randn(3, 16, 4),), dynamic_shapes=({0: batch},))
    for count in (2, 5, 9):
        x = torch.randn(count, 16, 4)
        np.testing.assert_allclose(compiled.session.run(x)[0], layer(x)[0].detach().numpy(), atol=1e-5)


def test_dropout_between_layers_in_training_is_refused() -> None:
    with pytest.raises(CaptureError) as caught:
        lowerkit.compile(nn.LSTM(4, 6, num_layers=2, dropout=0.5).train(), (torch.randn(20, 3, 4),))
    assert caught.value.code == "LK2001" and "lstm" in str(caught.value)


def windows_of(value: Tensor, size: tuple[int, ...]) -> tuple[Tensor, ...]:
    if len(size) == 1:
        return torch.adaptive_max_pool1d(value, size)
    if len(size) == 2:
        return torch.ops.aten.adaptive_max_pool2d(value, list(size))
    return torch.ops.aten.adaptive_max_pool3d(value, list(size))


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        pytest.param((2, 3, 20, 17), (7, 5), id="unequal"),
        pytest.param((3, 20, 17), (7, 5), id="no-batch"),
        pytest.param((2, 3, 8, 9), (4, 3), id="equal"),
        pytest.param((2, 3, 5, 4), (1, 1), id="whole"),
        pytest.param((2, 3, 5, 4), (8, 9), id="more-windows-than-elements"),
        pytest.param((2, 3, 50), (7,), id="1d"),
        pytest.param((2, 3, 5, 9, 7), (3, 4, 2), id="3d"),
    ],
)
def test_places_of_adaptive_maxima(shape: tuple[int, ...], size: tuple[int, ...]) -> None:
    """Of equal values the first place, of NaN the last; infinities too."""
    value = torch.randint(0, 4, shape).float()
    flat = value.view(-1)
    flat[torch.randint(0, flat.numel(), (6,))] = float("nan")
    flat[: flat.numel() // 3] = float("-inf")

    class Pool(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return windows_of(x, size)

    compiled = lowerkit.compile(Pool(), (value,))
    for ours, other in zip(compiled.session.run(value), windows_of(value, size), strict=True):
        np.testing.assert_array_equal(ours, other.numpy())


def test_convolution_over_time_batch_channels() -> None:
    class Convolution(nn.Module):
        def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            return torch.conv_tbc(x, weight, bias, 1)

    holds(Convolution(), torch.randn(5, 2, 3), torch.randn(3, 3, 4), torch.randn(4))
