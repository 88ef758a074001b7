"""Collectives of fused modules as steps: what compiled ranks give is what all ranks give in numpy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lowerkit.artifact.safetensors_blob import TensorSource
from lowerkit.artifact.writer import write_artifact
from lowerkit.codegen.described import manifest_of
from lowerkit.codegen.schedule import build_schedule
from lowerkit.codegen.weight_table import WeightTable
from lowerkit.dialect.context import new_context
from lowerkit.dialect.interpreter.mesh import interpret_mesh
from lowerkit.mlir import ir
from lowerkit.program.weights import Shard, WeightStore
from lowerkit.runtimes.manifest import MeshAxis, ProgramSpec, Signature, Step, TensorSpec
from lowerkit.runtimes.mesh.places import place_of
from lowerkit.runtimes.mesh.simulated import run_simulated
from tests.support.suite.randomness import RANDOM

Array = np.ndarray[Any, Any]
MESH = {"pp": 2, "tp": 3}
OWN = '%own = "lk.weight"() {symbol = "own"} : () -> tensor<3x4xf32>'
EMPTY = "%empty = tensor.empty() : tensor<3x4xf32>"


def start(
    name: str, kind: str, axis: str, value: str, result: str, others: str = "", operand: str = "tensor<3x4xf32>"
) -> str:
    attributes = f'kind = "{kind}", axis = "{axis}", ranks = {MESH[axis]}, reduction = "sum"{others}'
    return f'%{name}.p = "lk.collective_start"(%{value}) {{{attributes}}} : ({operand}) -> tensor<{result}>'


def done(name: str, result: str) -> str:
    return f'%{name} = "lk.collective_done"(%{name}.p) : (tensor<{result}>) -> tensor<{result}>'


def both(name: str, kind: str, axis: str, value: str, result: str, others: str = "") -> str:
    return f"{start(name, kind, axis, value, result, others)}\n{done(name, result)}"


def function(body: Sequence[str], name: str, result: str) -> str:
    lines = "\n".join([OWN, EMPTY, *body])
    return f"func.func @main(%x: tensor<1xf32>) -> tensor<{result}> {{\n{lines}\nreturn %{name} : tensor<{result}>\n}}"


class Ranks:
    """Programs by place, as numpy and as an artifact."""

    def __init__(self, texts: Callable[[dict[str, int]], str], result: str, along: str = "") -> None:
        sizes = tuple(MESH.values())
        self.data = RANDOM.integers(0, 99, (*sizes, 3, 4)).astype(np.float32)
        self.axes = [MeshAxis(name, size) for name, size in MESH.items()]
        self.context = new_context()
        self.result = result
        with self.context, ir.Location.unknown():
            self.modules = {
                place: ir.Module.parse(texts({along: place})) for place in range(MESH[along] if along else 1)
            }
        self.along = along

    def part(self, name: str, rank: int) -> Array:
        assert name == "own"
        return self.data[tuple(place_of(self.axes, rank).values())]

    def in_numpy(self) -> list[list[Array]]:
        ranks = math.prod(MESH.values())
        modules = [self.modules[place_of(self.axes, rank).get(self.along, 0)] for rank in range(ranks)]
        return interpret_mesh(modules, [np.ones(1, np.float32)], self.part, MESH)

    def programs(self) -> tuple[list[ProgramSpec], WeightTable]:
        weights = WeightStore()
        shard = Shard(tuple(MESH.items()))
        weights.derive("own", (), lambda: self.data, dtype="f32", shape=self.data.shape, shard=shard)
        table = WeightTable(weights)
        extents = [int(size) for size in self.result.split("x")[:-1]]
        signature = Signature([TensorSpec("x", "f32", [1])], [TensorSpec("y", "f32", [*extents])])
        found: list[ProgramSpec] = []
        for place, module in self.modules.items():
            made = build_schedule(module, signature, table, {})
            where = {self.along: place} if self.along else {}
            found.append(ProgramSpec(signature, made.buffers, made.steps, [], mesh=self.axes, place=where))
        return found, table

    def compiled(self, path: Path) -> list[list[Array]]:
        programs, table = self.programs()
        stored = {name: TensorSource(w.dtype, w.shape, w.read) for name, w in table.entries.items()}
        write_artifact(path, manifest_of(programs), {}, stored)
        return run_simulated(path, [np.ones(1, np.float32)])

    def check(self, path: Path) -> list[list[Array]]:
        wanted = self.in_numpy()
        for rank, (one, other) in enumerate(zip(self.compiled(path), wanted, strict=True)):
            np.testing.assert_array_equal(one[0], other[0], err_msg=f"rank {rank}")
        return wanted


@pytest.mark.parametrize(
    ("kind", "axis", "result", "others"),
    [
        ("all_reduce", "pp", "3x4xf32", ""),
        ("all_gather", "tp", "3x3x4xf32", ""),
        ("reduce_scatter", "tp", "4xf32", ""),
        ("all_to_all", "tp", "3x4xf32", ""),
        ("broadcast", "pp", "3x4xf32", ", root = 1"),
        ("broadcast", "tp", "3x4xf32", ", root = 2"),
        ("reduce", "tp", "3x4xf32", ", root = 1"),
    ],
)
def test_each_kind(kind: str, axis: str, result: str, others: str, tmp_path: Path) -> None:
    made = Ranks(lambda _: function([both("a", kind, axis, "own", result, others)], "a", result), result)
    wanted = made.check(tmp_path / "m.lk")
    assert len({values[0].tobytes() for values in wanted}) > 1, "ranks are told apart"


def steps_of(made: Ranks) -> list[list[Step]]:
    return [[step for step in program.steps if step.collective] for program in made.programs()[0]]


def test_several_axes_at_one_time(tmp_path: Path) -> None:
    body = [
        start("a", "all_to_all", "tp", "own", "3x4xf32"),
        start("b", "all_reduce", "pp", "own", "3x4xf32"),
        done("a", "3x4xf32"),
        start("c", "broadcast", "tp", "a", "3x4xf32", ", root = 2"),
        done("b", "3x4xf32"),
        done("c", "3x4xf32"),
        both("d", "all_gather", "pp", "b", "2x3x4xf32"),
        start("e", "all_gather", "pp", "c", "2x3x4xf32"),
        both("f", "all_reduce", "tp", "d", "2x3x4xf32").replace("tensor<3x4xf32>)", "tensor<2x3x4xf32>)"),
        done("e", "2x3x4xf32"),
        both("g", "all_reduce", "tp", "f", "2x3x4xf32").replace("tensor<3x4xf32>)", "tensor<2x3x4xf32>)"),
    ]
    made = Ranks(lambda _: function(body, "g", "2x3x4xf32"), "2x3x4xf32")
    made.check(tmp_path / "m.lk")
    (steps,) = steps_of(made)
    phases = [step.collective.phase for step in steps if step.collective]
    assert phases == ["start", "start", "done", "start", "done", "done", "run", "start", "run", "done", "run"]


def test_messages_between_places(tmp_path: Path) -> None:
    """Along tp each rank sends to the next, twice, the second time what came; the first one gives it all."""

    def texts(place: dict[str, int]) -> str:
        own = place["tp"]
        after, before = f", peer = {(own + 1) % 3}", f", peer = {(own + 2) % 3}"
        body = [
            start("s", "send", "tp", "own", "0xi8", after),
            both("r", "receive", "tp", "empty", "3x4xf32", before),
            start("t", "send", "tp", "r", "0xi8", after),
            done("s", "0xi8"),
            both("q", "receive", "tp", "empty", "3x4xf32", before),
            start("b", "broadcast", "tp", "q" if own == 1 else "empty", "3x4xf32", ", root = 1"),
            done("t", "0xi8"),
            done("b", "3x4xf32"),
        ]
        return function(body, "b", "3x4xf32")

    made = Ranks(texts, "3x4xf32", along="tp")
    wanted = made.check(tmp_path / "m.lk")
    for rank, (value,) in enumerate(wanted):
        # Two places before place 1 is place 2.
        np.testing.assert_array_equal(value, made.data[rank // 3, 2])
    for place, steps in enumerate(steps_of(made)):
        calls = [(step.collective, step.buffers) for step in steps if step.collective]
        assert [call.operation for call, _ in calls if call.phase != "done"] == [
            "send", "receive", "send", "receive", "broadcast",
        ]  # fmt: skip
        for call, (source, target) in calls:
            in_place = call.operation == "receive" or (call.operation == "broadcast" and place != 1)
            assert (source == target) == in_place
            assert call.dtype == "f32"
