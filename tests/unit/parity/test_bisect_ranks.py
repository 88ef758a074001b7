"""Bisection on a mesh names the op and the ranks on which it is wrong, however those hold its value."""

from __future__ import annotations

import ctypes
import json
import linecache
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

import lowerkit
from lowerkit.parity.bisect.finding import Finding
from lowerkit.parity.report.html_report import html_report
from lowerkit.parity.report.report import Report
from lowerkit.runtimes.manifest import ProgramSpec
from lowerkit.runtimes.mapping import mapped_weights
from lowerkit.runtimes.mapping.weight_places import WeightPlace, own_part
from lowerkit.runtimes.stepwise import StepwiseRun

MESH = "tp=2,pp=2"
STAGES = ["eager", "exported", "captured", "raised", "canonical", "ranks", "compiled"]


class Half(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 8)
        self.down = nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.up(x))  # each rank has half of it
        return torch.tanh(self.down(hidden))  # terms of a sum, then whole


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Half(), Half()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


PLAN = {"tp": {"*.up": "column", "*.down": "row"}, "pp": {"first*": 0, "second*": 1}}


def checked(mesh: str = MESH) -> Report:
    torch.manual_seed(0)
    plan = PLAN if mesh == MESH else PLAN["tp"]
    return lowerkit.check(Model().eval(), (torch.randn(3, 6),), mesh=mesh, shard=plan, bisect=True)


def found(report: Report) -> Finding:
    assert report.bisection is not None and report.bisection.finding is not None
    return report.bisection.finding


def line_of(finding: Finding) -> str:
    file, _, line = finding.location.rpartition(":")
    return linecache.getline(file, int(line))


def break_step(monkeypatch: pytest.MonkeyPatch, ranks: tuple[int, ...], text: str) -> None:
    """Breaks the kernel of the first step on a source line with ``text``, on some ranks: it writes a wrong number."""
    true = StepwiseRun.run_step
    first: dict[int, int] = {}

    def run_step(self: StepwiseRun, number: int) -> None:
        true(self, number)
        session = self._session  # pyright: ignore[reportPrivateUsage]
        step = session.program.steps[number]
        rank = session._collectives._world.rank  # pyright: ignore
        line = step.location.rpartition(":")[2]  # of this file: artifacts leave folders out
        wanted = step.kernel >= 0 and line.isdigit() and text in linecache.getline(__file__, int(line))
        if rank in ranks and wanted and first.setdefault(rank, number) == number:
            base, offset = self._stepped.places[step.buffers[-1]]  # pyright: ignore[reportPrivateUsage]
            address = self._bases[base] + offset  # pyright: ignore[reportPrivateUsage]
            ctypes.c_float.from_address(address).value += 1.0

    monkeypatch.setattr(StepwiseRun, "run_step", run_step)


def test_ranks_that_are_right_have_no_finding() -> None:
    report = checked()
    assert report.passed and report.bisection is not None
    result = report.bisection
    assert (result.finding, result.doubts) == (None, [])
    assert [row.stage for row in result.stages] == STAGES
    assert [row.note for row in result.stages if row.note] == []
    assert len(result.steps) >= 4 and all(step.sound for step in result.steps)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_wrong_part_of_a_weight_is_named_with_its_rank(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def other_part(whole: WeightPlace, axes: str, program: ProgramSpec, ranks: Mapping[str, int]) -> WeightPlace:
        wrong = axes == "tp" and (ranks["tp"], ranks.get("pp")) == (rank, 1)
        return own_part(whole, axes, program, {**ranks, "tp": 1 - rank} if wrong else ranks)

    monkeypatch.setattr(mapped_weights, "own_part", other_part)
    report = checked()
    assert not report.passed
    finding = found(report)
    assert finding.ranks == (f"rank {2 * rank + 1} (tp={rank},pp=1)",)
    assert finding.node.endswith("@second.up") and finding.stage == "compiled"
    assert f"is the first to differ on rank {2 * rank + 1} (tp={rank},pp=1)" in finding.sentence
    assert finding.ranks[0] in html_report(report)
    assert json.loads(json.dumps(report.to_json()))["bisection"]["finding"]["ranks"] == list(finding.ranks)


@pytest.mark.parametrize("ranks", [(1,), (0, 1)])
def test_a_wrong_kernel_is_named_with_its_ranks(ranks: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    break_step(monkeypatch, ranks, "torch.tanh")
    finding = found(checked("tp=2"))
    assert finding.ranks == tuple(f"rank {rank}" for rank in ranks)
    assert "torch.tanh" in line_of(finding)
    assert finding.culprit.startswith("kernel family ")


def test_what_follows_a_wrong_kernel_on_other_ranks_is_not_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 2's first stage is wrong; every value behind the sum over ranks is, on all of them."""
    break_step(monkeypatch, (2,), "torch.relu")
    finding = found(checked())
    assert finding.ranks == ("rank 2 (tp=1,pp=0)",)
    assert "@first" in finding.node
