"""Packages that fail: one diagnostic that names target and package, nothing overwritten, everything else goes on."""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn

import lowerkit
from lowerkit.errors import RuntimeFault, UnsupportedError
from lowerkit.runtimes.device import HostMemoryDevice, open_device
from lowerkit.targets.capabilities import Capabilities, Throughput
from lowerkit.targets.plan import DeviceCode, Refusal
from lowerkit.targets.registry import find_target
from lowerkit.targets.target import Accept, LinkedCode, Target
from tests.support.targets.accelerators import installed
from tests.support.targets.interpreted import Behaviour, InterpretedDevice, target_that
from tests.unit.cli.conftest import Outcome, RunCommand, lowerkit_command

__all__ = ["lowerkit_command"]

EARLIER = b"an artifact from before"


def well(name: str) -> type[Target]:
    return target_that(name, lambda op: op.name == "lk.matmul")


def raises(*_given: Any, **_named: Any) -> Any:
    raise ZeroDivisionError("by design")


def gives(value: Any) -> Callable[..., Any]:
    return lambda *_given, **_named: value


def target_with(**members: Any) -> Any:
    return type("Hostile", (well("hostile"),), members)


def device_with(**members: Any) -> Any:
    return type("Hostile", (InterpretedDevice,), members)


def with_throughput(cost: Callable[..., Any]) -> Any:
    """A target that is asked for its cost."""
    return target_with(capabilities=gives(Capabilities(throughput=Throughput())), cost=cost)


class Unnamed:
    """No answer to anything."""


@pytest.fixture(autouse=True)
def behaves() -> None:
    InterpretedDevice.behaviour = Behaviour()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    module = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4)).eval()
    path = tmp_path_factory.mktemp("model") / "model.pt2"
    torch.export.save(torch.export.export(module, (torch.randn(2, 8),)), path)
    return path


def test_a_name_that_two_packages_bring_is_nobodys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("first", "second"):
        folder = tmp_path / f"{package}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(
            f"[lowerkit.targets]\ntwin = {package}:T\n[lowerkit.devices]\ntwin = {package}:D\n"
        )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UnsupportedError, match="LK4003.*2 packages bring a target 'twin': first 1.0 and second 1.0"):
        find_target("twin")
    with pytest.raises(RuntimeFault, match="LK8005.*2 packages bring a device 'twin': first 1.0 and second 1.0"):
        open_device("twin", "")


@contextmanager
def packages(target: Any, device: Any = InterpretedDevice) -> Generator[None]:
    """Installs the package ``hostile`` beside one that works."""
    with installed({"hostile": target, "well": well("well")}, {"hostile": device, "well": InterpretedDevice}):
        yield


def assert_diagnostic(outcome: Outcome, code: str, exit_code: int, package: str = "hostile-package 1.0") -> None:
    assert outcome.code == exit_code, outcome.err
    assert outcome.err.count("error[") == 1 and f"error[{code}]: " in outcome.err, outcome.err
    assert "Traceback" not in outcome.err
    assert "'hostile'" in outcome.err and package in outcome.err, outcome.err


CODE = DeviceCode("hostile", "text")
TARGETS: dict[str, Any] = {
    "import raises": ImportError("no driver"),
    "import exits": SystemExit("no licence"),
    "no class": Unnamed(),
    "another class": Unnamed,
    "another name": well("other"),
    "constructor raises": target_with(__init__=raises),
    "abstract": type("Hostile", (Target,), {"name": "hostile"}),
    "levels are none": target_with(levels=None),
    "levels is a method": target_with(levels=gives(("v1",))),
    "levels are numbers": target_with(levels=(1, 2)),
    "capabilities raises": target_with(capabilities=raises, accepts=Target.accepts),
    "capabilities is None": target_with(capabilities=gives(None), accepts=Target.accepts),
    "capabilities is None, unasked by accepts": target_with(capabilities=gives(None)),
    "capabilities of garbage": target_with(capabilities=gives(Capabilities(ops=7)), accepts=Target.accepts),  # pyright: ignore[reportArgumentType]
    "accepts raises": target_with(accepts=raises),
    "accepts is None": target_with(accepts=gives(None)),
    "accepts is a str": target_with(accepts=gives("yes")),
    "accepts is a bool": target_with(accepts=gives(True)),
    "accepts is another object": target_with(accepts=gives(Unnamed())),
    "refusal without words": target_with(accepts=gives(Refusal(None))),  # pyright: ignore[reportArgumentType]
    "compile raises": target_with(compile=raises),
    "compile is None": target_with(compile=gives(None)),
    "compile is bytes": target_with(compile=gives(b"code")),
    "compile is another object": target_with(compile=gives(Unnamed())),
    "family is None": target_with(compile=gives(DeviceCode(None, "text"))),  # pyright: ignore[reportArgumentType]
    "payload is None": target_with(compile=gives(DeviceCode("hostile", None))),  # pyright: ignore[reportArgumentType]
    "packing of no layout": target_with(compile=gives(DeviceCode("hostile", "text", packings={0: "panels"}))),  # pyright: ignore[reportArgumentType]
    "link raises": target_with(link=raises),
    "link is None": target_with(link=gives(None)),
    "link is bytes": target_with(link=gives(b"code")),
    "linked without entries": target_with(link=gives(LinkedCode(b"code", [], []))),
    "linked beyond the end": target_with(link=gives(LinkedCode(b"code", [0, 0], [10**6, 10**6]))),
    "linked text": target_with(link=gives(LinkedCode("code", [0, 0], [4, 4]))),  # pyright: ignore[reportArgumentType]
    "cost raises": with_throughput(raises),
    "cost of its own raises": target_with(cost=raises),
    "cost is None": with_throughput(gives(None)),
    "cost is a str": with_throughput(gives("1")),
    "cost is NaN": with_throughput(gives(math.nan)),
    "cost is negative": with_throughput(gives(-1.0)),
    "runs_here raises": target_with(runs_here=raises),
    "passes raise": target_with(unit="region", passes=raises),
    "passes are None": target_with(unit="region", passes=gives(None)),
    "passes are strings": target_with(unit="region", passes=gives(["fuse"])),
}


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_a_target_that_fails_is_named(target: Any, model: Path, tmp_path: Path, lowerkit_command: RunCommand) -> None:
    output = tmp_path / "model.lk"
    output.write_bytes(EARLIER)
    with packages(target):
        outcome = lowerkit_command("compile", model, "--target", "hostile", "-o", output)
        assert_diagnostic(outcome, "LK5003", 5)
        assert output.read_bytes() == EARLIER and list(tmp_path.iterdir()) == [output]
        assert lowerkit_command("compile", model, "--target", "well", "-o", output).code == 0


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_the_others_are_listed_beside_a_target_that_fails(target: Any, lowerkit_command: RunCommand) -> None:
    with packages(target):
        outcome = lowerkit_command("targets")
    assert outcome.code == 0, outcome.err
    assert "well" in outcome.out and "x86-64-v3" in outcome.out and "Traceback" not in outcome.err


@pytest.fixture(scope="module")
def artifact(model: Path) -> Path:
    """What a target compiled while its device still worked."""
    path = model.with_name("there.lk")
    with packages(well("hostile")):
        lowerkit.compile(model, target="hostile").save(path)
    return path


DEVICES: dict[str, Any] = {
    "import raises": ImportError("no driver"),
    "import exits": SystemExit("no licence"),
    "no class": Unnamed(),
    "another class": Unnamed,
    "constructor raises": device_with(__init__=raises),
    "allocate raises": device_with(allocate=raises),
    "allocate is None": device_with(allocate=gives(None)),
    "allocate is a str": device_with(allocate=gives("0x100")),
    "allocate is a float": device_with(allocate=gives(256.0)),
    "allocate is negative": device_with(allocate=gives(-256)),
    "allocate is too large": device_with(allocate=gives(1 << 64)),
    "allocate is not aligned": device_with(allocate=lambda self, size: InterpretedDevice.allocate(self, size) + 8),
    "copy_in raises": device_with(copy_in=raises),
    "copy_out raises": device_with(copy_out=raises),
    "synchronize raises": device_with(synchronize=raises),
    "load raises": device_with(load=raises),
    "launch raises": device_with(launch=raises),
    "error_text raises": device_with(launch=raises, error_text=raises),
    "error_text is None": device_with(launch=raises, error_text=gives(None)),
}


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_a_device_that_fails_is_named(
    device: Any, model: Path, artifact: Path, tmp_path: Path, lowerkit_command: RunCommand
) -> None:
    """The golden run of a compilation is the first to meet it; so is the first run of an artifact that was there."""
    output = tmp_path / "model.lk"
    output.write_bytes(EARLIER)
    with packages(well("hostile"), device):
        outcome = lowerkit_command("compile", model, "--target", "hostile", "-o", output)
        assert_diagnostic(outcome, "LK8016", 8)
        assert output.read_bytes() == EARLIER and list(tmp_path.iterdir()) == [output]
        assert lowerkit_command("compile", model, "--target", "well", "-o", output).code == 0
    with packages(well("hostile"), device):
        assert_diagnostic(lowerkit_command("run", artifact, "--input", "input:2x8:f32"), "LK8016", 8)


def test_a_device_that_cannot_be_closed_says_nothing_on_the_way_out(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    with packages(well("hostile"), device_with(close=raises)):
        compiled = lowerkit.compile(model, target="hostile")
        compiled(np.zeros((2, 8), np.float32))
        del compiled
        gc.collect()
    assert not said


class Outside(HostMemoryDevice):
    """Reads and writes at addresses that it was never given."""

    behind: ClassVar[int] = 0

    def load(self, code: Any) -> Any:
        return None

    def launch(self, program: Any, addresses: Any, dims: Any, queue: int) -> None:
        self.array(addresses[-1] + self.behind, (1 << 20,), np.float32)[...] = 1


@pytest.mark.parametrize("behind", [0, 1 << 40, -(1 << 44)], ids=["too long", "behind", "before"])
def test_a_program_that_writes_outside_of_the_memory_of_a_device_is_stopped(behind: int, model: Path) -> None:
    with packages(well("hostile"), type("Far", (Outside,), {"behind": behind})):
        compiled = lowerkit.compile(model, target="hostile")
        with pytest.raises(RuntimeFault, match=r"LK8016.*'hostile'.*lie in no allocation"):
            compiled(np.zeros((2, 8), np.float32))


@pytest.mark.parametrize("method", ["launch", "copy_in", "copy_out"])
def test_a_session_runs_again_after_a_failure(method: str, model: Path) -> None:
    calls: list[str] = []
    real = getattr(InterpretedDevice, method)

    def once(*arguments: Any) -> Any:
        calls.append(method)
        return raises() if len(calls) == failing else real(*arguments)

    x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)
    with packages(well("hostile"), device_with(**{method: once})):
        failing = -1
        compiled = lowerkit.compile(model, target="hostile")
        expected = compiled(x)
        failing = len(calls) + 1
        with pytest.raises(RuntimeFault, match="by design") as caught:
            compiled(x)
        assert caught.value.code == "LK8016"
        for _ in range(2):
            np.testing.assert_array_equal(compiled(x), expected)


def test_what_a_target_takes_and_cannot_compile_runs_on_the_host_and_says_why(
    model: Path, tmp_path: Path, lowerkit_command: RunCommand
) -> None:
    output = tmp_path / "model.lk"
    with packages(target_with(compile=gives(Refusal("the scratch pad is too small")))):
        outcome = lowerkit_command("compile", model, "--target", "hostile", "-o", output)
    assert outcome.code == 0, outcome.err
    assert outcome.err.startswith("hostile: 0 of "), outcome.err
    placements = lowerkit.load(output).program.metadata["placements"]
    products = [each for each in placements if each["op"] == "lk.matmul"]
    assert len(products) == 2
    for each in products:
        assert not each["target"] and ["hostile", "the scratch pad is too small"] in each["refusals"]


def test_a_target_that_changes_its_mind_is_named(model: Path, tmp_path: Path, lowerkit_command: RunCommand) -> None:
    answers: list[str] = []

    def fickle(self: Target, function: Any) -> Any:
        answers.append(function.kind)
        return Refusal("not today") if len(answers) > 2 else well("hostile").compile(self, function)

    with packages(target_with(compile=fickle)):
        outcome = lowerkit_command("compile", model, "--target", "hostile", "-o", tmp_path / "model.lk")
    assert_diagnostic(outcome, "LK5003", 5, package="")
    assert "not today" in outcome.err


def test_a_target_that_takes_everything_without_a_look_computes_everything(model: Path) -> None:
    x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)
    with packages(target_with(accepts=gives(Accept()))):
        found = lowerkit.compile(model, target="hostile")(x)
    np.testing.assert_allclose(found, lowerkit.compile(model)(x), rtol=1e-5, atol=1e-6)
