"""What an accelerator runs is witnessed too: its regions, and the functions that it compiles as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import nn

from lowerkit.capture.torch_export.capture import capture_module
from lowerkit.compiled import CompileOptions
from lowerkit.compiler import lower_program
from lowerkit.errors import RuntimeFault
from lowerkit.parity.witness.kernels import witness_kernels
from lowerkit.parity.witness.verdicts import VerdictCache, Witnessed
from tests.support.targets.accelerators import installed
from tests.support.targets.interpreted import Behaviour, InterpretedDevice, target_that

TAKEN = ("lk.matmul", "lk.softmax")


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 12), nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.second(torch.tanh(self.first(x))), -1)


def witnessed(
    behaviour: Behaviour | None,
    by: Literal["function", "region"],
    allow: frozenset[str] = frozenset(),
    cache: VerdictCache | None = None,
) -> list[Witnessed]:
    """Without a behaviour there is no device."""

    class Npu(InterpretedDevice):
        pass

    if behaviour is not None:
        Npu.behaviour = behaviour
    target = target_that("npu", lambda op: op.name in TAKEN, by)
    target.permits = dict.fromkeys(allow, "products of f32")
    with installed({"npu": target}, {} if behaviour is None else {"npu": Npu}):
        options = CompileOptions("npu+cpu", allow=allow)
        program = capture_module(Small().eval(), [torch.randn(3, 8)])
        lower_program(program, "fused", options)
        return witness_kernels([program], options, cache)


@pytest.mark.parametrize("by", ["function", "region"])
def test_what_an_accelerator_runs_is_compared(by: Literal["function", "region"]) -> None:
    behaviour = Behaviour()
    found = witnessed(behaviour, by)
    assert {each.verdict for each in found} == {"same"} and behaviour.launches > 50
    own = [each for each in found if each.name.endswith(("on npu", "of npu"))]
    assert len(own) >= 2 and len(own) < len(found)
    assert all(each.cases["values"] == 1 and each.cases["special"] > 20 for each in own)


@pytest.mark.parametrize("by", ["function", "region"])
def test_a_wrong_number_of_an_accelerator_is_flagged(by: Literal["function", "region"]) -> None:
    def spoiled(_program: str, results: list[Any]) -> list[Any]:
        return [np.asarray(result * np.float32(1.01), np.float32) for result in results]

    found = witnessed(Behaviour(change=spoiled), by)
    wrong = {each.name for each in found if each.verdict == "differs"}
    assert wrong == {each.name for each in found if each.name.endswith(("on npu", "of npu"))}


def test_a_device_that_fails_is_no_difference_but_an_error() -> None:
    def fails(_launches: int) -> None:
        raise RuntimeFault("LK8016", "no such device")

    found = witnessed(Behaviour(before=fails), "region")
    own = [each for each in found if each.name.endswith("on npu")]
    assert own and all(each.verdict == "differs" for each in own)
    assert "ours refuses" in own[0].differences[0].text


def test_what_may_be_less_exact_is_left_out() -> None:
    found = witnessed(Behaviour(), "region", frozenset({"tf32"}))
    own = [each for each in found if each.verdict != "same"]
    assert own and all(each.reason == "npu may compute less exactly: tf32" for each in own)


def test_a_device_that_is_missing_is_asked_again(tmp_path: Path) -> None:
    cache = VerdictCache(tmp_path)
    before = [each for each in witnessed(None, "region", cache=cache) if each.name.endswith("on npu")]
    assert before and all(each.verdict == "left out" and "npu" in each.reason for each in before)
    after = [each for each in witnessed(Behaviour(), "region", cache=cache) if each.name.endswith("on npu")]
    assert [each.verdict for each in after] == ["same"] * len(before)
