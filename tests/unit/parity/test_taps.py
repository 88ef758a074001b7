"""Taps: which values of a fused program stand for a value of eager."""

from __future__ import annotations

import torch
from torch import nn

from lowerkit.capture.capture import capture
from lowerkit.compiler import CompileOptions, lower_program
from lowerkit.parity.check import check_program
from lowerkit.parity.taps import add_taps


class Shortcut(nn.Module):
    """Two convolutions with biases whose sum goes through a relu: one bias is added in the other's region."""

    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Conv2d(8, 16, 3, padding=1)
        self.shortcut = nn.Conv2d(8, 16, 1)
        self.next = nn.Conv2d(16, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.next(torch.relu(self.main(x) + self.shortcut(x)))


def test_a_convolution_without_its_bias_is_no_value_of_eager() -> None:
    torch.manual_seed(0)
    module, inputs = Shortcut().eval(), (torch.randn(1, 8, 6, 6),)
    program = capture(module, inputs)
    lower_program(program, "fused", CompileOptions())
    assert program.text().count('"lk.conv"') == 3
    tapped = [tap.node for tap in add_taps(program)]
    assert tapped == ["relu@", "conv2d_2@next"]


def test_check_passes_where_a_bias_is_added_later() -> None:
    torch.manual_seed(0)
    report = check_program(capture(Shortcut().eval(), (torch.randn(1, 8, 6, 6),)))
    assert report.passed, report.first_failure
    assert [row for row in report.ops if row.name.startswith("relu")]
