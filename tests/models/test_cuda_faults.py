"""A session on a device that fails: one diagnostic with a way out and the exit code of its kind, then it goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import lowerkit
from lowerkit.capture.capture import capture
from lowerkit.cli.diagnostics import diagnostic_of
from lowerkit.compiler import CompileOptions, compile_program
from lowerkit.errors import LowerkitError
from lowerkit.runtimes.cuda import device as cuda_device
from lowerkit.runtimes.cuda.driver_faults import DriverFaults

SIMULATED = "cuda-sim"
Floats = np.ndarray[tuple[int, ...], np.dtype[np.float32]]
Saved = tuple[Path, Floats]
NEVER = DriverFaults()
SIMULATED_DEVICE = cuda_device.SimulatedCudaDevice


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    torch.manual_seed(0)
    module, x = nn.Sequential(nn.Linear(7, 5), nn.GELU(), nn.Linear(5, 3)), torch.randn(4, 7)
    path = tmp_path_factory.mktemp("cuda") / "model.lk"
    options = CompileOptions("cuda:sm_80", golden=False, device=SIMULATED)
    compile_program(capture(module, (x,)), options).save(path)
    return path, x.numpy()


def fail_with(monkeypatch: pytest.MonkeyPatch, faults: DriverFaults) -> None:
    class Faulty(SIMULATED_DEVICE):
        def __init__(self, level: str = "", number: int = 0) -> None:
            super().__init__(level, number, faults=faults)

    monkeypatch.setattr(cuda_device, "SimulatedCudaDevice", Faulty)


def error_of_run(session: Any, x: Floats) -> LowerkitError | None:
    try:
        session.run(x)
    except LowerkitError as error:
        return error
    return None


def failure_of(path: Path, x: Floats) -> LowerkitError | None:
    try:
        lowerkit.load(path, device=SIMULATED).run(x)
    except LowerkitError as error:
        return error
    return None


def diagnosed(error: LowerkitError, code: str, exit_code: int, words: str, hint: str) -> None:
    text, found = diagnostic_of(error)
    assert (error.code, found) == (code, exit_code), text
    assert words in text
    assert text.count("error[") == 1
    assert hint in text.split("hint: ")[1]


OPENING = [
    (DriverFaults(no_library=True), "libcuda.so.1 cannot be loaded", "--device cuda-sim"),
    (DriverFaults(no_gpu=True), "knows no card", "--device cuda-sim"),
    (
        DriverFaults(missing_symbol="cuDevicePrimaryCtxRetain"),
        "has no function cuDevicePrimaryCtxRetain",
        "newer driver",
    ),
]


@pytest.mark.parametrize(("faults", "words", "hint"), OPENING)
def test_no_device(
    artifact: Saved, monkeypatch: pytest.MonkeyPatch,
    faults: DriverFaults, words: str, hint: str,
) -> None:  # fmt: skip
    path, x = artifact
    fail_with(monkeypatch, faults)
    with pytest.raises(LowerkitError) as caught:
        lowerkit.load(path, device=SIMULATED)
    diagnosed(caught.value, "LK8020", 8, words, hint)
    fail_with(monkeypatch, NEVER)
    assert lowerkit.load(path, device=SIMULATED).run(x)


def test_an_old_driver(artifact: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    path, x = artifact
    fail_with(monkeypatch, DriverFaults(old_driver=(10, 2)))
    with pytest.raises(LowerkitError) as caught:
        lowerkit.load(path, device=SIMULATED).run(x)
    assert "this driver is of CUDA 10.2" in caught.value.message
    assert caught.value.hint is not None
    assert "install a driver of CUDA" in caught.value.hint


def test_memory_runs_out(artifact: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever allocation it is, and the next session has it again."""
    path, x = artifact
    found: list[LowerkitError] = []
    for number in range(1, 20):
        fail_with(monkeypatch, DriverFaults(out_of_memory_at=number))
        error = failure_of(path, x)
        if error is None:
            break
        found.append(error)
    assert 2 <= len(found) < 19
    for error in found:
        text, exit_code = diagnostic_of(error)
        assert (error.code, exit_code) == ("LK7002", 7), text
        assert "CUDA_ERROR_OUT_OF_MEMORY" in text
    fail_with(monkeypatch, NEVER)
    assert lowerkit.load(path, device=SIMULATED).run(x)


def test_a_launch_that_fails_leaves_the_session_usable(artifact: Saved, monkeypatch: pytest.MonkeyPatch) -> None:
    path, x = artifact
    fail_with(monkeypatch, NEVER)
    wanted = lowerkit.load(path, device=SIMULATED).run(x)[0]
    fail_with(monkeypatch, DriverFaults(launch_failure_at=2))
    session = lowerkit.load(path, device=SIMULATED)
    with pytest.raises(LowerkitError) as caught:
        session.run(x)
    diagnosed(caught.value, "LK8016", 8, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "compile for its level")
    for _ in range(3):
        np.testing.assert_array_equal(session.run(x)[0], wanted)


@pytest.mark.parametrize("number", [700, 719])
def test_a_lost_device(artifact: Saved, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    path, x = artifact
    fail_with(monkeypatch, NEVER)
    wanted = lowerkit.load(path, device=SIMULATED).run(x)[0]
    fail_with(monkeypatch, DriverFaults(device_lost_at=60, lost_by=number))
    session = lowerkit.load(path, device=SIMULATED)
    runs = 0
    while runs < 50 and (error := error_of_run(session, x)) is None:
        runs += 1
    assert 0 < runs < 50
    for _ in range(3):
        error = error_of_run(session, x)
        assert error is not None
        diagnosed(error, "LK8016", 8, "CUDA_ERROR_", "the device is lost to this session: close it")
    fail_with(monkeypatch, NEVER)
    np.testing.assert_array_equal(lowerkit.load(path, device=SIMULATED).run(x)[0], wanted)
