"""Bisection on the CUDA target names the layer that is wrong: the family, Triton's lowering, launches and schedule."""

# A bug is planted in a private table: that is where it would be.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import linecache
import runpy
from pathlib import Path

import pytest
import torch

from lowerkit.capture.capture import capture
from lowerkit.parity.bisect.finding import Bisection
from lowerkit.parity.bisect.reproducer import write_reproducer
from lowerkit.parity.bisect.search import bisect_program
from lowerkit.targets.cuda.triton import scalars
from tests.support.planted_bugs import PLANTED_BUGS
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


def exit_code(folder: Path) -> int:
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(folder / "reproduce.py"))
    assert isinstance(caught.value.code, int)
    return caught.value.code


def test_a_region_with_weights_is_cut_and_its_reproducer_compiles_for_the_target(tmp_path: Path) -> None:
    bug = PLANTED_BUGS["dropped-bias"]
    folder = tmp_path / "shown"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(scalars._FLOAT_BINARY, "arith.addf", "{0}")
        result = bisect_program(capture(bug.module().eval(), bug.inputs()), target="cuda:sm_90", device="cuda-sim")
        found = result.finding
        assert found is not None and found.testimony is not None
        assert (found.culprit, found.op, found.testimony.layer) == ("kernel family gemv", "arith.addf", "the kernel")
        write_reproducer(result.reproducer, folder)
        assert exit_code(folder) == 1
    assert exit_code(folder) == 0


def test_a_wrong_pass_of_the_target_is_named_and_reproduced(tmp_path: Path) -> None:
    bug = PLANTED_BUGS["wrong-transpose-permutation"]
    folder = tmp_path / "shown"
    with pytest.MonkeyPatch.context() as patch:
        bug.plant(patch)
        result = bisect_program(capture(bug.module().eval(), bug.inputs()), target="cuda:sm_90", device="cuda-sim")
        found = result.finding
        assert found is not None and found.testimony is None
        assert (found.stage, found.culprit, found.op) == ("layout", "pass channels-last", "lk.conv")
        write_reproducer(result.reproducer, folder)
        assert exit_code(folder) == 1
    assert exit_code(folder) == 0


def test_symbolic_shapes_have_witnesses(monkeypatch: pytest.MonkeyPatch) -> None:
    bug = PLANTED_LAYERS["a wrong instruction in PTX"]
    bug.plant(monkeypatch)
    batch = torch.export.Dim("batch", min=2, max=9)
    program = capture(bug.module().eval(), bug.inputs(), dynamic_shapes=({0: batch}, {0: batch}))
    found = bisect_program(program, target="cuda:sm_90", device="cuda-sim").finding
    assert found is not None and found.testimony is not None
    assert found.testimony.layer == "Triton's lowering"
    assert [row.verdict for row in found.testimony.rows] == ["agrees", "differs"]
    assert "its shapes are symbolic: the region was not cut into prefixes" in found.details
