"""fix-reductions: a sum over K is one tree, whatever the number of ranks, and no collective adds floats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from lowerkit.dialect.context import new_context, parse_module
from lowerkit.dialect.interpreter.interpreter import interpret
from lowerkit.dialect.interpreter.mesh import interpret_mesh
from lowerkit.errors import UnsupportedError
from lowerkit.passes.base import PassContext
from lowerkit.passes.canonicalize.fold_constants import FoldConstants
from lowerkit.passes.shard.fix_reductions import FixReductions
from lowerkit.passes.shard.invariance import mark_invariant
from lowerkit.passes.shard.plan import PlanEntry, ShardingPlan
from lowerkit.passes.shard.shard_program import ShardProgram
from lowerkit.program.weights import Shard, WeightStore
from tests.filecheck.conftest import match_checks

RANKS = (1, 2, 4, 8)
DTYPES: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f64": np.float64}
Array = np.ndarray[Any, Any]


def values(shape: Sequence[int], element: str) -> Array:
    return np.random.default_rng(len(shape) + sum(shape)).standard_normal(shape).astype(DTYPES[element])


def product(left: str, right: str, result: str, *, flip: tuple[bool, bool] = (False, False), element: str) -> str:
    """``%y = %x @ down``; types without their element."""
    sums = "f64" if element == "f64" else "f32"
    flags = ", ".join(
        f"transpose_{side} = {str(flag).lower()}" for side, flag in zip(("lhs", "rhs"), flip, strict=True)
    )
    return f"""func.func @main(%x: tensor<{left}x{element}>) -> tensor<{result}x{element}> {{
      %w = "lk.weight"() {{symbol = "down.weight"}} : () -> tensor<{right}x{element}>
      %y = "lk.matmul"(%x, %w) {{accumulate = {sums}, {flags}}}
          : (tensor<{left}x{element}>, tensor<{right}x{element}>) -> tensor<{result}x{element}> loc("mm@down")
      return %y : tensor<{result}x{element}>
    }}"""


def fixed(text: str, weight: Array, ranks: int, *, chunks: int = 8, shard: bool = True) -> tuple[Any, WeightStore, Any]:
    module, store = parse_module(text, new_context()), WeightStore()
    store.add("down.weight", weight)
    plan = ShardingPlan("tp", ranks, (PlanEntry("*.down", "row"),))
    context = PassContext(store, sharding=plan)
    assert FixReductions(chunks).run(module, context)
    assert module.operation.verify()
    if shard:
        assert ShardProgram().run(module, context)
        assert module.operation.verify()
    return module, store, plan


def on_ranks(module: Any, store: WeightStore, inputs: Sequence[Array], ranks: int) -> list[list[Array]]:
    def part(name: str, rank: int) -> Array:
        data = store.get(name)
        return data if store.shard(name) is None else data[rank]

    return interpret_mesh(module, inputs, part, ranks)


def tree(x: Array, weight: Array, chunks: int) -> Array:
    """The sum as it is meant, in f32: of each chunk exact and rounded once, then neighbours with neighbours."""
    size = x.shape[-1] // chunks
    parts = [slice(place * size, (place + 1) * size) for place in range(chunks)]
    level = [(x[..., p].astype(np.float64) @ weight[p].astype(np.float64)).astype(np.float32) for p in parts]
    while len(level) > 1:
        level = [left + right for left, right in zip(level[::2], level[1::2], strict=True)]
    return level[0]


@pytest.mark.parametrize("element", DTYPES)
@pytest.mark.parametrize(
    ("left", "right", "result", "flip"),
    [
        ("5x48", "48x6", "5x6", (False, False)),
        ("48x5", "6x48", "5x6", (True, True)),
        ("2x5x48", "48x6", "2x5x6", (False, False)),
        ("1x1x48", "6x48", "1x1x6", (False, True)),
        ("2x3x48x5", "48x6", "2x3x5x6", (True, False)),
        ("5x48", "2x3x48x6", "2x3x5x6", (False, False)),
        ("2x5x48", "3x1x6x48", "3x2x5x6", (False, True)),
    ],
)
def test_the_same_bits_on_any_number_of_ranks(
    element: str, left: str, right: str, result: str, flip: tuple[bool, bool]
) -> None:
    text = product(left, right, result, flip=flip, element=element)
    x, weight = (values([int(size) for size in shape.split("x")], element) for shape in (left, right))
    found: dict[bytes, Array] = {}
    for ranks in RANKS:
        module, store, plan = fixed(text, weight, ranks)
        found.update({array.tobytes(): array for (array,) in on_ranks(module, store, [x], ranks)})
        assert [each.kind for each in plan.report.collectives] == ["all_gather"] * (ranks > 1)
        assert plan.report.split == [("down", "row")]
    (same,) = found.values()
    (y,) = interpret(parse_module(text, new_context()), [x], lambda _name: weight)
    bound = {"f64": 1e-12, "f32": 1e-5, "f16": 2e-2, "bf16": 2e-1}[element]
    np.testing.assert_allclose(same.astype(np.float64), y.astype(np.float64), rtol=bound, atol=bound)


@pytest.mark.parametrize("chunks", [2, 4, 8, 16])
def test_neighbours_are_added_first(chunks: int) -> None:
    x, weight = values((5, 48), "f32") * 1e4, values((48, 6), "f32")
    text = product("5x48", "48x6", "5x6", element="f32")
    trees: set[bytes] = set()
    for ranks in (1, 2):
        module, store, _ = fixed(text, weight, ranks, chunks=chunks)
        outputs = on_ranks(module, store, [x], ranks)
        trees.update(array.tobytes() for (array,) in outputs)
    assert trees == {tree(x, weight, chunks).tobytes()}


def test_partial_sums_of_half_types_stay_wide() -> None:
    text = product("5x48", "48x6", "5x6", element="bf16")
    module, _, _ = fixed(text, values((48, 6), "bf16"), 2)
    match_checks(
        str(module),
        """
        // CHECK: lk.weight{{.*}}symbol = "down.weight@chunks@tp.0"{{.*}}tensor<1x4x6x6xbf16>
        // CHECK: lk.matmul{{.*}}accumulate = f32{{.*}}lk.chunked{{.*}}tensor<1x4x5x6xbf16>{{.*}}-> tensor<1x4x5x6xf32>
        // CHECK-COUNT-3: arith.addf
        // CHECK: lk.collective_start{{.*}}kind = "all_gather"{{.*}}tensor<1x5x6xf32>
        // CHECK: arith.addf
        // CHECK-NEXT: arith.truncf
        """,
    )
    assert "all_reduce" not in str(module)


def test_the_module_is_marked() -> None:
    module, _, _ = fixed(product("5x48", "48x6", "5x6", element="f32"), values((48, 6), "f32"), 2, shard=False)
    assert "lk.invariant" in module.operation.attributes


def test_rows_of_unknown_number() -> None:
    text = product("?x3x48", "48x6", "?x3x6", element="f32")
    x, weight = values((4, 3, 48), "f32"), values((48, 6), "f32")
    found: set[bytes] = set()
    for ranks in RANKS:
        module, store, _ = fixed(text, weight, ranks)
        found.update(array.tobytes() for (array,) in on_ranks(module, store, [x], ranks))
    assert found == {tree(x, weight, 8).tobytes()}


def test_a_weight_that_other_ranks_share_already() -> None:
    """Its part along the other axis stays in front: each is cut as the whole would be."""
    text = product("5x48", "48x3", "5x3", element="f32")
    parts = values((2, 48, 3), "f32")
    store = WeightStore()
    store.derive("down.weight", (), lambda: parts, dtype="f32", shape=parts.shape, shard=Shard((("ep", 2),)))
    module = parse_module(text, new_context())
    context = PassContext(store, sharding=ShardingPlan("tp", 2, (PlanEntry("*.down", "row"),)))
    assert FixReductions().run(module, context)
    assert ShardProgram().run(module, context)
    name = next(name for name in store.names() if name.endswith("@tp.0"))
    assert store.shard(name) == Shard((("ep", 2), ("tp", 2)))
    np.testing.assert_array_equal(store.get(name)[1, 1, 0, 2], parts[1, 36:42])


def test_a_sum_of_activations_is_made_of_the_whole() -> None:
    """Where nothing fixes an order the terms of the ranks are not added: each rank adds them all."""
    text = """func.func @main(%x: tensor<4x16xf32>) -> tensor<4xf32> {
      %w = "lk.weight"() {symbol = "up.weight"} : () -> tensor<16x8xf32>
      %h = "lk.matmul"(%x, %w) {accumulate = f32, transpose_lhs = false, transpose_rhs = false}
          : (tensor<4x16xf32>, tensor<16x8xf32>) -> tensor<4x8xf32> loc("mm@up")
      %s = "lk.reduce"(%h) {axes = array<i64: 1>, keep_dims = false, kind = "sum"} : (tensor<4x8xf32>) -> tensor<4xf32>
      return %s : tensor<4xf32>
    }"""
    kinds: Mapping[bool, list[str]] = {True: ["all_gather"], False: ["all_reduce"]}
    for invariant, expected in kinds.items():
        module, store = parse_module(text, new_context()), WeightStore()
        store.add("up.weight", values((16, 8), "f32"))
        plan = ShardingPlan("tp", 2, (PlanEntry("*.up", "column"),))
        if invariant:
            FixReductions().run(module, PassContext(store, sharding=plan))
        ShardProgram().run(module, PassContext(store, sharding=plan))
        assert [each.kind for each in plan.report.collectives] == expected


@pytest.mark.parametrize(("body", "folds"), [("math.exp %a : f32", False), ("arith.mulf %a, %a : f32", True)])
def test_functions_of_weights_are_left_to_kernels(body: str, folds: bool) -> None:
    """Computed ahead of time they have other bits, and a part may be small enough for that where the whole is not."""
    text = f"""func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {{
      %w = "lk.weight"() {{symbol = "w"}} : () -> tensor<4xf32>
      %e = tensor.empty() : tensor<4xf32>
      %y = linalg.generic {{indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>],
          iterator_types = ["parallel"]}} ins(%w : tensor<4xf32>) outs(%e : tensor<4xf32>) {{
        ^bb0(%a: f32, %o: f32):
          %r = {body}
          linalg.yield %r : f32
      }} -> tensor<4xf32>
      return %y : tensor<4xf32>
    }}"""
    for invariant in (False, True):
        module, store = parse_module(text, new_context()), WeightStore()
        store.add("w", values((4,), "f32"))
        if invariant:
            mark_invariant(module)
        assert FoldConstants().run(module, PassContext(store)) == (folds or not invariant)


@pytest.mark.parametrize("depth", [4, 20, 27])
def test_a_depth_that_does_not_divide_gets_zeros(depth: int) -> None:
    """Behind its end, on both sides: a rank may have zeros alone, and what is infinite meets none of them."""
    text = product(f"5x{depth}", f"{depth}x6", "5x6", element="f32")
    x, weight = values((5, depth), "f32"), values((depth, 6), "f32")
    x[1, depth - 1], weight[depth - 1] = np.inf, np.abs(weight[depth - 1])
    trees: set[bytes] = set()
    for ranks in RANKS:
        module, store, _ = fixed(text, weight, ranks)
        trees.update(array.tobytes() for (array,) in on_ranks(module, store, [x], ranks))
    size = -(-depth // 8)
    behind = 8 * size - depth
    padded = np.pad(x, ((0, 0), (0, behind))), np.pad(weight, ((0, behind), (0, 0)))
    assert trees == {tree(*padded, 8).tobytes()}
    assert np.isposinf(tree(*padded, 8)[1]).all()


CONVOLUTIONS = {
    "pixels": ("conv", "1x16x5x5", "8x16x1x1", "1x8x5x5", ""),
    "last": ("conv", "2x5x5x16", "8x16x3x3", "2x3x3x8", ""),
    "padded": ("conv", "1x12x5x5", "8x12x3x3", "1x8x3x3", ""),
    "groups": ("conv", "1x16x5x5", "8x8x1x1", "1x8x5x5", ""),
    "transposed": ("conv_transpose", "1x12x3x3", "12x8x3x3", "1x8x5x5", "output_padding = array<i64: 0, 0>, "),
}


def convolution(name: str, element: str = "f32", groups: int = 1) -> tuple[str, Array, Array]:
    op, image, taps, made, more = CONVOLUTIONS[name]
    types = [f"tensor<{shape}x{element}>" for shape in (image, taps, made)]
    text = f"""func.func @main(%x: {types[0]}) -> {types[2]} {{
      %w = "lk.weight"() {{symbol = "down.weight"}} : () -> {types[1]}
      %y = "lk.{op}"(%x, %w) {{accumulate = f32, channels_last = {str(name == "last").lower()}, {more}
          dilation = array<i64: 1, 1>, groups = {groups} : i64, padding = array<i64: 0, 0, 0, 0>,
          strides = array<i64: 1, 1>}} : ({types[0]}, {types[1]}) -> {types[2]} loc("conv@down")
      return %y : {types[2]}
    }}"""
    x, weight = (values([int(size) for size in shape.split("x")], element) for shape in (image, taps))
    return text, x, weight


@pytest.mark.parametrize("element", ["f32", "bf16"])
@pytest.mark.parametrize("name", [name for name in CONVOLUTIONS if name != "groups"])
def test_input_channels_of_convolutions(name: str, element: str) -> None:
    text, x, weight = convolution(name, element)
    found: dict[bytes, Array] = {}
    for ranks in RANKS:
        module, store, plan = fixed(text, weight, ranks)
        found.update({array.tobytes(): array for (array,) in on_ranks(module, store, [x], ranks)})
        assert [each.kind for each in plan.report.collectives] == ["all_gather"] * (ranks > 1)
    (same,) = found.values()
    (y,) = interpret(parse_module(text, new_context()), [x], lambda _name: weight)
    bound = 1e-5 if element == "f32" else 2e-1
    np.testing.assert_allclose(same.astype(np.float64), y.astype(np.float64), rtol=bound, atol=bound)


def test_refuses_ranks_that_do_not_divide() -> None:
    with pytest.raises(UnsupportedError, match="8 chunks of a sum cannot be shared by 3 ranks of 'tp'") as caught:
        fixed(product("5x48", "48x6", "5x6", element="f32"), values((48, 6), "f32"), 3)
    assert caught.value.code == "LK4007"


def test_refuses_groups() -> None:
    text, _, weight = convolution("groups", groups=2)
    with pytest.raises(UnsupportedError, match="lk.conv of 2 groups has no chunks") as caught:
        fixed(text, weight, 2)
    assert caught.value.code == "LK4007"


def test_nothing_without_a_plan() -> None:
    module = parse_module(product("5x48", "48x6", "5x6", element="f32"), new_context())
    assert not FixReductions().run(module, PassContext(WeightStore()))
