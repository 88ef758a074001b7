"""Graphs of TorchDynamo on accelerators of packages: values as eager's, at several sizes, in training too."""

from __future__ import annotations

import copy
import logging
from collections.abc import Generator

import pytest
import torch
from torch import nn
from torch.nn import functional

from lowerkit.errors import RuntimeFault
from tests.support.targets.accelerators import installed
from tests.support.targets.interpreted import Behaviour, InterpretedDevice, target_that
from tests.support.torch_backend.beside_eager import compiled, programs


@pytest.fixture
def npu() -> Generator[type[InterpretedDevice]]:
    """An accelerator ``npu`` that takes products; its device counts launches."""
    InterpretedDevice.behaviour = Behaviour()
    target = target_that("npu", lambda op: op.name in ("lk.matmul", "lk.conv"))
    with installed({"npu": target}, {"npu": InterpretedDevice}):
        yield InterpretedDevice


def model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5))


def test_several_batches(npu: type[InterpretedDevice], caplog: pytest.LogCaptureFixture) -> None:
    module = model().eval()
    fast = compiled(module, target="npu", on_refusal="error")
    with torch.no_grad(), caplog.at_level(logging.INFO, "lowerkit"):
        for batch in (2, 3, 5):
            x = torch.randn(batch, 3, 8, 8)
            torch.testing.assert_close(fast(x), module(x))
    assert programs() == 2
    assert npu.behaviour.launches == 6
    lines = [record.message for record in caplog.records if record.message.startswith("npu: 2 of ")]
    assert len(lines) == 2 and "% of FLOPs" in lines[0]


def test_a_training_step(npu: type[InterpretedDevice]) -> None:
    torch.manual_seed(0)
    ours = model()
    theirs = copy.deepcopy(ours)
    fast = compiled(lambda x, t: functional.cross_entropy(ours(x), t), target="npu", on_refusal="error")
    x, classes = torch.randn(4, 3, 8, 8), torch.randint(0, 5, (4,))
    fast(x, classes).backward()
    functional.cross_entropy(theirs(x), classes).backward()
    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, msg=name, rtol=1e-4, atol=1e-6)
    assert npu.behaviour.launches > 2


def test_a_device_that_fails_is_named_and_the_model_runs_again(npu: type[InterpretedDevice]) -> None:
    module, x = model().eval(), torch.randn(2, 3, 8, 8)
    fast = compiled(module, target="npu")

    def fail(_launches: int) -> None:
        raise OSError("the cable is out")

    with torch.no_grad():
        torch.testing.assert_close(fast(x), module(x))
        npu.behaviour.before = fail
        with pytest.raises(RuntimeFault, match="npu") as caught:
            fast(x)
        assert caught.value.code == "LK8016" and "the cable is out" in str(caught.value)
        npu.behaviour.before = Behaviour().before
        torch.testing.assert_close(fast(x), module(x))


def test_a_target_that_takes_nothing_says_so(npu: type[InterpretedDevice], caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(4, 3)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "lowerkit"):
        torch.testing.assert_close(compiled(lambda x: x.softmax(1) + 1, target="npu")(x), x.softmax(1) + 1)
    assert npu.behaviour.launches == 0
    (line,) = [record.message for record in caplog.records if record.message.startswith("npu: 0 of ")]
    assert "0% of FLOPs" in line


def test_a_target_that_fails_is_an_error(npu: type[InterpretedDevice]) -> None:
    def broken(_op: object) -> bool:
        raise VendorError("no table of ops")

    with installed({"broken": target_that("broken", broken)}, {"broken": InterpretedDevice}):
        fast = compiled(model().eval(), target="broken")
        with pytest.raises(Exception, match="LK5003.*broken"), torch.no_grad():
            fast(torch.randn(2, 3, 8, 8))


class VendorError(Exception):
    """What a vendor's code may raise."""
