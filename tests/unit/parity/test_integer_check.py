"""The check of quantized models: it passes on what is right and names the region whose kernel is wrong."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import nn

import lowerkit
from lowerkit.capture.capture import capture
from lowerkit.compiler import CompileOptions, lower_program
from lowerkit.dialect.ops import IntegerMatmulOp, QuantizeOp
from lowerkit.parity.gates import judge_quantized
from lowerkit.parity.integer.interpreter_check import check_integers
from lowerkit.parity.integer.rows import IntegerRow, OwnerRow, difference
from lowerkit.parity.integer.source_framework_check import check_owner, holds_quantization
from tests.models.test_quantized_graphs import Fake, Weight
from tests.support.targets.accelerators import installed
from tests.support.targets.interpreted import Behaviour, InterpretedDevice, target_that


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Weight(16, 12), Weight(6, 16)
        self.bias = nn.Parameter(torch.randn(16))
        self.enter, self.middle = Fake(0.02, 120, torch.uint8), Fake(0.013, 9, torch.uint8)
        self.leave = Fake(0.02, 101, torch.uint8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.linear(self.enter(x), self.first(), self.bias)
        x = self.middle(nn.functional.gelu(x))
        return torch.softmax(self.leave(nn.functional.linear(x, self.second(), None)), -1)


def test_a_right_model_passes() -> None:
    report = lowerkit.check(Layers().eval(), (torch.randn(9, 12),))
    assert report.passed, report.to_json()
    assert not report.ops
    kinds = {row.name: row for row in report.integers}
    assert len(kinds) >= 3
    assert all(row.differing == 0 for row in report.integers if row.exact)
    assert len(report.owners) == 3
    assert not report.skipped
    assert any(row.sqnr_db is not None for row in report.integers)


def test_what_is_not_compared_of_a_quantized_model_is_said() -> None:
    x = torch.randn(9, 12)
    report = lowerkit.check(Layers().eval(), (x,), bisect=True, hard=True)
    assert report.bisection is None
    assert [line.split(":")[0] for line in report.skipped] == ["the bisection", "special values"]
    exported = torch.export.export(Layers().eval(), (x,), dynamic_shapes=({0: torch.export.Dim("n", min=2, max=40)},))
    (line,) = lowerkit.check(exported).skipped
    assert "symbolic dims" in line


def test_a_wrong_kernel_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    program = capture(Layers().eval(), (x := torch.randn(9, 12),))
    lower_program(program, "canonical", CompileOptions())
    assert holds_quantization(program)
    lower_program(program, "fused", CompileOptions())
    right = IntegerMatmulOp.reference

    def wrong(self: Any, lhs: Any, rhs: Any) -> Any:
        (sums,) = right(self, lhs, rhs)
        return (sums + (sums > 0) * 4000,)

    monkeypatch.setattr(IntegerMatmulOp, "reference", wrong)  # the interpreter differs from the kernel
    rows = check_integers(program, [x.numpy()], CompileOptions(golden=False))
    failed = [row for row in rows if not row.passed]
    assert failed
    assert all(row.kind == "matmul" for row in failed)
    assert "FAIL" in failed[0].verdict


@pytest.mark.parametrize("unit", ["function", "region"])
def test_functions_of_accelerators_are_held_to_the_interpreter(unit: Literal["function", "region"]) -> None:
    InterpretedDevice.behaviour = Behaviour()
    target = target_that("npu", lambda op: op.name != "lk.softmax", unit)
    module, x = Layers().eval(), torch.randn(9, 12)
    with installed({"npu": target}, {"npu": InterpretedDevice}):
        right = lowerkit.check(module, (x,), target="npu")

        def spoil(_program: str, results: list[Any]) -> list[Any]:
            return [value + 1 for value in results]

        InterpretedDevice.behaviour = Behaviour(change=spoil)
        try:
            wrong = lowerkit.check(module, (x,), target="npu")
        finally:
            InterpretedDevice.behaviour = Behaviour()
    assert right.passed, right.to_json()
    assert [row.kind for row in right.integers if row.kind.startswith("npu_")] == ["npu_0"]
    assert [row.passed for row in wrong.integers if row.kind == "npu_0"] == [False]


def test_a_single_number_is_a_value_like_others() -> None:
    assert difference(np.array(1.0), np.array(1.0), unsigned=False) == (0, 0)
    assert difference(np.array(np.nan), np.array(np.nan), unsigned=False) == (0, 0)
    assert difference(np.array(1.0), np.array(2.0), unsigned=False)[0] == 1


class Casts(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x * 9).to(torch.int8), torch.softmax(x, -1)


@pytest.mark.parametrize("module", [nn.Linear(4, 3), Casts()])
def test_a_model_that_only_holds_integers_has_the_gates_of_floats(module: nn.Module) -> None:
    program = capture(module.eval(), (x := torch.randn(2, 4),))
    lower_program(program, "canonical", CompileOptions())
    assert not holds_quantization(program)
    report = lowerkit.check(module, (x,))
    assert report.passed
    assert report.ops
    assert not report.integers


def row(**fields: Any) -> IntegerRow:
    return IntegerRow("a", "conv", "", 10_000, **fields)


@pytest.mark.parametrize(
    ("fields", "passed"),
    [
        ({"exact": True}, True),
        ({"exact": True, "differing": 1, "largest": 1}, False),
        ({"exact": False, "differing": 10, "largest": 1}, True),
        ({"exact": False, "differing": 11, "largest": 1}, False),
        ({"exact": False, "differing": 1, "largest": 2}, False),
        ({"exact": False, "differing": 20, "largest": 2, "roundings": 2}, True),
        ({"exact": False, "differing": 21, "largest": 2, "roundings": 2}, False),
        ({"exact": True, "differing": 1, "largest": 1, "roundings": 2}, False),
        ({"exact": False, "sqnr_db": 120.0}, True),
        ({"exact": False, "sqnr_db": 60.0}, False),
    ],
)
def test_budgets(fields: dict[str, Any], passed: bool) -> None:
    assert row(**fields).passed is passed
    assert row(**fields).to_json()["passed"] is passed
    assert row(**fields).verdict.startswith("ok" if passed else "FAIL")


def test_outputs_of_quantized_models() -> None:
    owner = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    near, far = owner + np.float32(1e-4), owner + np.float32(0.05)
    assert judge_quantized(near, owner, []).passed
    assert not judge_quantized(far, owner, []).passed
    assert judge_quantized(far, owner, [row(exact=True)]).passed
    assert not judge_quantized(far, owner, [row(exact=True), row(exact=True, differing=1)]).passed
    assert not judge_quantized(np.full_like(owner, np.nan), owner, [row(exact=True)]).passed


@pytest.mark.parametrize(
    ("differing", "largest", "passed"), [(0, 0, True), (10, 1, True), (11, 1, False), (1, 2, False)]
)
def test_budget_to_the_owner(differing: int, largest: int, passed: bool) -> None:
    found = OwnerRow("a", "lk.requant", "", 10_000, differing, largest)
    assert found.passed is passed
    assert found.to_json()["passed"] is passed
    assert found.verdict.startswith("ok" if passed else "FAIL")


def test_distances_are_those_of_the_numbers_that_are_stored() -> None:
    left, right = np.array([127, -1, 5], np.int8), np.array([-128, 0, 5], np.int8)
    assert difference(left, right, unsigned=True) == (2, 255)  # 127 and 128, 255 and 0
    assert difference(left, right, unsigned=False) == (2, 255)  # 127 and -128, -1 and 0
    assert difference(left[1:], right[1:], unsigned=False) == (1, 1)
    grid = np.array([0.0, 0.5, 1.0, np.nan], np.float32)
    assert difference(grid, grid, unsigned=True) == (0, 0)
    assert difference(np.array([0.5, 0.5, 1.0, np.nan], np.float32), grid, unsigned=True) == (1, 1)


def test_an_op_that_means_something_else_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    right = QuantizeOp.reference

    def wrong(self: Any, *arrays: Any) -> Any:
        (stored,) = right(self, *arrays)
        return (stored + (np.arange(stored.size).reshape(stored.shape) % 50 == 0).astype(np.int8),)

    program = capture(Layers().eval(), (x := torch.randn(60, 12),))
    lower_program(program, "canonical", CompileOptions())
    monkeypatch.setattr(QuantizeOp, "reference", wrong)
    rows, missing = check_owner(program, [x.numpy()])
    assert not missing
    assert [row.passed for row in rows if row.kind == "lk.quantize"] == [False, False]
    assert all(row.passed for row in rows if row.kind == "lk.requant")
