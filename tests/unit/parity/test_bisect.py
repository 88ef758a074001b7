"""Bisection names planted compiler bugs: the stage, the pass or kernel, op, source line; reproducers show them."""

from __future__ import annotations

import linecache
import runpy
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

import lowerkit
from lowerkit.capture.capture import capture
from lowerkit.capture.load_model import capture_path
from lowerkit.errors import UnsupportedError
from lowerkit.parity.bisect.finding import Bisection
from lowerkit.parity.bisect.reproducer import write_reproducer
from lowerkit.parity.bisect.search import bisect_program
from lowerkit.parity.report.html_report import html_report
from tests.support.planted_bugs import PLANTED_BUGS, PlantedBug

STAGES = ["eager", "exported", "captured", "raised", "canonical", "partitioned", "layout", "fused", "compiled"]


def bisected(bug: PlantedBug) -> Bisection:
    torch.manual_seed(0)
    return bisect_program(capture(bug.module().eval(), bug.inputs()))


@cache
def bisected_with_bug(name: str) -> Bisection:
    with pytest.MonkeyPatch.context() as patch:
        PLANTED_BUGS[name].plant(patch)
        return bisected(PLANTED_BUGS[name])


def exit_code(folder: Path) -> int:
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(folder / "reproduce.py"))
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.mark.parametrize("name", PLANTED_BUGS)
def test_planted_bugs_are_named(name: str) -> None:
    bug, result = PLANTED_BUGS[name], bisected_with_bug(name)
    found = result.finding
    assert found is not None
    assert [row.stage for row in result.stages] == STAGES
    assert found.stage == bug.stage
    assert found.culprit.startswith(bug.culprit)
    assert found.op.startswith(bug.op)
    file, _, line = found.location.rpartition(":")
    assert bug.line in linecache.getline(file, int(line))
    assert bug.cause in found.cause


@pytest.mark.parametrize(
    "name", [name for name, bug in PLANTED_BUGS.items() if bug.stage not in ("exported", "captured")]
)
def test_reproducers_fail_while_the_bug_is_there(name: str, tmp_path: Path) -> None:
    write_reproducer(bisected_with_bug(name).reproducer, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        PLANTED_BUGS[name].plant(patch)
        assert exit_code(tmp_path) == 1
    assert exit_code(tmp_path) == 0
    # The reproducer starts from a part of the model (all of it for a memory plan), not from its capture.
    assert len((tmp_path / "reproduce.py").read_text().splitlines()) < 40


@pytest.mark.parametrize("name", PLANTED_BUGS)
def test_the_same_models_have_no_finding_without_the_bug(name: str) -> None:
    result = bisected(PLANTED_BUGS[name])
    assert (result.finding, result.doubts) == (None, [])
    assert all(step.sound for step in result.steps)
    assert [row.note for row in result.stages if row.note] == []


def test_a_stage_that_differs_without_an_op_is_not_called_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    bug = PLANTED_BUGS["softmax-over-the-wrong-axis"]
    bug.plant(monkeypatch)
    monkeypatch.setattr("lowerkit.parity.bisect.search.first_divergence", lambda *_arguments: None)
    torch.manual_seed(0)
    report = lowerkit.check(bug.module().eval(), bug.inputs(), bisect=True)
    result = report.bisection
    assert result is not None and result.finding is None
    assert result.doubts[0].startswith("stage raised differs from the graph in float64 (")
    assert "not all is shown to be the same: stage raised" in result.verdict
    assert "No op was named" in html_report(report)


def test_a_stage_that_is_not_interpreted_is_not_called_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_options: object) -> None:
        raise UnsupportedError("LK4001", "no rule", hint="none")

    monkeypatch.setattr("lowerkit.parity.bisect.search.evaluate", refuse)
    result = bisect_program(capture(nn.Linear(3, 2).eval(), (torch.randn(2, 3),)))
    assert result.finding is None
    assert [doubt.split(" ")[1] for doubt in result.doubts[:6]] == STAGES[2:8]
    assert "computes the same" not in result.verdict


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_is_no_finding(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, 7)).to(dtype).eval()
    result = bisect_program(capture(module, (torch.randn(5, 24).to(dtype),)))
    assert result.finding is None
    fused = next(row for row in result.stages if row.stage == "fused")
    assert fused.exact is not None and fused.exact > 110
    assert fused.own is not None and fused.own < 90


def test_bugs_in_onnx_models_are_named_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import onnx

    text = """<ir_version: 10, opset_import: ["" : 17]>
        g (float[8,8] x) => (float[8,8] y) { a = Sin(x)  y = Softmax<axis = 1>(a) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    PLANTED_BUGS["softmax-over-the-wrong-axis"].plant(monkeypatch)
    found = bisect_program(capture_path(str(tmp_path / "model.onnx"), ["x:8x8:f32"], [])).finding
    assert found is not None
    assert (found.stage, found.culprit, found.op, found.node) == ("raised", "pass raise-softmax", "lk.softmax", "y@")


def test_symbolic_shapes_are_searched_down_to_the_region(monkeypatch: pytest.MonkeyPatch) -> None:
    bug = PLANTED_BUGS["dropped-bias"]
    bug.plant(monkeypatch)
    torch.manual_seed(0)
    dynamic = ({0: torch.export.Dim("batch", min=2, max=9)},)
    found = bisect_program(capture(bug.module().eval(), bug.inputs(), dynamic_shapes=dynamic)).finding
    assert found is not None
    assert (found.stage, found.culprit) == ("compiled", "kernel family matmul")
    assert "its shapes are symbolic: the region was not cut into prefixes" in found.details


def test_a_finding_is_part_of_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    bug = PLANTED_BUGS["dropped-bias"]
    bug.plant(monkeypatch)
    torch.manual_seed(0)
    report = lowerkit.check(bug.module().eval(), bug.inputs(), bisect=True)
    assert not report.passed
    assert report.bisection is not None and report.bisection.finding is not None
    document = report.to_json()["bisection"]
    assert document["finding"]["op"] == "arith.addf"
    assert document["stages"][-1]["stage"] == "compiled"
    assert "reproduce.py" in document["reproducer"]
