"""A model compiled for CUDA on a machine without a card, and every command that takes ``--device``."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from lowerkit.runtimes.cuda.image import unpack
from lowerkit.targets.cuda.ptx import ptxas
from lowerkit.targets.cuda.triton import toolchain
from tests.unit.cli.conftest import RunCommand

MODEL = """
import torch
from torch import nn


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.last, self.norm = nn.Linear(8, 16), nn.Linear(16, 4), nn.LayerNorm(16)

    def forward(self, x):
        return torch.softmax(self.last(self.norm(torch.relu(self.first(x)))), -1)


def model():
    return Small().eval(), (torch.ones(5, 8),)


def many():
    return Small().eval(), (torch.ones(20, 8),)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cuda") / "small.py"
    path.write_text(MODEL)
    return path


def small(model: Path, x: np.ndarray) -> np.ndarray:
    import torch

    scope: dict[str, object] = {}
    exec(compile(MODEL, str(model), "exec"), scope)
    module, _ = scope["model"]()  # type: ignore[operator]
    with torch.no_grad():
        return module(torch.from_numpy(x)).numpy()


def test_from_a_model_to_outputs(model: Path, tmp_path: Path, lowerkit_command: RunCommand) -> None:
    artifact = tmp_path / "gpu.lk"
    done = lowerkit_command(
        "compile", f"{model}:model", "--target", "cuda:sm_90", "--device", "cuda-sim", "-o", artifact
    )
    assert done.code == 0, done.err
    assert "cuda: 7 of 7 ops" in done.out + done.err
    x = np.random.default_rng(1).standard_normal((5, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    arguments = ("--device", "cuda-sim", "--input", f"x=@{tmp_path / 'x.npy'}", "-o", tmp_path / "out", "--json")
    done = lowerkit_command("run", artifact, *arguments)
    assert done.code == 0, done.err
    (file,) = (entry["file"] for entry in json.loads(done.out)["outputs"])
    np.testing.assert_allclose(np.load(file), small(model, x), rtol=1e-5, atol=1e-6)
    verified = lowerkit_command("verify", artifact, "--device", "cuda-sim")
    assert verified.code == 0 and "as stored" in verified.out
    checked = lowerkit_command("check", f"{model}:model", "--target", "cuda:sm_80", "--device", "cuda-sim")
    assert checked.code == 0, checked.err


def test_tf32_is_allowed_in_every_command_that_compiles(
    model: Path, tmp_path: Path, lowerkit_command: RunCommand
) -> None:
    of_model = (f"{model}:many", "--target", "cuda:sm_80", "--allow", "tf32")
    on_device = (*of_model, "--device", "cuda-sim")
    page = tmp_path / "page.html"
    checked = lowerkit_command("check", *on_device, "--bisect", "--html", page)
    assert checked.code == 0, checked.err
    assert "of them by what --allow tf32 grants" in checked.out
    assert "allowed: tf32 (f32 factors of products rounded to 11 bits" in checked.err
    assert "allowed: tf32" in page.read_text()
    shown = lowerkit_command("inspect", *of_model, "--json")
    assert shown.code == 0, shown.err
    used = {launch["arithmetic"] for launch in json.loads(shown.out)["cuda"]["launches"]}
    assert "matrix tf32" in used
    timed = lowerkit_command("bench", *on_device, "--peers", "", "--seconds", "0.1", "--json")
    assert timed.code == 0, timed.err
    np.savez(tmp_path / "calibration.npz", x=np.random.default_rng(2).standard_normal((4, 20, 8)).astype(np.float32))
    output = tmp_path / "int8.lk"
    given = ("--calib", tmp_path / "calibration.npz", "-o", output, "--keep-float", "last")
    quantized = lowerkit_command("quantize", *on_device, *given)
    assert quantized.code == 0, quantized.err
    shown = lowerkit_command("inspect", output, "--json")
    assert "matrix tf32" in {launch["arithmetic"] for launch in json.loads(shown.out)["cuda"]["launches"]}
    refused = lowerkit_command("check", f"{model}:model", "--allow", "tf32")
    assert refused.code == 4 and "nothing called 'tf32'" in refused.err
    refused = lowerkit_command("inspect", output, "--allow", "tf32")
    assert refused.code == 2 and "--allow" in refused.err


def test_the_artifact_holds_ptx_and_machine_code(model: Path, tmp_path: Path, lowerkit_command: RunCommand) -> None:
    artifact = tmp_path / "gpu.lk"
    assert lowerkit_command("compile", f"{model}:model", "--target", "cuda:sm_80", "-o", artifact).code == 0
    with zipfile.ZipFile(artifact) as file:
        (entry,) = (name for name in file.namelist() if name.endswith("cuda.bin"))
        code = unpack(file.read(entry), {})
    (variant,) = code.variants
    has_assembler = ptxas.find_ptxas() is not None or toolchain.bundled_ptxas() is not None
    for compiled in (code.compiled(variant, name) for name in variant.kernels):
        assert b".target sm_80" in compiled.ptx
        assert compiled.cubin[:4] == b"\x7fELF" if has_assembler else compiled.cubin == b""
    shown = lowerkit_command("inspect", artifact, "--all")
    assert shown.code == 0 and "gemv" in shown.out and "small.py" in shown.out


def test_devices_that_are_none(model: Path, tmp_path: Path, lowerkit_command: RunCommand) -> None:
    artifact = tmp_path / "gpu.lk"
    assert lowerkit_command("compile", f"{model}:model", "--target", "cuda:sm_90", "-o", artifact).code == 0
    done = lowerkit_command("run", artifact, "--input", "x:5x8:f32")
    assert done.code == 8 and "LK8020" in done.err and "--device cuda-sim" in done.err
    done = lowerkit_command("run", artifact, "--device", "cuda-smi", "--input", "x:5x8:f32")
    assert done.code == 2 and "did you mean 'cuda-sim'" in done.err
    done = lowerkit_command("run", artifact, "--device", "npu=cuda-sim", "--input", "x:5x8:f32")
    assert done.code == 2 and "not compiled for a device called 'npu'" in done.err and "compiled for cuda" in done.err
    done = lowerkit_command("compile", f"{model}:model", "--target", "cuda:sm_91", "-o", tmp_path / "other.lk")
    assert done.code == 4 and "did you mean 'sm_90'" in done.err and "sm_120" in done.err
    assert lowerkit_command("compile", f"{model}:model", "-o", artifact).code == 0
    done = lowerkit_command("run", artifact, "--device", "cuda-sim", "--input", "x:5x8:f32")
    assert done.code == 2 and "runs on the CPU only" in done.err


def test_a_damaged_image_is_named(model: Path, tmp_path: Path, lowerkit_command: RunCommand) -> None:
    artifact = tmp_path / "gpu.lk"
    assert lowerkit_command("compile", f"{model}:model", "--target", "cuda:sm_90", "-o", artifact).code == 0
    data = bytearray(artifact.read_bytes())
    place = data.index(b".visible .entry")
    data[place : place + 8] = b".visibly"
    artifact.write_bytes(data)
    done = lowerkit_command("run", artifact, "--device", "cuda-sim", "--input", "x:5x8:f32")
    assert done.code == 8 and "Traceback" not in done.err
