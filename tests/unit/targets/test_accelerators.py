"""Programs of several targets: every way in which values, states and control flow cross from one memory to another."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export import Dim

import lowerkit
from lowerkit.capture.capture import capture
from lowerkit.compiler import Compiled, CompileOptions, compile_program, lower_program
from lowerkit.errors import LowerkitError, ResourceError, RuntimeFault, UnsupportedError, UsageError
from lowerkit.parity.bisect.reproducer import write_reproducer
from lowerkit.program.stage_file import read_stage, write_stage
from lowerkit.runtimes.session import load
from lowerkit.targets.op_view import OpView
from tests.support.targets.accelerators import installed
from tests.support.targets.interpreted import Behaviour, InterpretedDevice, target_that

Tensors = tuple[torch.Tensor, ...]
PRODUCTS = ("lk.matmul", "lk.conv")


@pytest.fixture
def npus() -> Generator[None]:
    """``products`` takes products, ``rest`` all but softmax, ``all`` all, ``regions`` the rest by regions."""
    InterpretedDevice.behaviour = Behaviour()
    kinds: dict[str, Callable[[OpView], bool]] = {
        "products": lambda op: op.name in PRODUCTS,
        "rest": lambda op: op.name != "lk.softmax",
        "all": lambda op: True,
    }
    targets = {name: target_that(name, takes) for name, takes in kinds.items()}
    targets["regions"] = target_that("regions", kinds["rest"], "region")
    with installed(targets, dict.fromkeys(targets, InterpretedDevice)):
        yield


def compiled(module: nn.Module, inputs: Tensors, target: str, **options: Any) -> Compiled:
    return lowerkit.compile(module.eval(), inputs, target, threads=1, **options)


def hold(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected if isinstance(expected, (list, tuple)) else [expected], strict=True):
        np.testing.assert_allclose(one, other.detach().numpy(), rtol=1e-5, atol=1e-5)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.last = nn.Conv2d(8, 8, 3, padding=1), nn.Linear(8 * 16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.norm(self.first(x))), 2)
        return torch.softmax(self.last(nn.functional.gelu(self.second(x)).flatten(1)), -1)


@pytest.mark.parametrize(
    ("target", "used"),
    [
        ("cpu", []),
        ("products", ["products"]),
        ("rest", ["rest"]),
        ("all", ["all"]),
        ("products+rest+cpu:x86-64-v3", ["products", "rest"]),
        ("rest+products", ["rest"]),
        ("regions", ["regions"]),
        ("products+regions", ["products", "regions"]),
    ],
)
def test_a_network(npus: None, target: str, used: list[str]) -> None:
    module, x = Network().eval(), torch.randn(2, 3, 8, 8)
    session = compiled(module, (x,), target).session
    for _ in range(2):
        x = torch.randn(2, 3, 8, 8)
        hold(session.run(x), module(x))
    assert [each.name for each in session.program.devices] == used


def test_bare_products_take_three_of_three(npus: None) -> None:
    (summary,) = compiled(Network(), (torch.randn(2, 3, 8, 8),), "products").offload
    assert (summary.ops, summary.functions) == (3, 3)
    assert "products: 3 of" in summary.render() and "test_accelerators.py" in summary.render()


def test_a_symbolic_batch(npus: None) -> None:
    module = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4), nn.Softmax(-1)).eval()
    shapes = {"input": {0: Dim("n", min=1, max=64)}}
    for target in ("products", "rest", "all", "regions"):
        made = compiled(module, (torch.randn(3, 8),), target, dynamic_shapes=shapes)
        assert made.offload[0].ops > 1
        for rows in (3, 1, 17, 64, 3):
            x = torch.randn(rows, 8)
            hold(made.session.run(x), module(x))


class Borrowed(nn.Module):
    """What is filled has the extents of a tensor that the accelerator does not read."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x.new_ones(y.shape[0], 4) * x.sum() + 1, -1)


@pytest.mark.parametrize("target", ["rest", "all", "regions"])
def test_extents_of_other_tensors(npus: None, target: str) -> None:
    shapes = {"x": {0: Dim("n", min=1, max=64)}, "y": {0: Dim("m", min=1, max=64)}}
    made = compiled(Borrowed(), (torch.randn(3, 4), torch.randn(5, 4)), target, dynamic_shapes=shapes)
    for rows, others in ((3, 5), (7, 2), (1, 64)):
        x, y = torch.randn(rows, 4), torch.randn(others, 4)
        hold(made.session.run(x, y), Borrowed()(x, y))


class Counts(nn.Module):
    """A state that is read, multiplied and written."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.eye(4))
        self.seen: torch.Tensor
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        old = self.linear(self.seen)
        self.seen.copy_(x @ old)
        return old + self.seen


@pytest.mark.parametrize("target", ["products", "rest", "all", "regions"])
def test_a_state(npus: None, target: str) -> None:
    module = Counts().eval()
    with torch.no_grad():
        made = compiled(module, (torch.randn(4, 4),), target)
        for _ in range(3):
            x = torch.randn(4, 4)
            hold(made.session.run(x), module(x))
    hold([made.session.state["seen"]], module.seen)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.cond(x.sum() > 0, lambda x: self.first(x).abs(), lambda x: self.second(x) * 2, (self.first(x),))
        return y @ x


@pytest.mark.parametrize("target", ["products", "rest", "all", "products+all", "regions"])
def test_a_branch_by_data(npus: None, target: str) -> None:
    module = Branches().eval()
    made = compiled(module, (torch.ones(4, 4),), target)
    for sign in (1, -1, 1):
        x = torch.rand(4, 4) * sign
        hold(made.session.run(x), module(x))


class Turns(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        def body(x: torch.Tensor, n: torch.Tensor) -> Tensors:
            return torch.tanh(self.linear(x)), n - 1

        return torch.while_loop(lambda x, n: n > 0, body, (x, n))[0] @ x


@pytest.mark.parametrize("target", ["products", "rest", "all", "regions"])
def test_a_loop(npus: None, target: str) -> None:
    module = Turns().eval()
    made = compiled(module, (torch.randn(4, 4), torch.tensor(2)), target)
    for turns in (0, 1, 5):
        x = torch.randn(4, 4)
        hold(made.session.run(x, torch.tensor(turns)), module(x, torch.tensor(turns)))


class Passes(nn.Module):
    """Inputs, constants and results that no op or only an accelerator computes."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Tensors:
        product = x @ y
        return x.clone(), product, product, product.reshape(2, 8), torch.full((4, 4), 3.0) @ x


@pytest.mark.parametrize("target", ["products", "rest", "all", "regions"])
def test_results_of_every_kind(npus: None, target: str) -> None:
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    hold(compiled(Passes(), (x, y), target).session.run(x, y), Passes()(x, y))


def test_an_artifact_with_accelerators_is_saved_and_proves_itself(npus: None, tmp_path: Any) -> None:
    module, x = Network().eval(), torch.randn(2, 3, 8, 8)
    made = compiled(module, (x,), "products")
    made.save(tmp_path / "m.lk")
    session = load(tmp_path / "m.lk", integrity="sha256")
    hold(session.run(x), module(x))
    assert session.program.golden is not None
    entries = session.program.metadata["placements"]
    assert sum(entry["target"] == "products" for entry in entries) == 3
    first = (tmp_path / "m.lk").read_bytes()
    compiled(module, (x,), "products").save(tmp_path / "m.lk")
    assert (tmp_path / "m.lk").read_bytes() == first


def test_a_missing_device_is_named(npus: None, tmp_path: Any) -> None:
    compiled(nn.Linear(4, 4), (torch.randn(2, 4),), "products").save(tmp_path / "m.lk")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lowerkit.runtimes.device.known_devices", dict)
        with pytest.raises(RuntimeFault, match=r"LK8005.*'products'"):
            load(tmp_path / "m.lk")


def test_a_device_that_fails_is_named_with_op_and_line_and_runs_again(npus: None) -> None:
    module, x = Network().eval(), torch.randn(2, 3, 8, 8)
    session = compiled(module, (x,), "products").session

    def fail(launches: int) -> None:
        if launches % 3 == 2:
            raise RuntimeError("the bus is on fire")

    InterpretedDevice.behaviour = Behaviour(fail)
    with pytest.raises(RuntimeFault, match="the bus is on fire") as caught:
        session.run(x)
    assert caught.value.code == "LK8016"
    assert "'products'" in caught.value.message and "conv2d_1" in caught.value.message
    assert caught.value.location is not None and "test_accelerators.py" in caught.value.location
    InterpretedDevice.behaviour = Behaviour()
    hold(session.run(x), module(x))


def test_a_cost_of_its_own_decides_without_a_throughput(npus: None) -> None:
    dear = type("Dear", (target_that("dear", lambda op: op.name in PRODUCTS),), {"cost": lambda *_: 1.0})
    with installed({"dear": dear}, {"dear": InterpretedDevice}):
        (summary,) = compiled(nn.Linear(4, 4), (torch.randn(2, 4),), "dear").offload
    assert summary.ops == 0 and "us on the host" in summary.missing[0].reason


def test_memory_that_is_out_is_said_without_a_loose_end(npus: None) -> None:
    session = compiled(nn.Linear(4, 4), (torch.randn(2, 4),), "products").session

    def fail(_launches: int) -> None:
        raise MemoryError

    InterpretedDevice.behaviour = Behaviour(fail)
    with pytest.raises(ResourceError, match="LK7002") as caught:
        session.run(torch.randn(2, 4))
    assert caught.value.message.endswith(": MemoryError")


def test_an_interruption_passes_through(npus: None) -> None:
    session = compiled(nn.Linear(4, 4), (torch.randn(2, 4),), "products").session

    def interrupt(_launches: int) -> None:
        raise KeyboardInterrupt

    InterpretedDevice.behaviour = Behaviour(interrupt)
    with pytest.raises(KeyboardInterrupt):
        session.run(torch.randn(2, 4))


def test_what_was_asked_for_is_refused_with_all_that_is_missing(npus: None) -> None:
    from lowerkit.capture.capture import capture
    from lowerkit.compiler import CompileOptions, compile_program

    def make(**options: Any) -> Compiled:
        program = capture(Network().eval(), (torch.randn(2, 3, 8, 8),))
        return compile_program(program, CompileOptions("products", **options))

    with pytest.raises(UnsupportedError, match="LK4006") as caught:
        make(require_offload=0.999)
    assert any("lk.max_pool" in detail and "test_accelerators.py" in detail for detail in caught.value.details)
    assert make(require_offload=0.5).offload[0].ops == 3
    assert make(keep_on_host=frozenset({"conv"})).offload[0].ops == 1
    assert make(keep_on_host=frozenset({"linear", "lk.conv"})).offload[0].ops == 0
    with pytest.raises(UsageError, match="LK1009") as mistaken:
        make(keep_on_host=frozenset({"linaer", "conv", "conv2d_9"}))
    assert mistaken.value.details == ("'conv2d_9': did you mean 'conv2d_1'?", "'linaer': did you mean 'linear'?")


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("product", "did you mean 'products'"),
        ("products+", "cannot be read"),
        ("cpu+products", "CPU last"),
        ("products+products", "each once"),
        ("cpu:x86-64-v9", "did you mean 'x86-64-v"),
        ("products:v2", "it has none: write products"),
        ("", "cannot be read"),
    ],
)
def test_names_that_are_no_target(npus: None, target: str, words: str) -> None:
    with pytest.raises(LowerkitError, match="LK4003") as caught:
        compiled(nn.Linear(4, 4), (torch.randn(2, 4),), target)
    assert words in caught.value.render()


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.softmax(self.first(x), -1)
        return torch.tanh(self.second(hidden)) * 2


def test_a_fault_of_a_device_is_named_down_to_the_op_and_its_line(npus: None, tmp_path: Path) -> None:
    module, x = Chain().eval(), torch.randn(4, 8)

    def spoil(program: str, results: list[Any]) -> list[Any]:
        return [value * 1.001 for value in results] if "math.tanh" in program else results

    InterpretedDevice.behaviour = Behaviour(change=spoil)
    report = lowerkit.check(module, (x,), target="rest", bisect=True)
    assert not report.passed
    assert report.bisection is not None
    finding = report.bisection.finding
    assert finding is not None, report.bisection
    assert (finding.stage, finding.culprit) == ("compiled", "device rest")
    assert finding.op == "linalg.generic"
    assert finding.location.partition(":")[0].endswith("test_accelerators.py")
    line = int(finding.location.rpartition(":")[2])
    assert "torch.tanh" in Path(__file__).read_text().splitlines()[line - 1]
    assert any("it does not" in detail for detail in finding.details)
    write_reproducer(report.bisection.reproducer, tmp_path)
    for behaviour, code in ((InterpretedDevice.behaviour, 1), (Behaviour(), 0)):
        InterpretedDevice.behaviour = behaviour
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(tmp_path / "reproduce.py"), run_name="__main__")
        assert ended.value.code == code


def test_a_device_that_is_right_bisects_to_nothing(npus: None) -> None:
    report = lowerkit.check(Chain().eval(), (torch.randn(4, 8),), target="rest", bisect=True)
    assert report.passed
    assert report.bisection is not None and report.bisection.finding is None
    assert [row.family for row in report.bisection.steps] == ["rest", "softmax", "rest"]


def test_a_stage_file_goes_on_with_the_ledger(npus: None, tmp_path: Path) -> None:
    module, x = Network().eval(), torch.randn(2, 3, 8, 8)
    options = CompileOptions(target="products", golden=False)
    whole = compiled(module, (x,), "products")
    program = capture(module, (x,))
    lower_program(program, "partitioned", options)
    write_stage(program, tmp_path / "m.mlir")
    made = compile_program(read_stage(tmp_path / "m.mlir", "partitioned"), replace(options, require_offload=0.5))
    assert made.offload == whole.offload
    assert made.parts.program.metadata["placements"] == whole.parts.program.metadata["placements"]
    hold(made.session.run(x), module(x))


@pytest.mark.parametrize("target", ["all", "regions"])
def test_a_quantized_network(npus: None, target: str) -> None:
    """Integer products with their signs, zero points and requantization: the same codes as on the CPU."""
    random = np.random.default_rng(4)
    module, samples = Network().eval(), [[torch.randn(2, 3, 8, 8)] for _ in range(4)]
    here, there = (lowerkit.quantize(module, samples, keep_float=(), target=each).compiled for each in ("cpu", target))
    assert [device.name for device in there.parts.program.devices] == [target]
    x = random.random((2, 3, 8, 8), np.float32)
    for one, other in zip(there.session.run(x), here.session.run(x), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)  # a softmax ends it
