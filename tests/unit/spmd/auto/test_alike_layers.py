"""Alike layers are planned once: what comes out is what the whole program's plan says, or the whole one is planned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from lowerkit.capture.capture import capture
from lowerkit.compiler import CompileOptions, lower_program, plan_program
from lowerkit.passes.shard.plan import MeshPlan
from lowerkit.program.program import Program
from lowerkit.runtimes.manifest import ProgramSpec
from lowerkit.spmd.auto import plan_cost as tested
from lowerkit.spmd.auto.alike_layers import KEPT, LEAST, alike_layers
from lowerkit.spmd.cost.machine import H100, NVLINK4, Links
from lowerkit.spmd.cost.mesh_plan import MeshCost
from lowerkit.spmd.mesh import Mesh
from lowerkit.spmd.plan_file import make_plan

COUNT = 2 * LEAST + 1
STAGES = {
    "embed": 0, "head": 1,
    **{f"layers.{number}.*": number // (LEAST + 1) for number in range(COUNT)},
    **{f"layers.{number}": number // (LEAST + 1) for number in range(COUNT)},
}  # fmt: skip
PLANS = {
    "tp=2": {"*.up": "column", "*.down": "row"},
    "pp=2,tp=2": {"pp": STAGES, "tp": {"*.up": "column", "*.down": "row"}},
    "pp=2 in parts": {"pp": {**STAGES, "micro-batches": 2}},
}


class Layer(nn.Module):
    """A gated product behind a norm; with a cache, one that is written at a position."""

    cache: Tensor

    def __init__(self, width: int, slope: float, cached: bool) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 24), nn.Linear(24, width)
        self.act = nn.LeakyReLU(slope)
        self.cached = cached
        if cached:
            self.register_buffer("cache", torch.zeros(4, width))

    def forward(self, x: Tensor, at: Tensor) -> Tensor:
        y = self.norm(x)
        if self.cached:
            y = y + self.cache.index_copy_(0, at, y[:1]).sum(0)
        return x + self.down(self.act(self.up(y)))


class Stacked(nn.Module):
    """Layers, of which ``read`` says what else reads them: nothing, the result, or the layer after the next one."""

    at: Tensor

    def __init__(self, slopes: Sequence[float], cached: bool = False, read: str = "") -> None:
        super().__init__()
        self.embed = nn.Linear(6, 8)
        self.layers = nn.ModuleList(Layer(8, slope, cached) for slope in slopes)
        self.head = nn.Linear(8, 5)
        self.read = read
        self.register_buffer("at", torch.tensor([1]))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = self.embed(x)
        seen = [x]
        for layer in self.layers:
            given = seen[-1] + seen[-2] if self.read == "next" and len(seen) > 1 else seen[-1]
            seen.append(layer(given, self.at))
        return (self.head(seen[-1]), *(seen[1:] if self.read == "result" else ()))


def captured(slopes: Sequence[float], *, cached: bool = False, read: str = "") -> Program:
    return capture(Stacked(slopes, cached, read).eval(), (torch.randn(2, 6),))


@cache
def program(cached: bool) -> Program:
    """Nothing changes it."""
    return captured([0.1] * COUNT, cached=cached)


def stages(program: Program, plan: MeshPlan | None) -> list[ProgramSpec]:
    return plan_program(program, CompileOptions(golden=False, sharding=plan)).manifest.programs


def cost(program: Program, mesh: str, plan: MeshPlan | None) -> MeshCost:
    return tested.plan_cost(program, Mesh.parse(mesh), plan, stages, lambda _: {}, H100, Links(NVLINK4))


@pytest.mark.parametrize(
    ("cached", "name"),
    [
        *((False, name) for name in ("tp=1", "tp=2", "pp=2 in parts")),
        (True, "pp=2,tp=2"),
        pytest.param(False, "pp=2,tp=2", marks=pytest.mark.exhaustive),
        pytest.param(True, "tp=1", marks=pytest.mark.exhaustive),
    ],
)
def test_what_alike_layers_take_is_what_the_whole_program_takes(
    cached: bool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh = name.partition(" ")[0]
    plan = make_plan(Mesh.parse(mesh), PLANS[name]) if name in PLANS else None
    found = cost(program(cached), mesh, plan)
    # With states, the first layer is none of the alike ones: it reads the position that all others take from it.
    assert found.alike_layers == COUNT - cached - KEPT * len(found.memory)
    monkeypatch.setattr(tested, "alike_layers", lambda *_: None)
    whole = cost(program(cached), mesh, plan)
    assert whole.alike_layers == 0
    assert found.memory == whole.memory
    assert (found.flops, found.moved) == (whole.flops, whole.moved)
    assert (found.seconds, found.waited_seconds) == pytest.approx((whole.seconds, whole.waited_seconds))
    assert [(each.kind, each.count, each.moved) for each in found.traffic] == [
        (each.kind, each.count, each.moved) for each in whole.traffic
    ]


def test_kinds_that_take_turns() -> None:
    alike = alike_layers(captured([0.1, 0.2] * LEAST), None)
    assert alike is not None
    assert (alike.missing, alike.left_out) == ({0: LEAST - KEPT}, 2 * (LEAST - KEPT))


@pytest.mark.parametrize(
    ("slopes", "read"),
    [
        ([0.1] * (LEAST - 1), ""),
        ([number / 100 for number in range(COUNT)], ""),
        ([0.1] * COUNT, "result"),
        ([0.1] * COUNT, "next"),
        ([0.1, 0.2] * LEAST + [0.1], ""),
    ],
    ids=[
        "few",
        "different attributes",
        "read by the result",
        "read by the layer after the next",
        "not as many of each",
    ],
)
def test_what_is_no_chain_of_alike_layers_is_planned_whole(slopes: list[float], read: str) -> None:
    assert alike_layers(captured(slopes, read=read), None) is None


def test_choices_of_single_layers_keep_them_apart() -> None:
    plan = make_plan(Mesh.parse("tp=2"), {"layers.4.up": "column", "layers.4.down": "row", "head": "column"})
    assert alike_layers(program(False), plan) is None  # one in the middle is another one
    last = make_plan(Mesh.parse("tp=2"), {f"layers.{COUNT - 1}.up": "column", "head": "column"})
    alike = alike_layers(program(False), last)
    assert alike is not None and alike.left_out == COUNT - 1 - KEPT
    assert {entry.pattern for entry in (alike.plans[0] or last).axes[0].entries} == {f"layers.{COUNT - 1}.up", "head"}


def test_a_lowered_program_is_planned_whole() -> None:
    lowered = replace(program(False).copy(), weights=program(False).weights.fork())
    lower_program(lowered, "canonical", CompileOptions())
    assert alike_layers(lowered, None) is None
