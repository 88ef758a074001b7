"""``check`` on accelerators, op by op: what functions give back, every region of a target by regions, in every body."""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import lowerkit
from lowerkit.parity.report.report import Report
from lowerkit.targets.op_view import OpView
from tests.support.targets.accelerators import installed
from tests.support.targets.interpreted import Behaviour, InterpretedDevice, target_that


@pytest.fixture
def npus() -> Generator[None]:
    """``products`` takes products as functions, ``regions`` all but softmax by regions."""
    InterpretedDevice.behaviour = Behaviour()
    takes_products: Callable[[OpView], bool] = lambda op: op.name in ("lk.matmul", "lk.conv")  # noqa: E731
    targets = {
        "products": target_that("products", takes_products),
        "regions": target_that("regions", lambda op: op.name != "lk.softmax", "region"),
    }
    with installed(targets, dict.fromkeys(targets, InterpretedDevice)):
        yield
    InterpretedDevice.behaviour = Behaviour()


def rows(report: Report) -> list[tuple[str, str]]:
    assert report.passed, report.first_failure
    return [(row.name, row.kind) for row in report.ops]


class Chain(nn.Module):
    """A product without a bias, whose value only the softmax reads, between two that the host computes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8, bias=False), nn.Linear(8, 6, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.softmax(self.first(x), -1)
        return torch.tanh(self.second(hidden)) * 2


def test_what_functions_give_back_is_compared(npus: None) -> None:
    report = lowerkit.check(Chain().eval(), (torch.randn(4, 8),), target="products")
    assert rows(report) == [
        ("linear@first", "products_0"),
        ("softmax@", "softmax"),
        ("linear_1@second", "products_1"),
        ("mul@", "elementwise"),
    ]
    assert not report.skipped


@pytest.mark.parametrize("target", ["products", "regions"])
def test_a_device_that_is_wrong_is_named_with_the_line(npus: None, target: str) -> None:
    def spoil(program: str, results: list[Any]) -> list[Any]:
        return [value * 1.01 for value in results] if "tensor<6x8xf32>" in program else results

    InterpretedDevice.behaviour = Behaviour(change=spoil)
    report = lowerkit.check(Chain().eval(), (torch.randn(4, 8),), target=target)
    failure = report.first_failure
    assert failure is not None
    file, _, line = failure.location.rpartition(":")
    assert Path(file) == Path(__file__)
    assert "self.second(hidden)" in Path(file).read_text().splitlines()[int(line) - 1]
    assert [row.name for row in report.ops if row.verdict.passed] == ["linear@first", "softmax@"]


def test_every_region_of_a_target_by_regions_is_compared_at_every_size(npus: None) -> None:
    shapes = {"x": {0: Dim("batch", min=1, max=16)}}
    module, inputs = Chain().eval(), (torch.randn(4, 8),)
    report = lowerkit.check(module, inputs, target="regions", dynamic_shapes=shapes)
    assert [kind for _, kind in rows(report)] == ["matmul", "softmax", "matmul"]
    assert len(report.sizes) > 2 and not report.skipped
    by_functions = lowerkit.check(module, inputs, target="products", dynamic_shapes=shapes)
    assert ("linear_1@second", "products_1") in rows(by_functions)
    assert not by_functions.skipped


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: torch.softmax(self.linear(x), -1), lambda x: torch.exp(x), (x,)) + 1


def test_functions_of_bodies_are_compared_and_are_no_bodies_themselves(npus: None) -> None:
    for target, kind in (("products", "products_main.cond.then_0"), ("regions", "matmul")):
        report = lowerkit.check(Branch().eval(), (torch.ones(4, 8),), target=target)
        assert ("linear@ (in cond.then)", kind) in rows(report)
        assert report.skipped == ["the body cond.else: these inputs do not reach it"]


class Shortcut(nn.Module):
    """Two convolutions with biases whose sum goes through a relu: one bias is added in the other's region."""

    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Conv2d(8, 16, 3, padding=1)
        self.shortcut = nn.Conv2d(8, 16, 1)
        self.next = nn.Conv2d(16, 8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.next(torch.relu(self.main(x) + self.shortcut(x)))


def test_a_value_that_eager_never_has_is_none_on_a_device_either(npus: None) -> None:
    inputs = (torch.randn(1, 8, 6, 6),)
    by_regions = lowerkit.check(Shortcut().eval(), inputs, target="regions")
    assert [name for name, _ in rows(by_regions)] == ["relu@", "conv2d_2@next"]
    part = "a part of a node that a later region finishes: eager never has the value in between"
    assert by_regions.skipped == [f"conv2d (transpose), conv2d (conv), conv2d_2 (conv): {part}"]
    by_functions = lowerkit.check(Shortcut().eval(), inputs, target="products")
    assert [name for name, _ in rows(by_functions)] == ["relu@", "conv2d_2@next"]


class Widths(nn.Module):
    """A product of each width from 3 to 12."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width + 1) for width in range(3, 13))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


def test_values_of_more_types_than_a_call_has_room_for_are_compared(npus: None) -> None:
    report = lowerkit.check(Widths().eval(), (torch.randn(2, 3),), target="regions")
    assert len(rows(report)) == 10
    assert not report.skipped
    shapes = {"x": {0: Dim("batch", min=1, max=16)}}
    report = lowerkit.check(Widths().eval(), (torch.randn(2, 3),), target="regions", dynamic_shapes=shapes)
    assert len(rows(report)) == 10
    assert len(report.sizes) > 2 and not report.skipped


class Kinds(nn.Module):
    """The largest value of each of many element types, as many ranks as there are."""

    def __init__(self, dtypes: list[torch.dtype]) -> None:
        super().__init__()
        self.dtypes = dtypes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = torch.softmax(x, -1)
        for rank, dtype in enumerate(self.dtypes):
            wide = (x * 9).round().to(dtype).reshape(*[1] * (rank % 3), 5, 7)
            largest = torch.amax(wide, -1, keepdim=rank % 2 == 0)
            total = total + torch.cat([largest, largest]).float().reshape(2, 5, 1)[1]
        return total


INTEGERS = [torch.int64, torch.int32, torch.int16, torch.int8]
FLOATS = [torch.float64, torch.float16, torch.bfloat16, torch.float32]


def test_ranks_are_given_up_where_open_extents_are_not_enough(npus: None) -> None:
    report = lowerkit.check(
        Kinds([*INTEGERS, *FLOATS[1:], *INTEGERS[:3]]).eval(), (torch.randn(5, 7),), target="regions"
    )
    found = [name for name, kind in rows(report) if kind == "reduce"]
    assert len(found) == 10 and not report.skipped


def test_what_a_call_has_no_room_for_is_named(npus: None) -> None:
    """Nine element types."""
    report = lowerkit.check(Kinds([*INTEGERS, *FLOATS, torch.bool]).eval(), (torch.randn(5, 7),), target="regions")
    found = [name for name, kind in rows(report) if kind == "reduce"]
    (line,) = report.skipped
    names, _, why = line.partition(": ")
    assert "amax_8 (reduce)" in names and len(found) + names.count("(reduce)") == 9
    assert why == "regions_0 gives values of more types than a call has room for"
