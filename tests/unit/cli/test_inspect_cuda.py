"""`lowerkit inspect` of code for CUDA: what each launch takes of a card, and how long it takes there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lowerkit.cli.tables.card import print_card
from lowerkit.targets.cuda.model.cards import H200
from lowerkit.targets.cuda.model.estimate import TERMS, Work, estimate
from lowerkit.targets.cuda.model.launches import LaunchReport, ProgramReport
from tests.unit.cli.conftest import Outcome, RunCommand

MODEL = """
import torch
from torch import nn


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first = nn.Linear(64, 128)
        self.last = nn.Linear(128, 32)

    def forward(self, x):
        return torch.cumsum(self.last(torch.relu(self.first(x))), 0)


def model():
    return Small().eval().bfloat16(), (torch.ones(6, 64, dtype=torch.bfloat16),)
"""
LEVELS = "sm_80,sm_90"


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import sys

    from lowerkit.cli.main import main

    folder = tmp_path_factory.mktemp("cuda")
    (folder / "small.py").write_text(MODEL)
    arguments = ["compile", f"{folder / 'small.py'}:model", "--dynamic", "x:0=2..4096", "--target", f"cuda:{LEVELS}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["lowerkit", *arguments, "-o", str(folder / "small.lk"), "-q"])
        with pytest.raises(SystemExit) as caught:
            main(supervised=False)
    assert caught.value.code in (0, None)
    return folder / "small.lk"


def document(done: Outcome) -> dict[str, Any]:
    assert done.code == 0, done.err
    return json.loads(done.out)["cuda"]


def test_every_launch_is_priced(artifact: Path, lowerkit_command: RunCommand) -> None:
    cuda = document(lowerkit_command("inspect", artifact, "--json"))
    assert (cuda["card"], cuda["level"]) == ("h200", "sm_90")
    products = [each for each in cuda["launches"] if each["arithmetic"] == "matrix bf16"]
    assert [each["flops"] for each in products] == [2 * 2 * 64 * 128, 2 * 2 * 128 * 32]
    assert all(each["family"].startswith("gemm") and each["stated"] == "launch" for each in products)
    assert len({each["family"] for each in cuda["launches"]}) > 1
    for each in cuda["launches"]:
        assert each["registers"] > 0 and each["spills"] == 0
        assert 0 < each["floor_seconds"] < each["predicted_seconds"]
        assert 0 < each["waves"] < 1 and 0 < each["occupancy"] <= 1 and each["resident"] > 0
        assert list(each["terms"]) == list(TERMS)
        assert sum(each["terms"].values()) == pytest.approx(each["predicted_seconds"])
        assert each["location"].startswith("small.py:")
    assert cuda["predicted_seconds"] == pytest.approx(sum(each["predicted_seconds"] for each in cuda["launches"]))
    assert sum(cuda["terms"].values()) == pytest.approx(cuda["predicted_seconds"])
    assert cuda["terms"]["launch"] == pytest.approx(1e-6 * len(cuda["launches"]))


def test_sizes_and_cards_are_chosen(artifact: Path, lowerkit_command: RunCommand) -> None:
    dim = json.loads(lowerkit_command("inspect", artifact, "--json").out)["dims"]
    (name,) = dim
    few = document(lowerkit_command("inspect", artifact, "--json", "--card", "a100"))
    many = document(lowerkit_command("inspect", artifact, "--json", "--card", "a100", "--dim", f"{name}=4096"))
    assert few["level"] == many["level"] == "sm_80"
    for small, large in zip(few["launches"], many["launches"], strict=True):
        assert large["flops"] == 2048 * small["flops"]
        assert large["bytes"] > small["bytes"]
        assert large["predicted_seconds"] >= small["predicted_seconds"]
    faster = document(lowerkit_command("inspect", artifact, "--json", "--card", "h100", "--dim", f"{name}=4096"))
    assert faster["floor_seconds"] < many["floor_seconds"]


def test_table_fits_into_120_columns(artifact: Path, lowerkit_command: RunCommand) -> None:
    for arguments in ((), ("--all",), ("--card", "b200")):
        done = lowerkit_command("inspect", artifact, *arguments)
        assert done.code == 0, done.err
        lines = done.out.splitlines()
        start = next(number for number, line in enumerate(lines) if line.startswith("on "))
        assert all(len(line.rstrip()) <= 120 for line in lines[start:]), done.out
        assert " gemm " in done.out and " bf16 " in done.out
        assert f"{'B200' if 'b200' in arguments else 'H200'}" in lines[start] and "floor" in lines[start]
        assert all(f"{term} " in lines[start + 1] for term in TERMS)
        assert "not counted: " in lines[start + 2]


def test_table_of_large_numbers_and_long_names_fits(capsys: pytest.CaptureFixture[str]) -> None:
    work = Work(
        kind="matrix bf16", flops=10**16, moved=10**11, blocks=262144, threads=128, registers=255, shared=100 << 10
    )
    launch = LaunchReport(
        step="a_step_with_a_very_long_name", location="x.py:1", kernel="k", family="a_family_with_a_long_name",
        arithmetic=work.kind, registers=255, spills=128, shared=100 << 10, blocks=work.blocks, threads=128,
        flops=work.flops, bytes=work.moved, stated="launch", prediction=estimate(H200, work),
    )  # fmt: skip
    print_card(ProgramReport(H200, "sm_90", [launch] * 25, 0), show_all=False)
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 120, lines
    assert sum("a_step_with_.." in line and "a_family_.." in line for line in lines) == 20
    assert "the twenty longest launches" in lines and " 1e7 " in lines[-1]


def test_cards_that_are_none(artifact: Path, tmp_path: Path, lowerkit_command: RunCommand) -> None:
    done = lowerkit_command("inspect", artifact, "--card", "h101")
    assert done.code == 2 and "LK1009" in done.err and "a100, h100, h200, l40s, b200" in done.err
    model = artifact.with_name("small.py")
    done = lowerkit_command("inspect", f"{model}:model", "--card", "h100")
    assert done.code == 2 and "LK1004" in done.err and "no code is for CUDA" in done.err
    done = lowerkit_command("inspect", f"{model}:model", "--target", "cuda:sm_90", "--meta", "--card", "h100")
    assert done.code == 2 and "no kernel is compiled" in done.err
    done = lowerkit_command("inspect", f"{model}:model", "--target", "cuda:sm_90", "--meta", "--json")
    assert document(done) is None
    newer = tmp_path / "newer.lk"
    done = lowerkit_command("compile", f"{model}:model", "--target", "cuda:sm_90", "-o", newer, "-q")
    assert done.code == 0, done.err
    done = lowerkit_command("inspect", newer, "--card", "a100")
    assert done.code == 8 and "LK8020" in done.err and "sm_90" in done.err


def test_damaged_code_is_named(artifact: Path, tmp_path: Path, lowerkit_command: RunCommand) -> None:
    damaged = tmp_path / "damaged.lk"
    data = artifact.read_bytes()
    place = data.index(b'"level":"sm_90"')
    damaged.write_bytes(data[:place] + b'"level":"sm_9\xff"' + data[place + 15 :])
    done = lowerkit_command("inspect", damaged)
    assert done.code == 3 and "LK8001" in done.err and "Traceback" not in done.err
