"""tools/gpu_check.sh, rehearsed on the simulated device; and the simulated device held to words that cards gave."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from lowerkit.runtimes.cuda.simulated_driver import SimulatedDriver

ROOT = Path(__file__).parents[3]
TOOLS = ROOT / "tools" / "gpu"
RECORDED = sorted((ROOT / "tests" / "golden" / "cards").glob("*.npz"))
# Errors that the PTX manual allows; absolute where the second number is not 0.
LIMITS: dict[str, tuple[float, float]] = {
    "ex2": (2.0**-22, 0.0), "rcp": (2.0**-23, 0.0), "lg2": (2.0**-22, 2.0**-22), "rsqrt": (2.0**-22.4, 0.0),
    "sqrt": (2.0**-23, 0.0), "sin": (0.0, 2.0**-20.5), "cos": (0.0, 2.0**-20.5), "tanh": (2.0**-10, 0.0),
    "div": (2.0**-22, 0.0),
}  # fmt: skip


@cache
def calibration() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_calibration", TOOLS / "calibration.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_calibration"] = module
    spec.loader.exec_module(module)
    return module


def test_a_rehearsal_of_everything(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    subprocess.run([sys.executable, TOOLS / "prepare.py", folder, "--quick"], check=True, timeout=300, cwd=tmp_path)
    command = [sys.executable, TOOLS / "run.py", folder, "--device", "cuda-sim", "--output", tmp_path / "out"]
    done = subprocess.run(
        [*command, "--repeats", "1"], capture_output=True, text=True, timeout=300, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "out" / "gpu_check.json").read_text())
    assert [each["passed"] for each in found["parity"]] == [True, True]
    assert all(each["same_bits_twice"] for each in found["parity"])
    assert {each["name"] for each in found["benchmark"]} == {"product_64_bf16", "attention_bf16", "moves_bf16"}
    assert all(set(each["predicted"]) == {"sm_80", "sm_90"} for each in found["benchmark"])
    level, probes = calibration().load(tmp_path / "out" / "calibration.npz")
    assert level == "sm_90" and len(probes) == found["calibration"]["probes"] > 10
    hold(tmp_path / "out" / "calibration.npz")


def test_without_a_card_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "bundle.json").write_text('{"made_by": "x", "levels": [], "parity": [], "timings": []}')
    command = [sys.executable, TOOLS / "run.py", tmp_path, "--output", tmp_path / "out"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, check=False)
    if done.returncode == 0:
        pytest.skip("there is a card")
    assert done.returncode == 8
    assert "LK8020" in done.stderr


def hold(path: Path) -> None:
    """Runs each probe of a file on the simulated device: equal bits of tensor cores, functions within their errors."""
    level, probes = calibration().load(path)
    for name, (probe, wrote) in probes.items():
        found = calibration().run_probe(SimulatedDriver(), probe, level)
        if name.startswith("mma."):
            differ = np.flatnonzero(found != wrote)
            nan = np.isnan(found.view(np.float32)) & np.isnan(wrote.view(np.float32))
            assert not (differ.size and not nan[differ].all()), f"{name}: {differ.size} of {found.size} words differ"
            continue
        relative, absolute = LIMITS[name.partition(".")[0]]
        ours, theirs = (each.view(np.float32).astype(np.float64) for each in (found, wrote))
        usual = np.isfinite(ours) & np.isfinite(theirs) & (np.abs(ours) > 2.0**-125)
        error = np.abs(ours - theirs)[usual]
        assert (error <= np.abs(ours[usual]) * relative * 2 + absolute * 2).all(), name


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_words_of_cards(path: Path) -> None:
    hold(path)


def test_a_word_that_differs_is_found(tmp_path: Path) -> None:
    module: Any = calibration()
    name = "mma.m16n8k16.row.col.f32.bf16.bf16.f32"
    probe = module.probes("sm_80")[name]
    words = module.run_probe(SimulatedDriver(), probe, "sm_80")
    module.save(tmp_path / "right.npz", "sm_80", "simulated", {name: (probe, words)})
    hold(tmp_path / "right.npz")
    usual = np.flatnonzero(np.isfinite(words.view(np.float32)) & (words != 0))[:1]
    words[usual] ^= 1
    module.save(tmp_path / "wrong.npz", "sm_80", "simulated", {name: (probe, words)})
    with pytest.raises(AssertionError, match="1 of"):
        hold(tmp_path / "wrong.npz")
