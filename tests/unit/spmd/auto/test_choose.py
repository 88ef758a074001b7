"""Plans that are chosen: what is split how, for which reasons, and what is refused."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import nn

from lowerkit.capture.capture import capture
from lowerkit.compiler import CompileOptions, lower_program
from lowerkit.errors import UnsupportedError, UsageError
from lowerkit.program.program import Program
from lowerkit.spmd.auto.choose import AutoChoice, choose_plan
from lowerkit.spmd.auto.reasons import amount, duration
from lowerkit.spmd.cost.machine import H100, NVLINK4, DeviceModel, LinkModel, Links
from lowerkit.spmd.mesh import Mesh
from lowerkit.spmd.plan_file import entries_of, make_plan

SLOW = DeviceModel(flops=1e9, bandwidth=1e9, memory=80 << 30)
"""A device on which all work takes longer than any message."""


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, key_heads: int) -> None:
        super().__init__()
        self.heads, self.features = heads, width // heads
        self.norm = nn.LayerNorm(width)
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, key_heads * self.features)
        self.v_proj = nn.Linear(width, key_heads * self.features)
        self.o_proj = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        query, key, value = (
            each(y).unflatten(-1, (-1, self.features)).transpose(1, 2)
            for each in (self.q_proj, self.k_proj, self.v_proj)
        )
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        x = x + self.o_proj(attended.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(x)))


class Decoder(nn.Module):
    def __init__(self, layers: int, width: int = 16, heads: int = 4, key_heads: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, width)
        self.layers = nn.ModuleList(Layer(width, heads, key_heads) for _ in range(layers))
        self.head = nn.Linear(width, 32)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


@cache
def decoder(layers: int = 2, **sizes: int) -> Program:
    """No choice changes it."""
    torch.manual_seed(0)
    return capture(Decoder(layers, **sizes).eval(), (torch.randint(0, 32, (2, 8)),))


def chosen(program: Program, mesh: str, device: DeviceModel = SLOW, link: LinkModel | Links = NVLINK4) -> AutoChoice:
    return choose_plan(program, Mesh.parse(mesh), device, link)


BLOCK = {
    "*.q_proj": "column",
    "*.k_proj": "column",
    "*.v_proj": "column",
    "*.o_proj": "row",
    "*.up": "column",
    "*.down": "row",
}


def test_columns_then_rows() -> None:
    found = chosen(decoder(), "tp=2")
    assert found.entries == {"tp": {"embed": "vocabulary", **BLOCK, "head": "column"}}
    assert found.cost.collectives == 2 * 2 + 2
    assert found.plan.reasons == tuple(found.reasons)


def test_reasons_say_what_is_saved() -> None:
    lines = chosen(decoder(), "tp=2").reasons
    (query,) = [line for line in lines if "(*.q_proj)" in line]
    assert query.startswith("tp: (*.q_proj) column: as many collectives as replicate, ")
    assert query.endswith("faster, 1.1 kB/rank")  # two layers of 16 x 16 weights and 16 biases, halved


def test_a_plan_given_back_is_the_same() -> None:
    plan = chosen(decoder(), "x=2,tp=2").plan
    again = make_plan(Mesh.parse("x=2,tp=2"), entries_of(plan))
    assert (again.axes, again.stages) == (plan.axes, plan.stages)


def test_key_heads_that_are_fewer_than_the_ranks() -> None:
    fast = Links(LinkModel(bandwidth=1e9, latency=1e-3))
    whole = chosen(decoder(width=32, heads=8, key_heads=1), "tp=4", link=fast).entries["tp"]
    assert whole["*.q_proj"] == "column"
    assert "*.k_proj" not in whole  # a message for each layer costs more than a product that is done four times


def test_layers_are_alike_however_many() -> None:
    few, many = chosen(decoder(4), "tp=2"), chosen(decoder(9), "tp=2")
    assert few.entries == many.entries
    assert (few.cost.collectives, many.cost.collectives) == (4 * 2 + 2, 9 * 2 + 2)
    layer = (many.cost.weight_bytes - few.cost.weight_bytes) / 5
    assert few.cost.weight_bytes == pytest.approx(4 * layer + (32 * 16 * 2 + 32) * 4 / 2 + 8)  # and the number of a row


def test_the_program_stays_as_it_is() -> None:
    program = decoder()
    before, names = program.text(), program.weights.names()
    chosen(program, "tp=2")
    assert (program.text(), program.weights.names(), program.stage) == (before, names, "captured")


def test_an_axis_of_another_name_takes_what_is_cheapest() -> None:
    tensor = chosen(decoder(), "tp=2").cost
    assert chosen(decoder(), "model=2").cost.order <= tensor.order


def test_an_axis_of_one_rank() -> None:
    found = chosen(decoder(), "tp=1")
    assert found.entries == {}
    assert found.reasons == ["tp: one rank, nothing is split"]


@pytest.mark.parametrize(
    "mesh",
    [
        *("tp=1", "tp=2", "tp=3", "dp=2", "dp=2,tp=2", "tp=2,tp2=2"),
        *(pytest.param(mesh, marks=pytest.mark.exhaustive) for mesh in ("tp=4", "x=4")),
    ],
)
def test_sums_over_ranks_are_those_of_two_on_every_mesh(mesh: str) -> None:
    """What no axis sums over its ranks, each rank makes of the same chunks."""
    sizes = {"width": 24, "heads": 12, "key_heads": 12}
    plan = choose_plan(decoder(**sizes), Mesh.parse(mesh), SLOW, invariant=True).plan
    assert plan.invariant
    assert plan.sums is not None
    rows = [[entry.pattern for entry in each.entries if entry.choice == "row"] for each in plan.summing]
    assert rows[-1] == ["*.o_proj", "*.down"]
    assert plan.sums.ranks == 1
    summed = [pattern for each in rows[:-1] for pattern in each]
    assert set(summed) <= set(rows[-1])
    assert len(summed) == len(set(summed)), "of two axes the first one sums"
    assert bool(summed) == (mesh not in ("tp=1", "tp=3", "dp=2"))


def test_a_plan_without_invariance_has_no_sums_of_its_own() -> None:
    assert chosen(decoder(), "dp=2").plan.sums is None


def test_nothing_to_split() -> None:
    program = capture(nn.Sequential(nn.Linear(5, 7)).eval(), (torch.randn(3, 5),))
    with pytest.raises(UnsupportedError, match="nothing of Sequential can be split along 'tp' among 9 ranks") as caught:
        chosen(program, "tp=9")
    assert caught.value.code == "LK4007"
    with pytest.raises(UnsupportedError, match="along 'pp' among 9 ranks"):
        chosen(program, "pp=9")


def test_a_program_that_is_too_far() -> None:
    program = decoder().copy()
    lower_program(program, "fused", CompileOptions())
    with pytest.raises(UsageError, match="is at stage 'fused' already"):
        chosen(program, "tp=2")


def test_stages_are_even_and_name_all_layers() -> None:
    found = chosen(decoder(6), "pp=2")
    stages = found.entries["pp"]
    assert [stages[f"layers.{number}"] for number in range(6)] == [0, 0, 0, 1, 1, 1]
    assert (stages["embed"], stages["head"]) == (0, 1)
    assert found.cost.weight_bytes < chosen(decoder(6), "tp=1").cost.weight_bytes * 0.6
    assert any(line.startswith("pp: stage 1 is layers.3 to head: ") for line in found.reasons)


def test_stages_that_the_device_cannot_hold_are_made_smaller() -> None:
    program = capture(
        nn.Sequential(nn.Linear(4, 256), nn.Linear(256, 4), *(nn.Linear(4, 4) for _ in range(4))).eval(),
        (torch.randn(512, 4),),
    )
    most = 1300 * 4  # one of the two large weights, not both
    small = DeviceModel(SLOW.flops, SLOW.bandwidth, most)
    assert chosen(program, "pp=2", small).cost.weight_bytes <= most


def test_numbers_for_people() -> None:
    assert [amount(each) for each in (12, 4.2e3, 4.2e6, 1.5e9)] == ["12 B", "4.2 kB", "4.2 MB", "1.5 GB"]
    assert [duration(each) for each in (2.0, 3.1e-3, 2e-6, 4e-9)] == ["2.0 s", "3.1 ms", "2.0 us", "4.0 ns"]
    assert H100.memory == 80 << 30
