"""What `lowerkit targets new` writes works: pip installs it, its tests pass, every command takes its target."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from lowerkit.targets.new_package import write_package
from tests.support.models import benchmark_models
from tests.unit.cli.conftest import RunCommand, lowerkit_command

__all__ = ["lowerkit_command"]

NAME = "vendor_chip"
COMMAND = "from lowerkit.cli.main import main; main()"


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package; ``site`` in it is the folder that pip installed it into."""
    folder = tmp_path_factory.mktemp("vendor") / "package"
    write_package(NAME, folder)
    install = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    subprocess.run(
        [sys.executable, "-m", "pip", *install, "--target", "site", "."], cwd=folder, check=True, timeout=300
    )
    return folder


@pytest.fixture
def at_hand(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets this process find the package."""
    monkeypatch.syspath_prepend(str(package / "site"))


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small ResNet with its input ``x.npy`` and what eager makes of it, ``eager.npy``."""
    folder = tmp_path_factory.mktemp("resnet")
    module, inputs = benchmark_models().tiny("resnet50")
    torch.export.save(torch.export.export(module, inputs), folder / "resnet.pt2")
    np.save(folder / "x.npy", inputs[0].numpy())
    with torch.no_grad():
        np.save(folder / "eager.npy", module(*inputs).numpy())
    return folder


@pytest.mark.slow
def test_its_own_tests_pass(package: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(package / "site"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]
    ran = subprocess.run(command, cwd=package, env=environment, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "8 passed" in ran.stdout


def test_it_is_listed(at_hand: None, lowerkit_command: RunCommand) -> None:
    targets = json.loads(lowerkit_command("targets", "--json").out)["targets"]
    assert {"target": NAME, "level": "", "runs_here": True, "host": False} in targets


def test_a_resnet_from_compile_to_run(
    at_hand: None, resnet: Path, tmp_path: Path, lowerkit_command: RunCommand
) -> None:
    artifact = tmp_path / "resnet.lk"
    options = ["--target", NAME, "--require-offload", "95%"]
    compiled = lowerkit_command("compile", resnet / "resnet.pt2", *options, "-o", artifact, "--json")
    assert compiled.code == 0, compiled.err
    assert f"{NAME}: " in compiled.err and "% of FLOPs" in compiled.err
    (summary,) = json.loads(compiled.out)["offload"]
    assert summary["target"] == NAME
    assert not {"lk.conv", "lk.matmul"} & {each["op"] for each in summary["missing"]}

    verified = lowerkit_command("verify", artifact)
    assert verified.code == 0, verified.err

    inspected = json.loads(lowerkit_command("inspect", artifact, "--json").out)
    places = {each["op"]: each["target"] for each in inspected["placements"]}
    assert places["lk.conv"] == places["lk.matmul"] == NAME and places["lk.max_pool"] == ""
    assert f"{NAME}: no lk.max_pool" in lowerkit_command("inspect", artifact, "--ledger").out

    given = f"{inspected['inputs'][0]['name']}=@{resnet}/x.npy"
    run = lowerkit_command("run", artifact, "--input", given, "-o", tmp_path, "--json")
    assert run.code == 0, run.err
    (output,) = json.loads(run.out)["outputs"]
    np.testing.assert_allclose(np.load(output["file"]), np.load(resnet / "eager.npy"), rtol=1e-4, atol=1e-5)


def test_a_resnet_is_checked(at_hand: None, resnet: Path, lowerkit_command: RunCommand) -> None:
    checked = lowerkit_command("check", resnet / "resnet.pt2", "--target", NAME, "--json")
    assert checked.code == 0, checked.err
    assert json.loads(checked.out)["passed"] is True


def test_more_than_it_takes_is_refused(
    at_hand: None, resnet: Path, tmp_path: Path, lowerkit_command: RunCommand
) -> None:
    options = ["--target", NAME, "--require-offload", "100%", "-o", tmp_path / "resnet.lk"]
    refused = lowerkit_command("compile", resnet / "resnet.pt2", *options)
    assert refused.code == 4
    assert "error[LK4006]" in refused.err and "no lk.max_pool" in refused.err
    assert not (tmp_path / "resnet.lk").exists()


PICTURES = """
import torch
from torch import nn

def model():
    layers = nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, stride=2)
    return nn.Sequential(*layers).eval(), (torch.randn(2, 3, 16, 16),)
"""


def test_pictures_of_every_size(package: Path, tmp_path: Path) -> None:
    """In a process of its own, which may crash."""
    (tmp_path / "pictures.py").write_text(PICTURES)
    environment = {**os.environ, "PYTHONPATH": str(package / "site"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", COMMAND, "compile", "pictures.py:model", "--dynamic", "input:2=8..64"]
    command += ["--dynamic", "input:3=8..64", "--target", NAME, "-o", "pictures.lk"]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
