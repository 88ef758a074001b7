"""Quantized models on meshes: every rank gives the bits of one device, and `check` holds kernels, meaning and split."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from lowerkit.capture.capture import capture
from lowerkit.compiled import CompileOptions
from lowerkit.compiler import compile_program
from lowerkit.dialect.ops import IntegerMatmulOp
from lowerkit.errors import UsageError
from lowerkit.parity.check import check_program
from lowerkit.parity.integer.quantized_check import check_outputs, check_quantized, judge_split, sums_floats
from lowerkit.parity.report.report import ONE_DEVICE, Report
from lowerkit.program.program import Program
from lowerkit.quantization.insertion import insert
from lowerkit.quantization.methods import make_method
from lowerkit.quantization.observation import choose_scalings, compile_observed
from lowerkit.spmd.sharding import sharding_of
from lowerkit.spmd.simulated_session import SimulatedSession
from tests.models.test_quantized_graphs import Fake, Weight

Plan = Mapping[str, Any]
Array = np.ndarray[Any, Any]
OPTIONS = CompileOptions(golden=False)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = Weight(32, 16), Weight(8, 32)
        self.bias = nn.Parameter(torch.randn(32) * 0.1)
        self.enter, self.middle = Fake(0.02, 120, torch.uint8), Fake(0.02, 9, torch.uint8)
        self.leave = Fake(0.05, 101, torch.uint8)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x.relu()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.between(nn.functional.linear(self.enter(x), self.up(), self.bias))
        return self.leave(nn.functional.linear(self.middle(x), self.down(), None))


class WithFloats(Mlp):
    """What is between the products has no one value: the ranks may round other ties than one device."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 32)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(nn.functional.gelu(self.first(x)))


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.head = Weight(8, 3, 3, 3), Weight(8, 8, 3, 3), Weight(6, 8)
        self.bias = nn.Parameter(torch.randn(8) * 0.1)
        self.enter, self.middle = Fake(0.031, 131, torch.uint8), Fake(0.017, 0, torch.uint8)
        self.after, self.leave = Fake(0.03, 0, torch.uint8), Fake(0.03, 121, torch.uint8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.conv2d(self.enter(x), self.up(), self.bias, stride=2, padding=1).relu()
        x = self.after(nn.functional.conv2d(self.middle(x), self.down(), None, padding=1).relu())
        return self.leave(nn.functional.linear(x.flatten(2).transpose(1, 2), self.head(), None))


INPUTS: dict[type[nn.Module], tuple[int, ...]] = {Mlp: (4, 16), WithFloats: (4, 16), Convolutions: (2, 3, 8, 8)}
WEIGHTS: Plan = {"up": "column", "down": "row"}
HEAD: Plan = {"head": "column"}
BATCH: Plan = {"x": "batch"}
STAGES: Plan = {"enter": 0, "leave": 1}


def captured(kind: type[nn.Module]) -> tuple[Program, torch.Tensor]:
    torch.manual_seed(3)
    module = kind().eval()
    return capture(module, (x := torch.randn(INPUTS[kind]),)), x


def plan_of(kind: type[nn.Module], mesh: str) -> Plan:
    weights = {**WEIGHTS, **HEAD} if kind is Convolutions else WEIGHTS
    plans: Plan = {"tp": weights, "dp": BATCH, "pp": STAGES}
    axes = [entry.split("=")[0] for entry in mesh.split(",")]
    return plans[axes[0]] if len(axes) == 1 and axes != ["pp"] else {axis: plans[axis] for axis in axes}


def outputs_of_ranks(program: Program, mesh: str, plan: Plan, x: Any) -> list[Array]:
    sharding = sharding_of(mesh, plan)
    assert sharding is not None
    runner = compile_program(program, CompileOptions(golden=False, sharding=sharding)).runner
    assert not any(axis.report.whole for axis in sharding.axes if axis.axis == "tp")
    assert isinstance(runner, SimulatedSession)
    return [outputs[0] for outputs in runner.run_ranks(x)]


def one_device_rows(report: Report) -> list[tuple[bool, str]]:
    return [(row.verdict.passed, row.verdict.reason) for row in report.outputs if row.kind == ONE_DEVICE]


@pytest.mark.parametrize("mesh", ["tp=2", "dp=2"])
@pytest.mark.parametrize("kind", [Mlp, Convolutions])
def test_every_rank_gives_the_bits_of_one_device(kind: type[nn.Module], mesh: str) -> None:
    program, x = captured(kind)
    one = compile_program(program.copy(), OPTIONS).session.run(x)[0]
    assert np.unique(one).size > 20
    ranks = outputs_of_ranks(program, mesh, plan_of(kind, mesh), x)
    assert len(ranks) == 2
    for found in ranks:
        np.testing.assert_array_equal(found, one)


@pytest.mark.parametrize("mesh", ["tp=2", "dp=2,tp=2", "pp=2,tp=2"])
@pytest.mark.parametrize("kind", [Mlp, Convolutions])
def test_check(kind: type[nn.Module], mesh: str) -> None:
    program, _ = captured(kind)
    report = check_program(program, sharding=sharding_of(mesh, plan_of(kind, mesh)))
    assert report.passed, report.to_json()
    assert not report.skipped
    assert mesh in report.mesh
    assert len(report.owners) == (4 if kind is Convolutions else 3)
    assert len(report.integers) >= 3
    assert all(row.exact and row.differing == 0 for row in report.integers)
    assert one_device_rows(report) == [(True, "the bits of one device")]


def test_a_model_that_we_quantized() -> None:
    torch.manual_seed(5)
    module = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)).eval()
    program = capture(module, (x := torch.randn(4, 16),))
    observation = compile_observed(program, [[x.numpy()]], OPTIONS, None)
    insert(program, observation.sites, choose_scalings([observation], lambda: make_method("min-max", 99.0), 0.0), [])
    one = compile_program(program.copy(), OPTIONS).session.run(x)[0]
    for found in outputs_of_ranks(program, "tp=2", {"0": "column", "2": "row"}, x):
        np.testing.assert_array_equal(found, one)


def test_where_floats_are_summed_the_gate_holds_in_place_of_the_bits() -> None:
    program, _ = captured(WithFloats)
    plan = {**WEIGHTS, "first": "column", "second": "row"}
    report = check_program(program, sharding=sharding_of("tp=2", plan))
    assert report.passed, report.to_json()
    assert len(one_device_rows(report)) == 1
    assert not all(row.exact for row in report.integers)
    for kind, expected in ((WithFloats, True), (Mlp, False)):
        options = CompileOptions(golden=False, sharding=sharding_of("tp=2", plan if expected else WEIGHTS))
        assert sums_floats(compile_program(captured(kind)[0], options)) is expected
    one = np.linspace(-1, 1, 100, dtype=np.float32)
    near, far = one + np.float32(1e-4), one + np.float32(0.1)
    assert judge_split(near, one, exact=False).passed
    assert "in another order" in judge_split(near, one, exact=False).reason
    assert not judge_split(far, one, exact=False).passed
    assert not judge_split(near, one, exact=True).passed


def test_a_wrong_kernel_is_named_with_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    program, _ = captured(Mlp)
    of_rank_1 = program.weights.get("down.stored")[:, 16:]
    right = IntegerMatmulOp.reference

    def wrong(self: Any, lhs: Array, rhs: Array) -> Any:
        (sums,) = right(self, lhs, rhs)
        return (sums + np.array_equal(rhs, of_rank_1),)  # the interpreter differs from the kernel of rank 1

    monkeypatch.setattr(IntegerMatmulOp, "reference", wrong)
    report = check_program(program, sharding=sharding_of("tp=2", WEIGHTS))
    failed = [row for row in report.integers if not row.passed]
    assert [(row.name, row.kind) for row in failed] == [("linear_1 (rank 1)", "matmul")]
    assert not report.passed
    assert report.first_integer_failure is failed[0]


def test_what_ranks_compute_all_alike_and_wrong_is_not_explained_by_ties() -> None:
    program, _ = captured(Mlp)
    torch.manual_seed(4)
    other = capture(Mlp().eval(), (torch.randn(INPUTS[Mlp]),))
    report = check_program(captured(Mlp)[0], sharding=sharding_of("tp=2", WEIGHTS))
    options = CompileOptions(golden=False, sharding=sharding_of("tp=2", WEIGHTS))
    check_outputs(program, other, options, report, None)
    ((passed, reason),) = one_device_rows(report)
    assert not passed
    assert "are not those of one device" in reason
    assert report.first_failure is not None
    assert report.first_failure.kind == ONE_DEVICE


def test_what_is_not_compared_is_said() -> None:
    torch.manual_seed(3)
    dims = ({0: torch.export.Dim("n", min=2, max=40)},)
    program = capture(Mlp().eval(), (torch.randn(INPUTS[Mlp]),), dynamic_shapes=dims)
    report = check_program(program, sharding=sharding_of("tp=2", WEIGHTS))
    (line,) = report.skipped
    assert "symbolic dims" in line
    assert one_device_rows(report) == [(True, "the bits of one device")]


def test_a_program_of_ranks_is_refused() -> None:
    program, x = captured(Mlp)
    sharding = sharding_of("tp=2", WEIGHTS)
    compile_program(program, CompileOptions(golden=False, sharding=sharding))
    with pytest.raises(UsageError, match="split among ranks already"):
        check_quantized(program, CompileOptions(sharding=sharding), Report("", [], []), None)
    assert x.shape == INPUTS[Mlp]
