"""Bodies that look elements of a tensor up at positions that they compute, against the op's reference."""

from __future__ import annotations

import numpy as np
import pytest

from lowerkit.targets.cuda.select import select_kernels
from lowerkit.targets.region_view import RegionView
from tests.support.region_kernels import random, tensor
from tests.support.targets.cuda_windows import hold

ALONG = """
#map = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
func.func @region(%i: {indices}, %x: {table}) -> {result} {{
  %first = arith.constant 0 : index
  %last = arith.constant {last} : index
{sizes}
  %0 = tensor.empty({open}) : {result}
  %1 = linalg.generic {{indexing_maps = [#map, #map], iterator_types = ["parallel", "parallel", "parallel"]}}
      ins(%i : {indices}) outs(%0 : {result}) {{
  ^bb0(%in: i64, %out: {element}):
    %2 = arith.index_cast %in : i64 to index
    %3 = linalg.index 0 : index
    %4 = linalg.index 2 : index
    %5 = arith.maxsi %2, %first : index
    %6 = arith.minsi %5, %last : index
    %7 = tensor.extract %x[%3, %6, %4] : {table}
    linalg.yield %7 : {element}
  }} -> {result}
  return %1 : {result}
}}
"""


def along(batch: int | str, count: int, length: int, width: int, element: str) -> RegionView:
    """``take_along_axis`` over the middle of three dims."""
    open_ = batch == "?"
    text = ALONG.format(
        indices=tensor([batch, count, width], "i64"), table=tensor([batch, length, width], element),
        result=tensor([batch, count, width], element), last=length - 1, element=element, open="%n" if open_ else "",
        sizes=f"%n = tensor.dim %i, %first : {tensor([batch, count, width], 'i64')}" if open_ else "",
    )  # fmt: skip
    return RegionView.from_text(text, "elementwise")


@pytest.mark.parametrize("level", ["sm_80", "sm_90"])
@pytest.mark.parametrize(
    ("batch", "size", "count", "length", "width", "element"),
    [
        (2, 2, 5, 9, 4, "bf16"),
        (3, 3, 40, 7, 33, "f32"),
        ("?", 5, 3, 11, 20, "f32"),
        (1, 1, 1, 1, 1, "f16"),
        (2, 2, 9, 4, 5, "i1"),
        (2, 2, 9, 4, 5, "i64"),
    ],
)
def test_take_along_an_axis(
    batch: int | str, size: int, count: int, length: int, width: int, element: str, level: str
) -> None:
    view = along(batch, count, length, width, element)
    indices = np.random.default_rng(1).integers(-2, length + 2, (size, count, width))
    hold(view, "elementwise", [], level, [indices, random((size, length, width), element)])


def test_an_epilogue_looks_up_what_belongs_to_a_row() -> None:
    """A table of factors beside a product, by an index of each row."""
    text = """
    #map = affine_map<(d0, d1) -> (d0, d1)>
    #row = affine_map<(d0, d1) -> (d0)>
    func.func @region(%a: tensor<20x24xbf16>, %b: tensor<24x40xbf16>, %i: tensor<20xi64>, %s: tensor<6x40xbf16>)
        -> tensor<20x40xbf16> {
      %0 = "lk.matmul"(%a, %b) {accumulate = f32, transpose_lhs = false, transpose_rhs = false}
        : (tensor<20x24xbf16>, tensor<24x40xbf16>) -> tensor<20x40xbf16>
      %e = tensor.empty() : tensor<20x40xbf16>
      %1 = linalg.generic {indexing_maps = [#map, #row, #map], iterator_types = ["parallel", "parallel"]}
          ins(%0, %i : tensor<20x40xbf16>, tensor<20xi64>) outs(%e : tensor<20x40xbf16>) {
      ^bb0(%x: bf16, %n: i64, %o: bf16):
        %2 = arith.index_cast %n : i64 to index
        %3 = linalg.index 1 : index
        %4 = tensor.extract %s[%2, %3] : tensor<6x40xbf16>
        %5 = arith.addf %x, %4 : bf16
        linalg.yield %5 : bf16
      } -> tensor<20x40xbf16>
      return %1 : tensor<20x40xbf16>
    }"""
    inputs = [random((20, 24), "bf16"), random((24, 40), "bf16", 1)]
    inputs += [np.random.default_rng(2).integers(0, 6, 20), random((6, 40), "bf16", 3)]
    hold(RegionView.from_text(text, "matmul"), "gemm", [], inputs=inputs)


def test_a_tensor_that_is_computed_inside_is_refused() -> None:
    text = """
    #map = affine_map<(d0) -> (d0)>
    func.func @region(%i: tensor<8xi64>, %x: tensor<8xf32>) -> tensor<8xf32> {
      %p = "lk.softmax"(%x) {axis = 0 : i64, log = false} : (tensor<8xf32>) -> tensor<8xf32>
      %e = tensor.empty() : tensor<8xf32>
      %1 = linalg.generic {indexing_maps = [#map, #map, #map], iterator_types = ["parallel"]}
          ins(%i, %p : tensor<8xi64>, tensor<8xf32>) outs(%e : tensor<8xf32>) {
      ^bb0(%n: i64, %y: f32, %o: f32):
        %2 = arith.index_cast %n : i64 to index
        %3 = tensor.extract %p[%2] : tensor<8xf32>
        %4 = arith.addf %3, %y : f32
        linalg.yield %4 : f32
      } -> tensor<8xf32>
      return %1 : tensor<8xf32>
    }"""
    planned, refusals = select_kernels(RegionView.from_text(text, "softmax"), "sm_90")
    assert planned.family == "threads"
    assert "an element of a tensor that is computed inside the region" in dict(refusals)["softmax"]
