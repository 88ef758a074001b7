"""Several programs in one artifact: one model for several levels of the CPU, over one entry of weights."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import lowerkit
from lowerkit.cli.main import cli
from lowerkit.errors import LowerkitError, RuntimeFault, UnsupportedError
from lowerkit.runtimes import _native
from lowerkit.runtimes.artifact_reader import open_artifact
from lowerkit.runtimes.manifest import ProgramSpec
from lowerkit.runtimes.session import Session
from lowerkit.runtimes.verify import verify_artifact
from lowerkit.targets.spec import TargetSpec

_WIDE = "avx512f" in _native.cpu_features()
_BOTH = "cpu:x86-64-v3,x86-64-v4"
_SHAPE = (4, 24)
X = torch.randn(*_SHAPE, generator=torch.Generator().manual_seed(5))


class Net(torch.nn.Module):
    """A product whose weight is packed by level, and a table that is stored as it is."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.linear = torch.nn.Linear(24, 40)
        self.table = torch.nn.Embedding(3000, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x)) + self.table((x[:, 0] > 0).long() * 1999)


@pytest.fixture(scope="module")
def fat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fat") / "model.lk"
    lowerkit.compile(Net().eval(), (X,), _BOTH).save(path)
    return path


def labels(programs: list[ProgramSpec]) -> list[str]:
    return [program.label for program in programs]


def expected() -> np.ndarray[Any, Any]:
    with torch.no_grad():
        return Net().eval().double()(X.double()).numpy()


def invoke(*arguments: str) -> Any:
    result = CliRunner().invoke(cli, list(arguments))
    assert result.exit_code == 0, result.output
    return result


def test_the_widest_level_stands_first_and_weights_stand_once(fat: Path, tmp_path: Path) -> None:
    artifact = open_artifact(fat)
    assert labels(artifact.manifest.programs) == ["cpu:x86-64-v4", "cpu:x86-64-v3"]
    tables = [name for name, tensor in artifact.weights.items() if tensor.shape == (3000, 40)]
    assert len(tables) == 1
    assert len({program.code[""] for program in artifact.manifest.programs}) == 2
    sizes: list[int] = []
    for level in ("x86-64-v3", "x86-64-v4"):
        lowerkit.compile(Net().eval(), (X,), f"cpu:{level}").save(tmp_path / f"{level}.lk")
        sizes.append((tmp_path / f"{level}.lk").stat().st_size)
    assert fat.stat().st_size < sum(sizes) - 3000 * 40 * 4 + 4096


def test_the_loader_takes_the_widest_level_that_the_machine_has(fat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lowerkit.load(fat).program.level == ("x86-64-v4" if _WIDE else "x86-64-v3")
    narrow = [feature for feature in _native.cpu_features() if not feature.startswith("avx512")]
    monkeypatch.setattr(_native, "cpu_features", lambda: narrow)
    session = lowerkit.load(fat)
    assert session.program.level == "x86-64-v3"
    np.testing.assert_allclose(session.run(X)[0], expected(), rtol=1e-5, atol=1e-6)
    monkeypatch.setattr(_native, "cpu_features", lambda: ["sse2"])
    with pytest.raises(RuntimeFault, match=r"LK8003.*cpu:x86-64-v4: this CPU lacks .*; cpu:x86-64-v3: this CPU lacks"):
        lowerkit.load(fat)


_NEEDS_AVX512 = pytest.mark.skipif(not _WIDE, reason="no AVX-512")


@pytest.mark.parametrize("level", ["x86-64-v3", pytest.param("x86-64-v4", marks=_NEEDS_AVX512)])
def test_each_program_computes_the_model(fat: Path, level: str) -> None:
    session = Session.load(fat, target=f"cpu:{level}")
    assert session.program.level == level
    np.testing.assert_allclose(session.run(X)[0], expected(), rtol=1e-5, atol=1e-6)


def test_programs_that_there_are_not(fat: Path) -> None:
    with pytest.raises(RuntimeFault, match="LK8005.*'cpu:x86-64-v5'.*it has cpu:x86-64-v4, cpu:x86-64-v3") as caught:
        lowerkit.load(fat, target="cpu:x86-64-v5")
    assert "did you mean" in (caught.value.hint or "")
    with pytest.raises(RuntimeFault, match="no program 'decode'; it has main"):
        lowerkit.load(fat, program="decode")
    assert lowerkit.load(fat, target="cpu").program.target == "cpu"


def test_verify_runs_every_program_that_can_run(fat: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = verify_artifact(fat)
    assert report.passed
    assert [bool(program.golden) for program in report.programs] == [_WIDE, True]
    assert [program.target for program in verify_artifact(fat, target="cpu:x86-64-v3").programs] == ["cpu:x86-64-v3"]
    narrow = [feature for feature in _native.cpu_features() if not feature.startswith("avx512")]
    monkeypatch.setattr(_native, "cpu_features", lambda: narrow)
    report = verify_artifact(fat)
    assert "this machine lacks avx512bw" in report.programs[0].not_run
    assert report.programs[1].golden[0].mismatches == 0
    with pytest.raises(RuntimeFault, match="LK8003"):
        verify_artifact(fat, target="cpu:x86-64-v4")


def test_the_commands_take_the_program_by_its_target(fat: Path, tmp_path: Path) -> None:
    run = json.loads(invoke("run", str(fat), "--input", "x:4x24:f32", "--target", "cpu:x86-64-v3", "--json").stdout)
    assert run["outputs"][0]["shape"] == [4, 40]
    shown = json.loads(invoke("inspect", str(fat), "--target", "cpu:x86-64-v3", "--json").stdout)
    assert shown["target"] == "cpu:x86-64-v3"
    assert shown["targets"] == ["cpu:x86-64-v4", "cpu:x86-64-v3"]
    assert "also for cpu:x86-64-v3: --target shows it" in invoke("inspect", str(fat)).output
    assert "cpu:x86-64-v3:" in invoke("verify", str(fat), "--target", "cpu:x86-64-v3").output
    invoke("emit-c", str(fat), "-o", str(tmp_path), "--target", "cpu:x86-64-v3")
    listing = subprocess.run(["objdump", "-d", tmp_path / "model.o"], capture_output=True, text=True, check=True)
    assert "zmm" not in listing.stdout


def test_levels_are_read_once_each() -> None:
    spec = TargetSpec.parse("cpu:x86-64-v4, x86-64-v3,x86-64-v4")
    assert spec.hosts == ("x86-64-v4", "x86-64-v3")
    assert str(spec) == "cpu:x86-64-v4,x86-64-v3"
    assert str(TargetSpec.parse("cpu")) == "cpu"
    assert TargetSpec.parse("cuda:sm_90,cuda:sm_80+cpu").accelerators == (("cuda", "sm_90,sm_80"),)
    assert [target.level for target in TargetSpec.parse("cuda:sm_80,sm_90").accelerator_targets] == ["sm_80,sm_90"]
    with pytest.raises(UnsupportedError, match="has no level 'sm_9'"):
        _ = TargetSpec.parse("cuda:sm_80,sm_9").accelerator_targets
    with pytest.raises(LowerkitError, match="LK4003"):
        lowerkit.compile(Net().eval(), (X,), "cpu:x86-64-v3,x86-64-v9")
