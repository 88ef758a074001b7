"""Each rank of a mesh with accelerators of its own: parts of weights on the device, sums through the host."""

from __future__ import annotations

from collections.abc import Generator

import pytest
import torch
from torch import nn

from lowerkit.capture.capture import capture
from lowerkit.compiler import CompileOptions, compile_program
from lowerkit.parity.check import check_program
from lowerkit.spmd.sharding import sharding_of
from tests.models.mesh.test_cached_meshes import TP, Cached
from tests.support.targets.accelerators import installed
from tests.support.targets.interpreted import Behaviour, InterpretedDevice, target_that

PLAN = {"up": "column", "down": "row"}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(8, 16), nn.Linear(16, 8), nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.down(nn.functional.gelu(self.up(x))))


@pytest.fixture
def npus() -> Generator[None]:
    InterpretedDevice.behaviour = Behaviour()
    targets = {
        "products": target_that("products", lambda op: op.name == "lk.matmul"),
        "rest": target_that("rest", lambda op: op.name != "lk.layer_norm"),
        "regions": target_that("regions", lambda op: op.name != "lk.layer_norm", "region"),
    }
    with installed(targets, dict.fromkeys(targets, InterpretedDevice)):
        yield


@pytest.mark.parametrize("target", ["products", "rest", "regions", "products+rest"])
def test_ranks_with_accelerators(npus: None, target: str) -> None:
    program = capture(Block().eval(), (torch.randn(3, 8),))
    report = check_program(program, target=target, sharding=sharding_of("tp=2", PLAN))
    assert report.passed, report.first_failure


def test_a_device_gets_the_part_of_its_rank(npus: None) -> None:
    program = capture(Block().eval(), (torch.randn(3, 8),))
    options = CompileOptions(target="products", golden=False, sharding=sharding_of("tp=2", PLAN))
    spec = compile_program(program, options).parts.program
    shared = {buffer.weight: buffer.size for buffer in spec.buffers if buffer.shard and buffer.memory == "products"}
    assert shared == {"up.weight@tp.0": 4 * 8 * 8, "down.weight@tp.1": 4 * 8 * 8}


def test_a_device_keeps_the_part_of_a_state(npus: None) -> None:
    inputs = (torch.randn(2, 1, 16), torch.tensor([4]))
    program = capture(Cached().eval(), inputs)
    options = CompileOptions(target="rest", golden=False, sharding=sharding_of("tp=2", TP))
    spec = compile_program(program, options).parts.program
    states = [(buffer.memory, buffer.size) for buffer in spec.buffers if buffer.kind == "state"]
    assert states == [("rest", 4 * 2 * 1 * 9 * 8)] * 2
    report = check_program(capture(Cached().eval(), inputs), target="rest", sharding=sharding_of("tp=2", TP))
    assert report.passed, report.first_failure
