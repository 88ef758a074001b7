"""merge-products: queries, keys and values by one product where attention reads the slices in place."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from lowerkit.dialect.context import new_context, parse_module
from lowerkit.passes.base import PassContext
from lowerkit.passes.fuse.merge_products import MergeProducts
from lowerkit.program.weights import Shard, WeightStore
from tests.support.equivalence import assert_same_results, random_array

Check = Callable[..., PassContext]
TP = Shard((("tp", 2),))

HEADS = """
#id = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#last = affine_map<(d0, d1, d2) -> (d2)>
func.func @main(%x: tensor<2x5x12xf32>) -> ({types}) {{
  %wq = "lk.weight"() {{symbol = "wq"}} : () -> tensor<{wq}xf32>
  %wk = "lk.weight"() {{symbol = "wk"}} : () -> tensor<{wk}xf32>
  %bq = "lk.weight"() {{symbol = "bq"}} : () -> tensor<12xf32>
  %bk = "lk.weight"() {{symbol = "bk"}} : () -> tensor<8xf32>
  %ea = tensor.empty() : tensor<2x5x12xf32>
  %eb = tensor.empty() : tensor<2x5x8xf32>
  %q = "lk.matmul"(%x, %wq) {{accumulate = f32, transpose_lhs = false, transpose_rhs = {flip}}}
    : (tensor<2x5x12xf32>, tensor<{wq}xf32>) -> tensor<2x5x12xf32>
  %k = "lk.matmul"(%x, %wk) {{accumulate = f32, transpose_lhs = false, transpose_rhs = {flip}}}
    : (tensor<2x5x12xf32>, tensor<{wk}xf32>) -> tensor<2x5x8xf32>
  %q0 = linalg.generic {{indexing_maps = [#id, #last, #id], iterator_types = ["parallel", "parallel", "parallel"]}}
      ins(%q, %bq : tensor<2x5x12xf32>, tensor<12xf32>) outs(%ea : tensor<2x5x12xf32>) {{
  ^bb0(%a: f32, %b: f32, %o: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  }} -> tensor<2x5x12xf32>
  %k0 = linalg.generic {{indexing_maps = [#last, #id, #id], iterator_types = ["parallel", "parallel", "parallel"]}}
      ins(%bk, %k : tensor<8xf32>, tensor<2x5x8xf32>) outs(%eb : tensor<2x5x8xf32>) {{
  ^bb0(%a: f32, %b: f32, %o: f32):
    %s = arith.{op} %a, %b : f32
    linalg.yield %s : f32
  }} -> tensor<2x5x8xf32>
  %q1 = tensor.expand_shape %q0 [[0], [1], [2, 3]] output_shape [2, 5, 3, 4]
    : tensor<2x5x12xf32> into tensor<2x5x3x4xf32>
  %k1 = tensor.expand_shape %k0 [[0], [1], [2, 3]] output_shape [2, 5, 2, 4]
    : tensor<2x5x8xf32> into tensor<2x5x2x4xf32>
  %k2 = tensor.collapse_shape %k1 [[0], [1], [2, 3]] : tensor<2x5x2x4xf32> into tensor<2x5x8xf32>
  %k3 = tensor.expand_shape %k2 [[0], [1], [2, 3]] output_shape [2, 5, 2, 4]
    : tensor<2x5x8xf32> into tensor<2x5x2x4xf32>
  %a = "lk.attention"(%q1, %k3, %k3) {{causal = false, empty_rows = "zero", fill = 0xFFF0000000000000 : f64,
    masking = "add", scale = 0.5 : f64}}
    : (tensor<2x5x3x4xf32>, tensor<2x5x2x4xf32>, tensor<2x5x2x4xf32>) -> tensor<2x5x3x4xf32>
  return {results} : {types}
}}
"""
USUAL = {
    "wq": "12x12", "wk": "12x8", "flip": "false", "op": "addf", "results": "%a", "types": "tensor<2x5x3x4xf32>",
}  # fmt: skip
WEIGHTS = {
    "wq": random_array(12, 12, seed=1), "wk": random_array(12, 8, seed=2), "bq": random_array(12, seed=3),
    "bk": random_array(8, seed=4),
}  # fmt: skip


def test_two_products_and_their_biases_become_one(check: Check) -> None:
    context = check(
        HEADS.format(**USUAL),
        "merge-products",
        """
        // CHECK: %[[W:.*]] = "lk.weight"() {symbol = "merged"} : () -> tensor<12x20xf32>
        // CHECK: %[[P:.*]] = "lk.matmul"(%arg0, %[[W]])
        // CHECK-SAME: tensor<2x5x20xf32>
        // CHECK: %[[S:.*]] = linalg.generic
        // CHECK-SAME: ins(%[[P]]
        // CHECK: tensor.extract_slice %[[S]][0, 0, 0] [2, 5, 12] [1, 1, 1]
        // CHECK: tensor.extract_slice %[[S]][0, 0, 12] [2, 5, 8] [1, 1, 1]
        // CHECK-NOT: lk.matmul
        """,
        weights=WEIGHTS,
    )
    assert context.weights.spec("merged") == ("f32", (12, 20))


def test_the_results_are_the_same_with_either_layout_of_weights() -> None:
    for flip in (False, True):
        shapes = {"wq": "12x12", "wk": "8x12" if flip else "12x8", "flip": str(flip).lower()}
        weights = {**WEIGHTS, "wk": np.ascontiguousarray(WEIGHTS["wk"].T) if flip else WEIGHTS["wk"]}
        text = HEADS.format(**{**USUAL, **shapes})
        assert_same_results(text, "merge-products", [random_array(2, 5, 12)], weights, tolerance=1e-6)


def test_what_others_read_or_what_is_no_bias_stays(check: Check) -> None:
    for change in ({"op": "subf"}, {"results": "%a, %q0", "types": "tensor<2x5x3x4xf32>, tensor<2x5x12xf32>"}):
        check(
            HEADS.format(**{**USUAL, **change}),
            "merge-products",
            """
            // CHECK: lk.matmul
            // CHECK: lk.matmul
            // CHECK-NOT: extract_slice
            """,
            weights=WEIGHTS,
        )


def test_weights_that_ranks_share_are_joined_in_each_part() -> None:
    store, shard = WeightStore(), Shard((("dp", 2), ("tp", 3)))
    parts = {
        name: random_array(2, 3, *array.shape, seed=number) for number, (name, array) in enumerate(WEIGHTS.items())
    }
    for name, data in parts.items():
        store.derive(name, (), partial(np.asarray, data), dtype="f32", shape=data.shape, shard=shard)
    module = parse_module(HEADS.format(**USUAL), new_context())
    assert MergeProducts().run(module, PassContext(store))
    assert 'symbol = "merged"} : () -> tensor<12x20xf32>' in module.operation.get_asm(print_generic_op_form=True)
    assert store.shard("merged") == shard
    joined = store.get("merged")
    np.testing.assert_array_equal(joined, np.concatenate([parts["wq"], parts["wk"]], axis=-1))


def test_weights_that_ranks_share_otherwise_stay_apart() -> None:
    store = WeightStore()
    for name, data in WEIGHTS.items():
        if name == "wq":
            store.derive(name, (), partial(np.stack, [data, data]), dtype="f32", shape=(2, *data.shape), shard=TP)
        else:
            store.add(name, data)
    assert not MergeProducts().run(parse_module(HEADS.format(**USUAL), new_context()), PassContext(store))
