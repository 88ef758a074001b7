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
_STATE = re.compile(r'"lk.state_read"\(\) \{symbol = "(\w+)"\} : \(\) -> tensor<((?:\d+x)*)(\w+)>')
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
        states: what it starts from.
        plan: by which it was split.
        ranks: how many there are.
    """

    before: Graph
    module: ir.Module
    store: WeightStore
    inputs: list[Array]
    wanted: list[Array]
    states: dict[str, Array]
    plan: ShardingPlan
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

        found = interpret_mesh(module, self.inputs, part, self.ranks, self.own_states)
        pairs = [pair for one in found for pair in zip(one, self.wanted, strict=True)]
        return all(np.allclose(one, other, rtol=1e-4, atol=1e-4) for one, other in pairs)

    def own_states(self, rank: int) -> dict[str, Array]:
        """Returns what a rank starts from."""
        found = dict(self.states)
        for name, held in self.plan.report.states.items():
            parts = np.split(found[name], held.parts, held.axis)
            found[name] = parts[rank * held.parts // self.ranks]
        return found


def split(text: str, plan: Mapping[str, Any], ranks: int) -> Split:
    """Splits a program along :data:`AXIS`; weights and inputs are random."""
    generator = np.random.default_rng(7)

    def random(shape: str, dtype: str) -> Array:
        sizes = [int(size) for size in shape.split("x") if size]
        if dtype.startswith("i"):
            return generator.integers(*((0, 9) if "lk.scatter" in text else (-12, 12)), sizes, np.int64)
        return generator.standard_normal(sizes).astype(np.float32)

    module = parse_module(_MAPS + text, new_context())
    store = WeightStore()
    for name, shape, dtype in _WEIGHT.findall(text):
        if name not in store:
            store.add(name, random(shape, dtype))
    inputs = [random(*found) for found in _ARGUMENT.findall(text.partition("->")[0])]
    states = {name: random(*found) for name, *found in _STATE.findall(text)}
    wanted = interpret(module, inputs, store.get, states=dict(states))
    before = read_graph(module)
    number_ops(module)
    entries = tuple(PlanEntry(pattern, choice) for pattern, choice in plan.items())
    sharding = ShardingPlan(AXIS, ranks, entries)
    ShardProgram().run(module, PassContext(store, sharding=sharding))
    assert module.operation.verify()
    return Split(before, module, store, inputs, wanted, states, sharding, ranks)


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


def _kept(name: str, value: str) -> str:
    """A cache, read, changed at the position %i, and written."""
    types = "2x2x9x4xf32", "2x2x1x4xf32"
    return f"""
      %{name}r = "lk.state_read"() {{symbol = "{name}"}} : () -> tensor<{types[0]}>
      %{name} = "lk.scatter"(%{name}r, %i, %{value}) {{axis = 2 : i64, kind = "set"}}
          : (tensor<{types[0]}>, tensor<1xi64>, tensor<{types[1]}>) -> tensor<{types[0]}>
      "lk.state_write"(%{name}) {{symbol = "{name}"}} : (tensor<{types[0]}>) -> ()"""


def _token(name: str, count: int) -> str:
    flat = f"2x1x{count * 4}xf32"
    return f"""
      {_product(name, "x", f"{name}_proj", f"2x1x6xf32 6x{count * 4}xf32 {flat}")}
      %{name}1 = tensor.expand_shape %{name} [[0], [1], [2, 3]] output_shape [2, 1, {count}, 4]
          : tensor<{flat}> into tensor<2x1x{count}x4xf32>
      %{name}2 = tensor.empty() : tensor<2x{count}x1x4xf32>
      %{name}3 = linalg.transpose ins(%{name}1 : tensor<2x1x{count}x4xf32>) outs(%{name}2 : tensor<2x{count}x1x4xf32>)
          permutation = [0, 2, 1, 3]"""


DECODE = f"""func.func @main(%x: tensor<2x1x6xf32>, %i: tensor<1xi64>) -> tensor<2x1x6xf32> {{
  {_token("q", 4)}
  {_token("k", 2)}
  {_token("v", 2)}
  {_kept("keys", "k3")}
  {_kept("values", "v3")}
  %a = "lk.attention"(%q3, %keys, %values) {{causal = false, empty_rows = "zero", fill = 0.0 : f64, masking = "add",
      scale = 0.5 : f64}} : (tensor<2x4x1x4xf32>, tensor<2x2x9x4xf32>, tensor<2x2x9x4xf32>) -> tensor<2x4x1x4xf32>
  %f = tensor.collapse_shape %a [[0], [1, 2, 3]] : tensor<2x4x1x4xf32> into tensor<2x16xf32>
  %m = tensor.expand_shape %f [[0], [1, 2]] output_shape [2, 1, 16] : tensor<2x16xf32> into tensor<2x1x16xf32>
  {_product("y", "m", "o_proj", "2x1x16xf32 16x6xf32 2x1x6xf32")}
  return %y : tensor<2x1x6xf32>
}}"""
"""One token with two caches of two key heads each."""
DECODE_PLAN = {"[qkv]_proj": "column", "o_proj": "row"}

PROGRAMS: dict[str, tuple[str, Mapping[str, str], int]] = {
    "mlp": (MLP, MLP_PLAN, 2),
    "gathered": (GATHERED, GATHERED_PLAN, 4),
    "look-up": (LOOK_UP, LOOK_UP_PLAN, 3),
    "attention": (ATTENTION, ATTENTION_PLAN, 4),
    "decode": (DECODE, DECODE_PLAN, 4),
}
"""Text, plan and ranks."""
