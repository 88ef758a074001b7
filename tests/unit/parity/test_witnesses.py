"""Bisection on the CUDA target names the layer that is wrong: the family, Triton's lowering, launches and schedule."""

from __future__ import annotations

import linecache
from pathlib import Path

import pytest
import torch

from lowerkit.capture.capture import capture
from lowerkit.parity.bisect.finding import Bisection
from lowerkit.parity.bisect.search import bisect_program
from tests.support.targets.planted_layers import PLANTED_LAYERS, PlantedLayerBug


@pytest.fixture(autouse=True)
def own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that a planted bug changed are no kernels of other tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def bisected(bug: PlantedLayerBug) -> Bisection:
    torch.manual_seed(0)
    program = capture(bug.module().eval(), bug.inputs())
    return bisect_program(program, target="cuda:sm_90", device="cuda-sim")


@pytest.mark.parametrize("name", PLANTED_LAYERS)
def test_planted_bugs_are_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug = PLANTED_LAYERS[name]
    bug.plant(monkeypatch)
    found = bisected(bug).finding
    assert found is not None and found.testimony is not None
    assert found.stage == "compiled"
    assert found.testimony.layer == bug.layer
    assert tuple(row.verdict for row in found.testimony.rows) == bug.verdicts
    assert found.culprit.startswith("kernel family ")
    assert found.op == bug.op
    file, _, line = found.location.rpartition(":")
    assert bug.line in linecache.getline(file, int(line))
    assert any(bug.told in detail for detail in found.details), found.details
    assert found.sentence.endswith(f"what is wrong is {bug.layer}")


@pytest.mark.parametrize("name", ["a family that swaps operands", "temporaries that overlap"])
def test_the_same_models_have_no_finding_without_the_bug(name: str) -> None:
    result = bisected(PLANTED_LAYERS[name])
    assert (result.finding, result.doubts) == (None, [])
    assert result.steps and all(step.sound for step in result.steps)
