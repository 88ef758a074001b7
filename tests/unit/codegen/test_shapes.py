"""Shapes as expressions over the signature's dims, through top-level ops and through region bodies."""

from __future__ import annotations

import pytest

from lowerkit.codegen.shapes import ShapeTable, result_shapes
from lowerkit.dialect.context import new_context
from lowerkit.errors import UnsupportedError
from lowerkit.mlir import ir
from lowerkit.runtimes.expressions import evaluate, to_text
from lowerkit.targets.region_view import RegionView
from tests.support.region_text import fused


def shapes_of(text: str, *inputs: tuple[object, ...]) -> list[tuple[object, ...]]:
    """The shapes of what ``@main`` returns, as text where they are no ints."""
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(fused(text))
        block = module.body.operations[0].operation.regions[0].blocks[0]
        table = ShapeTable(dict(zip(block.arguments, inputs, strict=True)))  # type: ignore[arg-type]
        returned = list(block.operations)[-1].operation.operands
        return [
            tuple(extent if isinstance(extent, int) else to_text(extent) for extent in table.shape(value))
            for value in returned
        ]


def test_views() -> None:
    text = """func.func @main(%x: tensor<?x12x?xf32>) -> (tensor<?x?xf32>, tensor<?x3x4x?xf32>, tensor<?x12x8xf32>) {
      %c0 = arith.constant 0 : index
      %c2 = arith.constant 2 : index
      %n = tensor.dim %x, %c0 : tensor<?x12x?xf32>
      %s = tensor.dim %x, %c2 : tensor<?x12x?xf32>
      %a = tensor.collapse_shape %x [[0, 1], [2]] : tensor<?x12x?xf32> into tensor<?x?xf32>
      %b = tensor.expand_shape %x [[0], [1, 2], [3]] output_shape [%n, 3, 4, %s]
        : tensor<?x12x?xf32> into tensor<?x3x4x?xf32>
      %c = tensor.cast %x : tensor<?x12x?xf32> to tensor<?x12x8xf32>
      return %a, %b, %c : tensor<?x?xf32>, tensor<?x3x4x?xf32>, tensor<?x12x8xf32>
    }"""
    assert shapes_of(text, ("n", 12, "s")) == [("(n * 12)", "s"), ("n", 3, 4, "s"), ("n", 12, 8)]


def test_index_arithmetic() -> None:
    text = """func.func @main(%x: tensor<?xf32>) -> tensor<?x?xf32> {
      %c0 = arith.constant 0 : index
      %c2 = arith.constant 2 : i64
      %n = tensor.dim %x, %c0 : tensor<?xf32>
      %m = arith.index_cast %n : index to i64
      %h = arith.floordivsi %m, %c2 : i64
      %i = arith.index_cast %h : i64 to index
      %p = affine.apply affine_map<()[s0] -> (s0 * 3 + 1)>()[%n]
      %e = tensor.empty(%i, %p) : tensor<?x?xf32>
      return %e : tensor<?x?xf32>
    }"""
    assert shapes_of(text, ("n",)) == [("(n // 2)", "((n * 3) + 1)")]


def test_slices_pads_and_concatenation() -> None:
    text = """func.func @main(%x: tensor<?x8xf32>) -> (tensor<?xf32>, tensor<?x10xf32>, tensor<?x8xf32>) {
      %c0 = arith.constant 0 : index
      %c3 = arith.constant 3 : index
      %zero = arith.constant 0.0 : f32
      %n = tensor.dim %x, %c0 : tensor<?x8xf32>
      %k = arith.subi %n, %c3 : index
      %s = tensor.extract_slice %x[0, 2] [%k, 1] [1, 1] : tensor<?x8xf32> to tensor<?xf32>
      %p = tensor.pad %x low[%c3, 1] high[0, 1] {
      ^bb0(%i: index, %j: index):
        tensor.yield %zero : f32
      } : tensor<?x8xf32> to tensor<?x10xf32>
      %c = tensor.concat dim(0) %x, %x : (tensor<?x8xf32>, tensor<?x8xf32>) -> tensor<?x8xf32>
      return %s, %p, %c : tensor<?xf32>, tensor<?x10xf32>, tensor<?x8xf32>
    }"""
    assert shapes_of(text, ("n", 8)) == [("(n + -3)",), ("(3 + n)", 10), ("(n + n)", 8)] or shapes_of(
        text, ("n", 8)
    ) == [("(n + -3)",), ("(n + 3)", 10), ("(n + n)", 8)]


REGION = """func.func @main(%x: tensor<?x3x?x?xf32>, %w: tensor<8x3x3x3xf32>) -> tensor<?x8x?x?xf32> {
  %r = "lk.region"(%x, %w) ({
  ^bb0(%a: tensor<?x3x?x?xf32>, %f: tensor<8x3x3x3xf32>):
    %c = "lk.conv"(%a, %f) {channels_last = false, strides = array<i64: 2, 2>, padding = array<i64: 1, 1, 0, 0>,
      dilation = array<i64: 1, 1>, groups = 1 : i64, accumulate = f32}
      : (tensor<?x3x?x?xf32>, tensor<8x3x3x3xf32>) -> tensor<?x8x?x?xf32>
    "lk.yield"(%c) : (tensor<?x8x?x?xf32>) -> ()
  }) {kind = "conv"} : (tensor<?x3x?x?xf32>, tensor<8x3x3x3xf32>) -> tensor<?x8x?x?xf32>
  return %r : tensor<?x8x?x?xf32>
}"""


def test_the_result_of_a_region_follows_from_its_body() -> None:
    with new_context(), ir.Location.unknown():
        module = ir.Module.parse(fused(REGION))
        block = module.body.operations[0].operation.regions[0].blocks[0]
        table = ShapeTable(dict(zip(block.arguments, [("n", 3, "h", "w"), (8, 3, 3, 3)], strict=True)))
        shape = table.shape(list(block.operations)[-1].operation.operands[0])
    assert shape[0] == "n"
    assert shape[1] == 8
    for height, width in ((9, 12), (224, 33)):
        values = {"n": 2, "h": height, "w": width}
        assert evaluate(shape[2], values) == (height + 2 - 3) // 2 + 1
        assert evaluate(shape[3], values) == (width - 3) // 2 + 1


def test_a_shape_that_depends_on_data_is_an_error() -> None:
    text = """func.func @main(%x: tensor<?xf32>, %k: tensor<1xi64>) -> tensor<?xf32> {
      %c0 = arith.constant 0 : index
      %v = tensor.extract %k[%c0] : tensor<1xi64>
      %i = arith.index_cast %v : i64 to index
      %e = tensor.empty(%i) : tensor<?xf32>
      return %e : tensor<?xf32>
    }"""
    with pytest.raises(UnsupportedError) as caught:
        shapes_of(text, ("n",), (1,))
    assert caught.value.code == "LK4002"


def test_static_results_need_no_derivation() -> None:
    view = RegionView.from_text(
        "func.func @region(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }", "generic"
    )
    assert result_shapes(view, [(4,)]) == [(4,)]
