"""States that ranks hold in slices: decided, written again, and run in numpy from states that are not zeros."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from lowerkit.dialect.context import new_context, parse_module
from lowerkit.dialect.interpreter.interpreter import Combine, Interpreter, executable_copy, interpret
from lowerkit.dialect.interpreter.mesh import on_all_ranks
from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.shard.micro_batches import split_batch
from lowerkit.passes.shard.plan import PlanEntry, ShardingPlan, StateSlices
from lowerkit.passes.shard.shard_program import ShardProgram
from lowerkit.program.weights import WeightStore
from lowerkit.runtimes.mesh.state_parts import own_slices
from lowerkit.runtimes.mesh.structs import MeshAxis, StateCut
from tests.filecheck.conftest import match_checks
from tests.filecheck.shard.test_shard_program import MAPS, elementwise, kinds, main, product, stored_weights
from tests.support.mesh.split_programs import DECODE, DECODE_PLAN

Array = np.ndarray[Any, Any]
_READ = re.compile(r'"lk.state_read"\(\) \{symbol = "(\w+)"\} : \(\) -> tensor<([\dx]+)xf32>')


def run(
    executable: tuple[ir.Module, dict[str, ir.Operation]],
    store: WeightStore,
    states: dict[str, Array],
    positions: Sequence[int],
    rank: int = 0,
    combine: Combine | None = None,
) -> list[Array]:
    """Runs a token at each position, one behind the other; returns the results of all."""
    copy, functions = executable

    def weight(name: str) -> Array:
        data = store.get(name)
        return data if store.shard(name) is None else data[rank]

    found: list[Array] = []
    with copy.context:
        for position in positions:
            x = np.random.default_rng(position).standard_normal((2, 1, 6)).astype(np.float32)
            found += Interpreter(functions, weight, states, combine).call(functions["main"], [x, np.array([position])])
    return found


def decoded(
    text: str, plan: Mapping[str, Any], ranks: int, positions: Sequence[int] = (3, 4)
) -> tuple[str, ShardingPlan]:
    """Shards a program, and compares what all ranks give and keep over two tokens with the program as it was."""
    module = parse_module(MAPS + text, new_context())
    store = stored_weights(text)
    shapes = {name: [int(size) for size in shape.split("x")] for name, shape in _READ.findall(text)}
    states = {
        name: np.random.default_rng(1).standard_normal(shape).astype(np.float32) for name, shape in shapes.items()
    }
    before = {name: value.copy() for name, value in states.items()}
    wanted = run(executable_copy(module), store, states, positions)
    entries = tuple(PlanEntry(pattern, choice) for pattern, choice in plan.items())
    sharding = ShardingPlan("tp", ranks, entries)
    assert ShardProgram().run(module, PassContext(store, sharding=sharding))
    assert module.operation.verify()
    copy = executable_copy(module)
    mesh = [MeshAxis("tp", ranks)]

    def part(name: str, value: Array, rank: int) -> Array:
        slices = sharding.report.states.get(name)
        if slices is None:
            return value
        cut = StateCut("tp", slices.axis, slices.parts)
        own = [size // slices.parts if axis == slices.axis else size for axis, size in enumerate(value.shape)]
        return value[own_slices(own, [cut], mesh, {"tp": rank})]

    def one(rank: int, combine: Combine) -> tuple[list[Array], dict[str, Array]]:
        own = {name: part(name, value, rank) for name, value in before.items()}
        return run(copy, store, own, positions, rank, combine), own

    for rank, (found, kept) in enumerate(on_all_ranks(ranks, one)):
        for ours, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(ours, other, rtol=2e-5, atol=2e-5)
        for name, value in kept.items():
            np.testing.assert_allclose(value, part(name, states[name], rank), rtol=2e-5, atol=2e-5)
    return str(module), sharding


@pytest.mark.parametrize("ranks", [2, 4])
def test_caches_are_held_along_heads(ranks: int) -> None:
    """With four ranks two of them share a key head, and hold the same slice."""
    text, plan = decoded(DECODE, DECODE_PLAN, ranks)
    assert plan.report.states == {"keys": StateSlices(1, 2), "values": StateSlices(1, 2)}
    assert kinds(plan) == (["all_reduce"] if ranks == 2 else ["all_gather", "all_gather", "all_reduce"])
    match_checks(
        text,
        """
        // CHECK: lk.state_read{{.*}}-> tensor<2x1x9x4xf32>
        // CHECK: lk.scatter{{.*}}tensor<2x1x1x4xf32>) -> tensor<2x1x9x4xf32>
        // CHECK: lk.state_write{{.*}}(tensor<2x1x9x4xf32>)
        // CHECK: lk.attention
        """,
    )


def test_what_all_ranks_compute_is_cut_where_its_readers_want_slices() -> None:
    """The keys are computed whole on every rank: no collective brings them, and the caches are in slices."""
    _, plan = decoded(DECODE, {"q_proj": "column", "o_proj": "row"}, 2)
    assert plan.report.states == {"keys": StateSlices(1, 2), "values": StateSlices(1, 2)}
    assert kinds(plan) == ["all_reduce"]


def test_a_query_that_all_ranks_compute_is_cut_for_the_heads_that_ranks_share() -> None:
    _, plan = decoded(DECODE, {"[kv]_proj": "column", "o_proj": "row"}, 4)
    assert plan.report.states == {"keys": StateSlices(1, 2), "values": StateSlices(1, 2)}
    assert kinds(plan) == ["all_gather", "all_gather", "all_reduce"]


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_plan(ranks: int) -> None:
    """Whatever a plan splits: a cache is held so that its readers have what they need."""
    held: Counter[int] = Counter()
    for choices in itertools.product(("column", "row", "replicate"), repeat=4):
        if ranks == 4 and ("row" in choices[:3] or choices[3] == "column"):
            continue  # six features do not divide
        plan: dict[str, str] = dict(zip(("q_proj", "k_proj", "v_proj", "o_proj"), choices, strict=True))
        _, sharding = decoded(DECODE, plan, ranks)
        held[len(sharding.report.states)] += 1
    assert held[0] and held[2], held


OTHERS: dict[str, tuple[str, str, dict[str, str]]] = {
    "nobody wants slices": ("", "", {"q_proj": "column"}),
    "it is returned": (
        "return %y : tensor<2x1x6xf32>",
        "return %y, %keys : tensor<2x1x6xf32>, tensor<2x2x9x4xf32>",
        DECODE_PLAN,
    ),
    "something else is written to it": (
        "return %y",
        '%s = "lk.softmax"(%keys) {axis = 1 : i64, log = false} : (tensor<2x2x9x4xf32>) -> tensor<2x2x9x4xf32>\n'
        '"lk.state_write"(%s) {symbol = "keys"} : (tensor<2x2x9x4xf32>) -> ()\nreturn %y',
        DECODE_PLAN,
    ),
}


@pytest.mark.parametrize("reason", OTHERS)
def test_a_state_that_ranks_need_whole_stays_whole(reason: str) -> None:
    old, new, own = OTHERS[reason]
    text = DECODE.replace(old, new) if old else DECODE
    if "%y, %keys" in new:
        text = text.replace("-> tensor<2x1x6xf32> {", "-> (tensor<2x1x6xf32>, tensor<2x2x9x4xf32>) {")
    module, plan = decoded(text, own, 2)
    assert "keys" not in plan.report.states
    assert all("2x2x9x4" in line for line in module.splitlines() if "lk.state_" in line and '"keys"' in line)


def test_a_position_along_the_heads_keeps_a_cache_whole() -> None:
    """A rank could not tell whether the position is one of its own."""
    head = "\n".join(
        [
            product("h", "x", "2x1x6xf32", "k_proj", "6x36xf32", "2x1x36xf32"),
            "%k3 = tensor.expand_shape %h [[0], [1], [2, 3]] output_shape [2, 1, 9, 4]",
            "  : tensor<2x1x36xf32> into tensor<2x1x9x4xf32>",
            '%keysr = "lk.state_read"() {symbol = "keys"} : () -> tensor<2x2x9x4xf32>',
            '%keys = "lk.scatter"(%keysr, %i, %k3) {axis = 1 : i64, kind = "set"}',
            "  : (tensor<2x2x9x4xf32>, tensor<1xi64>, tensor<2x1x9x4xf32>) -> tensor<2x2x9x4xf32>",
        ]
    )
    first, end = DECODE[: DECODE.index("%k_proj =")], DECODE.index('"lk.state_write"(%keys)')
    values = DECODE[DECODE.index("%v_proj =") : DECODE.index("%keysr =")]
    module, plan = decoded(first + values + head + DECODE[end:], DECODE_PLAN, 2, positions=(0, 1))
    assert plan.report.states == {"values": StateSlices(1, 2)}
    assert kinds(plan) == ["all_gather", "all_reduce"]
    assert 'symbol = "keys"} : () -> tensor<2x2x9x4xf32>' in module


def test_micro_batches_have_no_states_of_their_own() -> None:
    """One rank runs them in turn, and all parts are written together."""
    body = [
        '%old = "lk.state_read"() {symbol = "total"} : () -> tensor<4x6xf32>',
        elementwise("new", "#id, #id, #id", "%old, %x", "tensor<4x6xf32>, tensor<4x6xf32>", "4x6xf32"),
        '"lk.state_write"(%new) {symbol = "total"} : (tensor<4x6xf32>) -> ()',
        "return %x : tensor<4x6xf32>",
    ]
    text = main("%x: tensor<4x6xf32>", "tensor<4x6xf32>", "\n".join(body))
    module, store = parse_module(MAPS + text, new_context()), stored_weights(text)
    x, total = np.arange(24, dtype=np.float32).reshape(4, 6), {"total": np.ones((4, 6), np.float32)}
    split_batch(module, PassContext(store, input_names=["x"]), 2)
    interpret(module, [x], store.get, states=total)
    np.testing.assert_array_equal(total["total"], x + 1)
    match_checks(str(module), "// CHECK: tensor.concat\n// CHECK: lk.state_write{{.*}}(tensor<4x6xf32>)")
    module = parse_module(MAPS + text, new_context())
    plan = ShardingPlan("dp", 2, (PlanEntry("x", "batch"),))
    ShardProgram().run(module, PassContext(store, sharding=plan, input_names=["x"]))
    assert plan.report.states == {"total": StateSlices(0, 2)}
