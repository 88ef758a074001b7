from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lowerkit.capture.torchscript import loop_bounds as torchscript_loop_bounds
from lowerkit.capture.torchscript.interpreter import export_script
from lowerkit.errors import UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
Tensor = torch.Tensor


class Endless(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        while True:
            x = x * 2
        return x


class EndlessInside(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        while bool(x.sum() < 100):
            while True:
                x = x + 1
        return x


class Counts(nn.Module):
    """Numbers decide; a turn has several operations."""

    def forward(self, x: Tensor) -> Tensor:
        for turn in range(300):
            x = ((x * 0.9 + 0.1).tanh() - 0.2) * 2 + turn % 3
        return x


class Grows(nn.Module):
    """A loop by data cannot carry a list, nor a tensor whose shape changes."""

    def forward(self, x: Tensor) -> Tensor:
        found = [x]
        y = x
        for _ in range(30):
            x = (x * 0.9 + 0.1).tanh() - 0.2
            found.append(x)
            y = torch.cat([y, x]).tanh() * 2 - 1
        found.append(y)
        return torch.cat(found)


@pytest.mark.parametrize("kind", [Endless, EndlessInside])
def test_a_loop_without_a_way_out_is_refused_with_its_line(kind: type[nn.Module]) -> None:
    with pytest.raises(UnsupportedError, match="never ends") as caught:
        export_script(torch.jit.script(kind()), (torch.ones(3),))
    assert caught.value.code == "LK4001"
    assert "test_loop_bounds.py:" in str(caught.value)


def test_many_operations_become_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchscript_loop_bounds, "MOST_OPERATIONS", 40)
    x = torch.linspace(-1, 1, 5)
    exported = export_script(torch.jit.script(Counts()), (x,))
    assert len(exported.graph.nodes) < 100
    torch.testing.assert_close(exported.module()(x), Counts()(x))


def test_what_no_loop_can_carry_is_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchscript_loop_bounds, "MOST_OPERATIONS", 20)
    x = torch.linspace(-1, 1, 3)
    exported = export_script(torch.jit.script(Grows()), (x,))
    torch.testing.assert_close(exported.module()(x), Grows()(x))


def test_there_is_a_bound_on_all_that_is_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds: Any = torchscript_loop_bounds
    monkeypatch.setattr(bounds, "MOST_OPERATIONS", 20)
    monkeypatch.setattr(bounds, "MOST_OF_ALL", 60)
    with pytest.raises(UnsupportedError, match="more than 60 operations"):
        export_script(torch.jit.script(Grows()), (torch.ones(3),))
