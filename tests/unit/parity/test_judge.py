"""Whose word a check takes: the model's own in float64, never its capture's; at every size; on special values."""

from __future__ import annotations

import linecache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import lowerkit
from lowerkit.capture.capture import capture
from lowerkit.capture.torch_export import capture as torch_export
from lowerkit.parity.hard_values import compare_hard
from lowerkit.parity.judge.operators import difference
from lowerkit.parity.report.report import Report, Row
from tests.support.models import benchmark_models
from tests.support.planted_bugs import PLANTED_BUGS
from tests.support.torch_cases import cases


class Two(nn.Module):
    """Computes one thing in eager and another under export."""

    def __init__(self, scale: float, offset: float) -> None:
        super().__init__()
        self.scale = scale
        self.offset = offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x)
        if torch.compiler.is_exporting():
            y = y * self.scale + self.offset  # only here
        return torch.sin(y)


def failing(report: Report) -> list[Row]:
    rows = [*report.captures, *report.ops, *report.outputs, *report.hard]
    return [row for row in rows if not row.verdict.passed]


@pytest.mark.parametrize(("scale", "offset"), [(-3.0, 1.0), (1.07, 0.0), (1.0, 1e-3)])
def test_an_export_that_differs_from_eager_is_named(scale: float, offset: float) -> None:
    torch.manual_seed(0)
    report = lowerkit.check(Two(scale, offset).eval(), (torch.randn(4, 5),))
    found = report.first_failure
    assert found is not None
    assert found.kind == "export"
    assert found.name in ("mul@", "add@")
    file, _, line = found.location.rpartition(":")
    assert "# only here" in linecache.getline(file, int(line))


class Masked(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = torch.where(torch.arange(8) >= 5, x, 0.0)
        return torch.tanh(first) + torch.where(torch.arange(8) < 3, x, 0.5)


def plant_wrong_constant(patch: pytest.MonkeyPatch) -> None:
    """One folded mask takes the place of the other, as when two constants share a name."""
    right = torch_export.prepare

    def wrong(*arguments: Any) -> Any:
        program = right(*arguments)
        masks = [name for name, value in program.constants.items() if value.dtype == torch.bool]
        assert len(masks) == 2
        program.constants[masks[0]] = program.constants[masks[1]]
        return program

    patch.setattr(torch_export, "prepare", wrong)


def test_a_wrong_constant_of_capture_is_not_explained_by_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = (torch.randn(3, 8),)
    assert lowerkit.check(Masked().eval(), inputs).passed
    plant_wrong_constant(monkeypatch)
    report = lowerkit.check(Masked().eval(), inputs)
    assert [row.kind for row in failing(report)][:1] == ["capture"]
    assert [row.name for row in failing(report) if row.kind == "output"] == ["output"]
    assert all(row.verdict.passed for row in report.captures if row.kind == "export")


@pytest.mark.parametrize(
    ("kind", "reference"), [("module", "the module"), ("script", "the script"), ("exported", "torch in")]
)
def test_the_reference_is_the_model_itself(kind: str, reference: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, inputs = nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1)).eval(), (torch.randn(3, 8),)
    model: Any = module
    if kind == "script":
        model = torch.jit.script(module)
    if kind == "exported":
        model = torch.export.export(module, inputs)
    report = lowerkit.check(model, inputs)
    assert report.passed
    assert reference in report.float64_reference


class OfFloat32(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype != torch.float32:
            raise TypeError("float32 only")
        return torch.softmax(x, -1)


def test_a_model_that_cannot_run_in_float64_says_why() -> None:
    report = lowerkit.check(OfFloat32().eval(), (torch.randn(3, 8),))
    assert report.passed
    assert report.float64_reference == "none: the module in float64 fails: TypeError: float32 only"


class Counting(nn.Module):
    total: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(8))
        self.step = nn.Parameter(torch.full((8,), 0.3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x.mean(0) * self.step)
        return x + self.total


def test_the_users_parameters_and_states_are_as_before() -> None:
    module = Counting().eval()
    kept = {name: (value.data_ptr(), value.clone()) for name, value in module.state_dict().items()}
    assert lowerkit.check(module, (torch.randn(3, 8),), hard=True).passed
    for name, value in module.state_dict().items():
        assert value.dtype == torch.float32
        assert value.data_ptr() == kept[name][0]
        assert torch.equal(value, kept[name][1])
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.exhaustive) for seed in (1, 2))])
def test_two_by_two_outputs_of_a_deep_network_are_enough(seed: int) -> None:
    module, _ = benchmark_models().tiny("mobilenet_v2")
    torch.manual_seed(seed)
    module.model.classifier = nn.Linear(1280, 2)
    report = lowerkit.check(module.eval(), (torch.randn(2, 3, 64, 64),), per_op=False)
    assert report.passed, [row.verdict.reason for row in failing(report)]


# --- symbolic dims ---------------------------------------------------------------------------------------------------


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.linear(x), 1).transpose(1, 2) @ x


def test_symbolic_models_are_compared_op_by_op_at_several_sizes() -> None:
    dims = {0: Dim("batch", min=1, max=9), 1: Dim("length", min=2, max=40)}
    report = lowerkit.check(Rows().eval(), (torch.randn(2, 8, 16),), dynamic_shapes=(dims,))
    assert report.passed, [row.verdict.reason for row in failing(report)]
    assert len(report.ops) >= 2
    assert {"batch=2, length=8", "batch=1, length=2", "batch=9, length=40"} < set(report.sizes)
    assert len(report.outputs) == len(report.sizes) == 5


def test_a_bug_at_other_sizes_than_the_examples_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tails of vectors are zero: a length of whole vectors does not show it."""
    bug = PLANTED_BUGS["broken-vector-tail"]
    bug.plant(monkeypatch)
    dims = {1: Dim("length", min=2, max=64)}
    report = lowerkit.check(bug.module().eval(), (torch.randn(5, 64),), dynamic_shapes=(dims,))
    found = report.first_failure
    assert found is not None
    assert found.kind != "output"
    assert found.inputs != "length=64"
    assert all(row.verdict.passed for row in report.outputs if row.inputs == "length=64")


# --- special values --------------------------------------------------------------------------------------------------


def test_a_swallowed_nan_is_a_difference() -> None:
    program = capture(nn.ReLU().eval(), (torch.randn(3, 8),))

    def session(compute: Any) -> Any:
        return SimpleNamespace(run=lambda x: [compute(x)], reset=lambda: None, state={})

    right, wrong = Report("right", [], []), Report("wrong", [], [])
    compare_hard(program, session(lambda x: np.maximum(x, np.float32(0))), right)
    compare_hard(program, session(lambda x: np.fmax(x, np.float32(0))), wrong)
    assert right.passed
    assert {row.inputs for row in right.hard} > {"one NaN", "a row of -Inf", "input 0 all -0.0", "denormals", "mixed"}
    assert {"one NaN", "a row of NaN", "input 0 all NaN", "mixed"} == {row.inputs for row in failing(wrong)}


def test_what_eager_refuses_is_listed() -> None:
    report = lowerkit.check(nn.Embedding(10, 4).eval(), (torch.randint(0, 10, (3, 5)),), hard=True)
    assert report.passed
    assert any("the largest integer" in line and "eager refuses" in line for line in report.skipped)


HARD = (
    *("relu", "sigmoid", "gelu", "silu", "tanh", "exp", "log", "sqrt", "abs", "floor", "isnan", "where"),
    *("softmax", "layer-norm", "linear", "max-pool", "sum-all", "mean", "cumsum", "concat", "attention"),
)
"""Small functions of every kind; the truth table has all of them, value by value."""


@pytest.mark.parametrize("name", [case.name for case in cases() if case.name in HARD])
def test_special_values_of_small_functions(name: str) -> None:
    from tests.operators.test_functions import Function

    case = next(case for case in cases() if case.name == name)
    report = lowerkit.check(Function(case.function).eval(), case.arguments, per_op=False, hard=True)
    assert report.hard
    assert report.passed, [f"{row.inputs}: {row.verdict.reason}" for row in failing(report)]


class ByExpert(nn.Module):
    """Sorts rows by few keys, computes in that order, and puts the results back, as mixtures of experts do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """Takes rows (n, 8) and keys (n), which are equal for most rows."""
        order = torch.argsort(keys)
        return self.inner(x[order])[torch.argsort(order)]


def test_the_order_of_equal_keys_is_left_open() -> None:
    """Eager's sort is not stable, and takes the fastest one of the machine; the compiled one is."""
    torch.manual_seed(2)
    report = lowerkit.check(ByExpert(), (torch.randn(400, 8), torch.randint(3, (400,))))
    assert report.passed, [row.name for row in report.ops if not row.verdict.passed]
    assert "sort" in {row.kind for row in report.ops}


def test_float64_is_computed_where_something_differs_alone() -> None:
    asked: list[int] = []

    def exact() -> Tensor:
        asked.append(1)
        return torch.tensor([1.0, 2.0], dtype=torch.float64)

    value = torch.tensor([1.0, 2.0])
    assert difference("add", [value], value.clone(), value, exact, ties=False) == ""
    assert difference("add", [value], value + 1e-6, value, exact, ties=False) == "" and not asked
    assert difference("add", [value], value, value + 1, exact, ties=False) == "" and asked
    assert difference("add", [value], value + 1, value, exact, ties=False)
