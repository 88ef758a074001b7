"""form-regions: everything that computes ends in a region; what cannot is an error that lists all of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lowerkit.errors import PassError
from lowerkit.passes.base import PassContext
from tests.support.equivalence import assert_same_results, random_array

Check = Callable[..., PassContext]

MIXED = """
#id = affine_map<(d0, d1) -> (d0, d1)>
#swap = affine_map<(d0, d1) -> (d1, d0)>
#col = affine_map<(d0, d1) -> (d0)>
func.func @main(%x: tensor<4x8xf32>) -> (tensor<32xf32>, tensor<4xf32>, tensor<4x8xf32>, tensor<2x2xf32>) {
  %c = arith.constant 0.0 : f32
  %two = arith.constant 2.0 : f32
  %e = tensor.empty() : tensor<8x4xf32>
  %v = tensor.empty() : tensor<4xf32>
  %t = linalg.transpose ins(%x : tensor<4x8xf32>) outs(%e : tensor<8x4xf32>) permutation = [1, 0]
  %p = tensor.pad %t low[0, 0] high[0, 0] {
  ^bb0(%i: index, %j: index):
    tensor.yield %two : f32
  } : tensor<8x4xf32> to tensor<8x4xf32>
  %flat = tensor.collapse_shape %p [[0, 1]] : tensor<8x4xf32> into tensor<32xf32>
  %z = linalg.fill ins(%c : f32) outs(%v : tensor<4xf32>) -> tensor<4xf32>
  %s = linalg.generic {indexing_maps = [#id, #col], iterator_types = ["parallel", "reduction"]}
      ins(%x : tensor<4x8xf32>) outs(%z : tensor<4xf32>) {
  ^bb0(%i: f32, %o: f32):
    %a = arith.addf %i, %o : f32
    linalg.yield %a : f32
  } -> tensor<4xf32>
  %m = "lk.softmax"(%x) {axis = 1 : i64, log = false} : (tensor<4x8xf32>) -> tensor<4x8xf32>
  %d = arith.constant dense<[[1.0, 2.0], [3.0, 4.0]]> : tensor<2x2xf32>
  return %flat, %s, %m, %d : tensor<32xf32>, tensor<4xf32>, tensor<4x8xf32>, tensor<2x2xf32>
}
"""


def test_each_op_gets_a_region_of_its_kind(check: Check) -> None:
    check(
        MIXED,
        "form-regions",
        """
        // CHECK: linalg.transpose
        // CHECK: kind = "transpose"
        // CHECK: arith.constant 2.0
        // CHECK: tensor.pad
        // CHECK: kind = "pad"
        // CHECK: tensor.collapse_shape
        // CHECK: linalg.fill
        // CHECK: linalg.generic
        // CHECK: kind = "reduce"
        // CHECK: lk.softmax
        // CHECK: kind = "softmax"
        // CHECK: arith.constant dense
        // CHECK: return
        """,
    )
    assert_same_results(MIXED, "form-regions", [random_array(4, 8)])


def test_regions_are_isolated(check: Check) -> None:
    module, _ = assert_same_results(MIXED, "form-regions", [random_array(4, 8)])
    block = next(iter(module.body.operations)).operation.regions[0].blocks[0]
    names = {op.operation.name for op in block.operations}
    assert names == {"lk.region", "tensor.collapse_shape", "func.return"}
    for op in block.operations:
        if op.operation.name == "lk.region":
            body = op.operation.regions[0].blocks[0]
            assert [argument.type for argument in body.arguments] == [value.type for value in op.operation.operands]


SCALAR = """
func.func @main(%x: tensor<4xf32>, %n: f32) -> tensor<4xf32> {
  %e = tensor.empty() : tensor<4xf32>
  %r = linalg.fill ins(%n : f32) outs(%e : tensor<4xf32>) -> tensor<4xf32>
  return %r : tensor<4xf32>
}
"""


def test_a_scalar_argument_cannot_enter_a_region(check: Check) -> None:
    with pytest.raises(PassError, match=r"LK3004.*f32") as caught:
        check(SCALAR, "form-regions", "")
    assert caught.value.hint == "make the scalar a tensor of rank 0"


FILLED = """
func.func @main(%x: tensor<4xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %c = arith.constant 2.5 : f32
  %e = tensor.empty() : tensor<4xf32>
  %r = linalg.fill ins(%c : f32) outs(%e : tensor<4xf32>) -> tensor<4xf32>
  return %x, %r : tensor<4xf32>, tensor<4xf32>
}
"""


def test_a_fill_that_is_returned_is_a_region_with_its_destination(check: Check) -> None:
    check(
        FILLED,
        "form-regions",
        """
        // CHECK-NOT: tensor.empty
        // CHECK: "lk.region"() ({
        // CHECK: tensor.empty
        // CHECK: linalg.fill
        // CHECK: kind = "elementwise"
        """,
    )


DATA_DEPENDENT = """
func.func @main(%x: tensor<4xf32>, %n: tensor<i64>) -> tensor<?xf32> {
  %i = tensor.extract %n[] : tensor<i64>
  %s = arith.index_cast %i : i64 to index
  %r = tensor.extract_slice %x[0] [%s] [1] : tensor<4xf32> to tensor<?xf32>
  %k = tensor.cast %r : tensor<?xf32> to tensor<4xf32>
  %w = tensor.expand_shape %r [[0, 1]] output_shape [1, %s] : tensor<?xf32> into tensor<1x?xf32>
  %f = tensor.collapse_shape %w [[0, 1]] : tensor<1x?xf32> into tensor<?xf32>
  return %f : tensor<?xf32>
}
"""


def test_shapes_that_depend_on_data_are_listed(check: Check) -> None:
    with pytest.raises(PassError, match="LK3004") as caught:
        check(DATA_DEPENDENT, "form-regions", "")
    assert any("tensor.extract" in detail for detail in caught.value.details)
