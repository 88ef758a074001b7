"""The HTML report: complete without a network, and rendered by a browser as it is meant."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

import lowerkit
from lowerkit.parity.report.html_report import html_report
from lowerkit.parity.report.report import Report
from tests.support.planted_bugs import PLANTED_BUGS

BROWSER = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), "")


@pytest.fixture(scope="module")
def failing() -> Report:
    with pytest.MonkeyPatch.context() as patch:
        bug = PLANTED_BUGS["dropped-bias"]
        bug.plant(patch)
        torch.manual_seed(0)
        return lowerkit.check(bug.module().eval(), bug.inputs(), bisect=True)


def test_nothing_is_fetched_and_nothing_runs(failing: Report) -> None:
    page = html_report(failing)
    assert not re.search(r"https?:|src=|<link|<script|@import|url\(", page)
    assert page.startswith("<!doctype html>")


def test_every_op_and_every_stage_is_there(failing: Report) -> None:
    page = html_report(failing)
    assert failing.bisection is not None and failing.bisection.finding is not None
    for row in [*failing.ops, *failing.outputs]:
        assert row.name in page
    assert page.count('class="stage') == len(failing.bisection.stages) == 9
    assert failing.bisection.finding.location in page
    assert "Gate A does not hold" in page and "compile_program(program" in page


def test_names_of_the_model_are_text() -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x) + 1

    report = lowerkit.check(Model().eval(), (torch.randn(3, 4),))
    report.source = "<script>alert(1)</script>&"
    page = html_report(report)
    assert "<script>" not in page and "&lt;script&gt;alert(1)&lt;/script&gt;&amp;" in page
    assert "waterfall" not in page  # nothing was bisected
    assert "Gate A holds" in page


@pytest.mark.skipif(not BROWSER, reason="no Chromium is installed; tools/browser.sh installs it")
def test_a_browser_renders_it(failing: Report, tmp_path: Path) -> None:
    page, picture = tmp_path / "report.html", tmp_path / "report.png"
    page.write_text(html_report(failing))
    # The elements that a browser made of it: what it could not read would be missing or elsewhere.
    dom = _browse("--dump-dom", page.as_uri(), folder=tmp_path)
    sections = re.findall(r'<section id="(\w+)"', dom)
    assert sections == ["verdict", "finding", "waterfall", "captures", "outputs", "ops", "skipped"][: len(sections)]
    assert len(sections) >= 5
    assert len(re.findall(r"<tr class=\"fail\">", dom)) == len([r for r in failing.ops if not r.verdict.passed]) + 1
    assert len(re.findall(r"<rect ", dom)) == 15  # eager, exported and compiled have one bar, six stages have two
    assert re.search(r"<dt>op</dt><dd>arith\.addf</dd>", dom)
    assert re.search(r"<dt>source line</dt><dd>[^<]*planted_bugs\.py:\d+</dd>", dom)
    _browse(f"--screenshot={picture}", "--window-size=1200,1600", page.as_uri(), folder=tmp_path)
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG") and struct.unpack(">II", data[16:24]) == (1200, 1600)
    assert len(data) > 40_000  # an empty page of that size compresses to a tenth


def _browse(*arguments: str, folder: Path) -> str:
    offline = ["--host-resolver-rules=MAP * ~NOTFOUND", "--disable-background-networking", "--no-first-run"]
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}"]
    done = subprocess.run([*command, *offline, *arguments], capture_output=True, text=True, timeout=600, check=True)
    return done.stdout
