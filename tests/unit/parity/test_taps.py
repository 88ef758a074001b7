"""Taps: which values of a fused program stand for a value of eager."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from lowerkit.capture.capture import capture
from lowerkit.compiler import CompileOptions, lower_program
from lowerkit.parity.check import check_program
from lowerkit.parity.compare.taps import Reference, compare_taps
from lowerkit.parity.report.report import Report
from lowerkit.parity.taps import Tap, add_taps
from lowerkit.runtimes.manifest import Signature


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
    tapped = [tap.node for tap in add_taps(program)[0]]
    assert tapped == ["relu@", "conv2d_2@next"]


def test_check_passes_where_a_bias_is_added_later() -> None:
    torch.manual_seed(0)
    report = check_program(capture(Shortcut().eval(), (torch.randn(1, 8, 6, 6),)))
    assert report.passed, report.first_failure
    assert [row for row in report.ops if row.name.startswith("relu")]


class Split(nn.Module):
    """A split whose second half alone is computed in a region that other regions read."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = torch.split(x.softmax(-1).transpose(1, 2), 4, dim=1)
        return torch.softmax(first @ second.transpose(1, 2), -1)


def test_any_result_of_a_split_is_a_reference() -> None:
    report = check_program(capture(Split().eval(), (torch.randn(2, 6, 8),)))
    assert report.passed, report.first_failure


def _compared(value: float, reader: float, *, output_passed: bool = True) -> Report:
    """Compares a tap with value ``value`` that a second one reads, with value ``reader``; eager has 1 and 2.

    The model's output reads the second.
    """
    program = capture(nn.ReLU().eval(), (torch.ones(4),))
    spec = program.signature.outputs[0]
    program.signature = Signature(program.signature.inputs, [spec] * 3)
    arrays = [np.full(4, number, np.float32) for number in (1.0, value, reader)]
    eager = {"a": 1.0, "b": 2.0}
    references = {
        name: [Reference(np.full(4, number, np.float32), np.full(4, number))] for name, number in eager.items()
    }
    taps = [Tap("a@", "elementwise", "", 1, frozenset({2})), Tap("b@", "elementwise", "", 2, frozenset({0}))]
    report = Report("planted", [], [])
    compare_taps(program.signature.outputs, taps, arrays, references, {0} if output_passed else set(), report)
    return report


def test_a_value_that_eager_never_has_is_listed_when_its_readers_agree() -> None:
    report = _compared(5.0, 2.0)
    assert report.passed
    assert report.skipped == ["a@ (elementwise): no value of eager, and all that is computed of it agrees"]


def test_a_wrong_value_does_not_hide_behind_a_wrong_reader() -> None:
    assert [row.name for row in _compared(5.0, 6.0, output_passed=False).ops if not row.verdict.passed] == ["a@", "b@"]


def test_an_inaccurate_value_is_no_other_value() -> None:
    assert [row.name for row in _compared(1.001, 2.0).ops if not row.verdict.passed] == ["a@"]
