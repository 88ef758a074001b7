"""Models that communicate by themselves: functional collectives of PyTorch, against numpy on all ranks at once."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

import lowerkit
from lowerkit.errors import ParityError, UnsupportedError, UsageError
from lowerkit.parity.check import check

_RANKS = 2


def world() -> dist.ProcessGroup:
    """The default group."""
    found = dist.group.WORLD
    assert found is not None
    return found


@pytest.fixture(autouse=True)
def fake_group() -> Generator[None]:
    """A default group of two ranks that communicates nothing: enough to capture."""
    store: Any = FakeStore()
    dist.init_process_group("fake", rank=0, world_size=_RANKS, store=store)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


class Reduced(nn.Module):
    def __init__(self, reduction: str) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 6)
        self.reduction = reduction

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(self.linear(x), self.reduction, world()) * 0.5


def wanted(module: Reduced, x: torch.Tensor, factor: float) -> Any:
    with torch.no_grad():
        return module.linear(x).numpy() * factor * 0.5


@pytest.mark.parametrize(("reduction", "factor"), [("sum", 2.0), ("avg", 1.0), ("max", 1.0), ("min", 1.0)])
def test_reductions_of_ranks_that_are_given_the_same(reduction: str, factor: float) -> None:
    module, x = Reduced(reduction).eval(), torch.randn(3, 4)
    compiled = lowerkit.compile(module, [x])
    assert [(axis.name, axis.size) for axis in compiled.program.mesh] == [("world", _RANKS)]
    assert [step.collective.operation for step in compiled.parts.program.steps if step.collective] == ["all_reduce"]
    np.testing.assert_allclose(compiled(x), wanted(module, x, factor), rtol=1e-6, atol=1e-6)


class Moved(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        group = world()
        gathered = functional.all_gather_tensor(x, 1, group)
        scattered = functional.reduce_scatter_tensor(x, "sum", 0, group)
        turned = functional.all_to_all_single(x, None, None, group)
        return gathered, scattered, turned, functional.broadcast(x, 1, group)


def test_moves_between_ranks() -> None:
    x = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    compiled = lowerkit.compile(Moved(), [x])
    # All ranks give what rank 0 gives, or the run is refused: so are results that they hold apart.
    with pytest.raises(ParityError, match="different bits"):
        compiled(x)
    same = torch.ones(4, 6)
    gathered, scattered, turned, sent = compiled(same)
    np.testing.assert_array_equal(gathered, np.ones((4, 12)))
    np.testing.assert_array_equal(scattered, 2 * np.ones((2, 6)))
    np.testing.assert_array_equal(turned, np.ones((4, 6)))
    np.testing.assert_array_equal(sent, np.ones((4, 6)))


def test_an_exported_program_in_a_process_without_groups(tmp_path: Path) -> None:
    class Gathered(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return functional.all_gather_tensor(x, 0, world())

    torch.export.save(torch.export.export(Gathered(), (torch.randn(3, 4),)), tmp_path / "gathered.pt2")
    torch.export.save(torch.export.export(Reduced("sum"), (torch.randn(3, 4),)), tmp_path / "reduced.pt2")
    dist.destroy_process_group()
    compiled = lowerkit.compile(str(tmp_path / "gathered.pt2"))
    x = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    np.testing.assert_array_equal(compiled(x), np.concatenate([x, x]))
    with pytest.raises(UnsupportedError, match="how many ranks the process group '0' has is not known"):
        lowerkit.compile(str(tmp_path / "reduced.pt2"))


def test_there_is_no_one_device_to_compare_with() -> None:
    with pytest.raises(UsageError, match="communicates by itself"):
        check(Reduced("sum").eval(), [torch.randn(3, 4)])
