"""Alike layers are left out of the program that plans are tried on, and counted."""

from __future__ import annotations

import torch
from torch import nn

from lowerkit.capture.capture import capture
from lowerkit.compiler import CompileOptions, lower_program
from lowerkit.passes.rewriting import main_block, operations
from lowerkit.program.locations import origin_of
from lowerkit.program.program import Program
from lowerkit.spmd.auto.shorten import Counts, shorten


class Layer(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Stack(nn.Module):
    """Layers of two kinds in turn, and a head that reads the last one and, of all, the first element."""

    def __init__(self, kinds: list[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(4, inner) for inner in kinds)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        firsts: list[torch.Tensor] = []
        for layer in self.layers:
            x = layer(x)
            firsts.append(x[0])
        return self.head(x), *firsts


def shortened(kinds: list[int]) -> tuple[Program, Counts]:
    program = capture(Stack(kinds).eval(), (torch.randn(2, 4),))
    counts = shorten(program.module)
    assert program.module.operation.verify()
    return program, counts


def layers(program: Program) -> set[str]:
    paths = [origin_of(op.location).module for op in operations(main_block(program.module))]
    return {".".join(path.split(".")[:2]) for path in paths if path.startswith("layers.")}


def test_the_first_and_the_last_of_alike_layers_stay() -> None:
    program, counts = shortened([8] * 7)
    assert layers(program) == {"layers.0", "layers.6"}
    assert counts.layers == {"layers.6": 6}
    assert [counts.of(path) for path in ("layers.0.up", "layers.6.up", "layers.6", "head", "")] == [1, 6, 6, 1, 1]
    lower_program(program, "canonical", CompileOptions())


def test_each_kind_of_layer_has_its_stand_in() -> None:
    program, counts = shortened([8, 6] * 4)
    assert layers(program) == {"layers.0", "layers.1", "layers.6", "layers.7"}
    assert counts.layers == {"layers.6": 3, "layers.7": 3}
    assert counts.stand_in("layers.4.up") == "layers.6.up"
    assert counts.stand_in("layers.5.down") == "layers.7.down"
    lower_program(program, "canonical", CompileOptions())


def test_few_layers_stay_as_they_are() -> None:
    program, counts = shortened([8] * 2)
    assert layers(program) == {"layers.0", "layers.1"}
    assert counts == Counts()


def test_counts_of_stacks_within_stacks() -> None:
    counts = Counts({"a.1": 4, "a.1.b.1": 3}, {"a.2": "a.1", "a.3": "a.1", "a.4": "a.1", "a.1.b.2": "a.1.b.1"})
    assert counts.of("a.1.b.1.c") == 12
    assert counts.stand_in("a.3.b.2.c") == "a.1.b.1.c"
    whole = counts.whole(["a.1.b.1.c"])
    assert set(whole) == {f"a.{outer}.b.{inner}.c" for outer in (1, 2, 3, 4) for inner in (1, 2)}
