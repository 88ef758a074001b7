"""Programs as text, split among ranks, with what a proof of the split needs: for tests of certificates."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lowerkit.dialect.context import new_context, parse_module
from lowerkit.dialect.interpreter.interpreter import interpret
from lowerkit.dialect.interpreter.mesh import interpret_mesh
from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.shard.plan import PlanEntry, ShardingPlan
from lowerkit.passes.shard.shard_program import ShardProgram
from lowerkit.program.weights import WeightStore
from lowerkit.spmd.certificate.graph import Graph
from lowerkit.spmd.certificate.probing import facts_of
from lowerkit.spmd.certificate.prover import Proof, prove
from lowerkit.spmd.certificate.reading import number_ops, read_graph

Array = np.ndarray[Any, Any]
AXIS = "tp"

_WEIGHT = re.compile(r'"lk.weight"\(\) \{symbol = "([\w.]+)"\} : \(\) -> tensor<((?:\d+x)*)(\w+)>')
_ARGUMENT = re.compile(r"%\w+: tensor<((?:\d+x)*)(\w+)>")
_MATMUL = "accumulate = f32, transpose_lhs = false, transpose_rhs = false"
_MAPS = """
#id = affine_map<(d0, d1) -> (d0, d1)>
#last = affine_map<(d0, d1) -> (d1)>
"""


@dataclass(frozen=True)
class Split:
    """A program that was split.

    Attributes:
        before: the program, as plain data.
        module: what each rank runs; its ops have the numbers of those before.
        store: the weights of both.
        inputs, wanted: arguments, and what the program before gives for them.
        ranks: how many there are.
    """

    before: Graph
    module: ir.Module
    store: WeightStore
    inputs: list[Array]
    wanted: list[Array]
    ranks: int

    def prove(self, module: ir.Module | None = None) -> Proof:
        """Proves what each rank runs, or another program in its place."""
        after = read_graph(self.module if module is None else module)
        facts = facts_of(self.before, after, self.store, AXIS, self.ranks)
        return prove(self.before, after, AXIS, self.ranks, facts)

    def is_right(self, module: ir.Module) -> bool:
        """Whether all ranks give what the program before gives, in numpy."""

        def part(name: str, rank: int) -> Array:
            data = self.store.get(name)
            return data if self.store.shard(name) is None else data[rank]

        found = interpret_mesh(module, self.inputs, part, self.ranks)
        pairs = [pair for one in found for pair in zip(one, self.wanted, strict=True)]
        return all(np.allclose(one, other, rtol=1e-4, atol=1e-4) for one, other in pairs)


def split(text: str, plan: Mapping[str, Any], ranks: int) -> Split:
    """Splits a program along :data:`AXIS`; weights and inputs are random."""
    generator = np.random.default_rng(7)

    def random(shape: str, dtype: str) -> Array:
        sizes = [int(size) for size in shape.split("x") if size]
        if dtype.startswith("i"):
            return generator.integers(-12, 12, sizes, np.int64)
        return generator.standard_normal(sizes).astype(np.float32)

    module = parse_module(_MAPS + text, new_context())
    store = WeightStore()
    for name, shape, dtype in _WEIGHT.findall(text):
        if name not in store:
            store.add(name, random(shape, dtype))
    inputs = [random(*found) for found in _ARGUMENT.findall(text.partition("->")[0])]
    wanted = interpret(module, inputs, store.get)
    before = read_graph(module)
    number_ops(module)
    entries = tuple(PlanEntry(pattern, choice) for pattern, choice in plan.items())
    ShardProgram().run(module, PassContext(store, sharding=ShardingPlan(AXIS, ranks, entries)))
    assert module.operation.verify()
    return Split(before, module, store, inputs, wanted, ranks)


def _weight(name: str, shape: str) -> str:
    return f'%{name} = "lk.weight"() {{symbol = "{name}"}} : () -> tensor<{shape}>'


def _product(result: str, left: str, name: str, types: str) -> str:
    one, other, out = types.split()
    return (
        f'{_weight(name, other)}\n%{result} = "lk.matmul"(%{left}, %{name}) {{{_MATMUL}}} : '
        f'(tensor<{one}>, tensor<{other}>) -> tensor<{out}> loc("mm@{name}")'
    )


def _elementwise(result: str, left: str, right: str, maps: str, types: str, body: str) -> str:
    one, other = types.split()
    return f"""
      %{result}_e = tensor.empty() : tensor<{one}>
      %{result} = linalg.generic {{indexing_maps = [{maps}], iterator_types = ["parallel", "parallel"]}}
          ins(%{left}, %{right} : tensor<{one}>, tensor<{other}>) outs(%{result}_e : tensor<{one}>) {{
        ^bb0(%one: f32, %two: f32, %out: f32):
          %made = {body} %one, %two : f32
          linalg.yield %made : f32
      }} -> tensor<{one}>"""


MLP = "\n".join(
    [
        "func.func @main(%x: tensor<4x8xf32>) -> tensor<4x8xf32> {",
        _product("h", "x", "up", "4x8xf32 8x8xf32 4x8xf32"),
        _product("k", "x", "gate", "4x8xf32 8x8xf32 4x8xf32"),
        _weight("bias", "8xf32"),
        _elementwise("b", "h", "bias", "#id, #last, #id", "4x8xf32 8xf32", "arith.subf"),
        _elementwise("g", "b", "k", "#id, #id, #id", "4x8xf32 4x8xf32", "arith.mulf"),
        _product("y", "g", "down", "4x8xf32 8x8xf32 4x8xf32"),
        _elementwise("z", "x", "y", "#id, #id, #id", "4x8xf32 4x8xf32", "arith.addf"),
        '%n = "lk.softmax"(%z) {axis = 1 : i64, log = false} : (tensor<4x8xf32>) -> tensor<4x8xf32>',
        "return %n : tensor<4x8xf32>\n}",
    ]
)
MLP_PLAN = {"up": "column", "gate": "column", "down": "row"}

GATHERED = "\n".join(
    [
        "func.func @main(%x: tensor<8x8xf32>) -> (tensor<8x8xf32>, tensor<8x8xf32>) {",
        _product("h", "x", "first", "8x8xf32 8x8xf32 8x8xf32"),
        _product("y", "h", "second", "8x8xf32 8x8xf32 8x8xf32"),
        '%s = "lk.softmax"(%y) {axis = 1 : i64, log = false} : (tensor<8x8xf32>) -> tensor<8x8xf32>',
        _product("t", "s", "third", "8x8xf32 8x8xf32 8x8xf32"),
        "return %t, %s : tensor<8x8xf32>, tensor<8x8xf32>\n}",
    ]
)
"""Terms that are read in slices, slices that are gathered."""
GATHERED_PLAN = {"first": "row", "second": "row", "third": "column"}

LOOK_UP = f"""func.func @main(%i: tensor<5xi64>) -> tensor<5x13xf32> {{
  {_weight("t", "13x4xf32")}
  %r = "lk.gather"(%t, %i) {{axis = 0 : i64}} : (tensor<13x4xf32>, tensor<5xi64>) -> tensor<5x4xf32> loc("e@embed")
  %y = "lk.matmul"(%r, %t) {{accumulate = f32, transpose_lhs = false, transpose_rhs = true}}
      : (tensor<5x4xf32>, tensor<13x4xf32>) -> tensor<5x13xf32> loc("m@head")
  return %y : tensor<5x13xf32>
}}"""
"""A table whose rows do not divide, looked up and multiplied."""
LOOK_UP_PLAN = {"embed": "vocabulary", "head": "vocabulary"}


def _heads(name: str, count: int) -> str:
    flat, cut, moved = f"2x5x{count * 4}xf32", f"2x5x{count}x4xf32", f"2x{count}x5x4xf32"
    return f"""
      {_product(name, "x", f"{name}_proj", f"2x5x6xf32 6x{count * 4}xf32 {flat}")}
      %{name}1 = tensor.expand_shape %{name} [[0], [1], [2, 3]] output_shape [2, 5, {count}, 4]
          : tensor<{flat}> into tensor<{cut}>
      %{name}2 = tensor.empty() : tensor<{moved}>
      %{name}3 = linalg.transpose ins(%{name}1 : tensor<{cut}>) outs(%{name}2 : tensor<{moved}>)
          permutation = [0, 2, 1, 3]"""


ATTENTION = f"""func.func @main(%x: tensor<2x5x6xf32>) -> tensor<2x5x16xf32> {{
  {_heads("q", 4)}
  {_heads("k", 2)}
  {_heads("v", 2)}
  %a = "lk.attention"(%q3, %k3, %v3) {{causal = true, empty_rows = "zero", fill = 0.0 : f64, masking = "add",
      scale = 0.5 : f64}} : (tensor<2x4x5x4xf32>, tensor<2x2x5x4xf32>, tensor<2x2x5x4xf32>) -> tensor<2x4x5x4xf32>
  %m2 = tensor.empty() : tensor<2x5x4x4xf32>
  %m = linalg.transpose ins(%a : tensor<2x4x5x4xf32>) outs(%m2 : tensor<2x5x4x4xf32>) permutation = [0, 2, 1, 3]
  %y = tensor.collapse_shape %m [[0], [1], [2, 3]] : tensor<2x5x4x4xf32> into tensor<2x5x16xf32>
  return %y : tensor<2x5x16xf32>
}}"""
"""Two key heads: of four ranks, two share one."""
ATTENTION_PLAN = {"*_proj": "column"}

PROGRAMS: dict[str, tuple[str, Mapping[str, str], int]] = {
    "mlp": (MLP, MLP_PLAN, 2),
    "gathered": (GATHERED, GATHERED_PLAN, 4),
    "look-up": (LOOK_UP, LOOK_UP_PLAN, 3),
    "attention": (ATTENTION, ATTENTION_PLAN, 4),
}
"""Text, plan and ranks."""
