"""Packages that end the process or never return: named by the parent, with nothing else harmed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

COMMAND = "from lowerkit.cli.main import main; main()"

TARGET = """
import os, signal, time
from lowerkit.targets.capabilities import Capabilities, OpSupport
from lowerkit.targets.op_view import OpList
from lowerkit.targets.plan import DeviceCode
from lowerkit.targets.target import Target

def fault(where):
    if os.environ.get("FAULT") == where:
        how = os.environ["HOW"]
        if how == "exit":
            os._exit(0)
        if how == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if how == "deaf":
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        time.sleep(3600)

fault("import")

class Rude(Target):
    name = "rude"

    def capabilities(self, level):
        fault("capabilities")
        return Capabilities(ops={"lk.matmul": OpSupport(frozenset({"f32"}))})

    def compile(self, function):
        fault("compile")
        (op,) = OpList.of(function.block).ops
        return DeviceCode("rude", b"product")

    def link(self, codes, settings):
        fault("link")
        return super().link(codes, settings)
"""

DEVICE = """
import os, signal, time
import numpy as np
from lowerkit.runtimes.device import HostMemoryDevice

def fault(where):
    if os.environ.get("FAULT") == where:
        how = os.environ["HOW"]
        if how == "exit":
            os._exit(0)
        if how == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(3600)

class RudeDevice(HostMemoryDevice):
    def __init__(self, level):
        fault("make")
        super().__init__(level)

    def load(self, code):
        return None

    def launch(self, program, addresses, dims, queue):
        fault("launch")
        x, w, y = (self.array(address, (4, 4), np.float32) for address in addresses)
        y[...] = x @ w.T
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed package ``rude``, and a model."""
    folder = tmp_path_factory.mktemp("rude")
    (folder / "rude_target.py").write_text(TARGET)
    (folder / "rude_device.py").write_text(DEVICE)
    info = folder / "rude_chips-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rude-chips\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(
        "[lowerkit.targets]\nrude = rude_target:Rude\n[lowerkit.devices]\nrude = rude_device:RudeDevice\n"
    )
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.ReLU())
    torch.export.save(torch.export.export(module, (torch.randn(4, 4),)), folder / "model.pt2")
    return folder


def start(site: Path, *arguments: str | Path, fault: str = "", how: str = "") -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(site), "FAULT": fault, "HOW": how}
    command = [sys.executable, "-c", COMMAND, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def lowerkit(site: Path, *arguments: str | Path, fault: str = "", how: str = "") -> tuple[int, str]:
    process = start(site, *arguments, fault=fault, how=how)
    _, errors = process.communicate(timeout=300)
    return process.returncode, errors


@pytest.fixture(scope="module")
def artifact(site: Path) -> Path:
    code, errors = lowerkit(site, "compile", site / "model.pt2", "--target", "rude", "-o", site / "model.lk")
    assert code == 0, errors
    return site / "model.lk"


@pytest.mark.parametrize(
    ("fault", "how", "says"),
    [
        ("import", "crash", "importing it ended the process (SIGSEGV)"),
        ("capabilities", "exit", "accepts ended the process (exit code 0)"),
        ("compile", "hang", "compile did not return within 2 s"),
        ("link", "crash", "link ended the process (SIGSEGV)"),
    ],
)
def test_a_target_is_named(site: Path, tmp_path: Path, fault: str, how: str, says: str) -> None:
    output = tmp_path / "model.lk"
    output.write_bytes(b"from before")
    options = ["compile", site / "model.pt2", "--target", "rude", "-o", output]
    code, errors = lowerkit(site, "--package-deadline", "2", *options, fault=fault, how=how)
    assert code == 5
    line = next(line for line in errors.splitlines() if line.startswith("error"))
    assert line == f"error[LK5003]: the target 'rude' (package rude-chips 1.5) failed: {says}"
    assert [path.name for path in tmp_path.iterdir()] == ["model.lk"]
    assert output.read_bytes() == b"from before"


@pytest.mark.parametrize(
    ("command", "fault", "how", "says"),
    [
        ("run", "make", "crash", "making it ended the process (SIGSEGV)"),
        ("run", "launch", "hang", "launch did not return within 2 s"),
        ("verify", "launch", "exit", "launch ended the process (exit code 0)"),
    ],
)
def test_a_device_is_named(site: Path, artifact: Path, command: str, fault: str, how: str, says: str) -> None:
    inputs = ["--input", "input:4x4:f32"] if command == "run" else []
    code, errors = lowerkit(site, "--package-deadline", "2", command, artifact, *inputs, fault=fault, how=how)
    assert code == 8
    assert f"error[LK8016]: the device 'rude' (package rude-chips 1.5) failed: {says}" in errors


@pytest.mark.parametrize("how", ["hang", "deaf"])
def test_a_command_that_is_stopped_is_no_fault_of_the_package(site: Path, tmp_path: Path, how: str) -> None:
    """Also where the package does not heed the signal, or Python has lost it."""
    options = ["compile", site / "model.pt2", "--target", "rude", "-o", tmp_path / "model.lk"]
    process = start(site, *options, fault="compile", how=how)
    time.sleep(0.2)
    deadline = time.monotonic() + 300
    while not (children := Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    while "nanosleep" not in Path(f"/proc/{children[0]}/wchan").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "LK5003" not in errors
    assert not Path(f"/proc/{children[0]}").exists()


def test_what_works_is_as_without_a_supervisor(site: Path, artifact: Path, tmp_path: Path) -> None:
    code, errors = lowerkit(site, "run", artifact, "--input", "input:4x4:f32", "-o", tmp_path)
    assert code == 0, errors
    (output,) = tmp_path.glob("*.npy")
    assert np.load(output).shape == (4, 4)
    code, errors = lowerkit(site, "run", artifact)
    assert code == 2  # inputs are missing
    assert "error" in errors
