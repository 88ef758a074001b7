"""Regions that give the anchor's result beside those of the elementwise op, in any order."""

from __future__ import annotations

import numpy as np
import pytest

from lowerkit.targets.region_view import RegionView
from tests.support.region_kernels import random
from tests.support.targets.cuda_windows import hold

TEXT = """
#map = affine_map<(d0, d1, d2) -> (d0, d1, d2)>
#turned = affine_map<(d0, d1, d2) -> (d1, d0, d2)>
func.func @region({operands}) -> ({types}) {{
  %0 = {anchor} -> tensor<3x12x32xbf16>
  %1 = tensor.empty() : tensor<12x3x32xf32>
  %2:2 = linalg.generic {{indexing_maps = [#turned, #map, #map], iterator_types = ["parallel", "parallel", "parallel"]}}
      ins(%0 : tensor<3x12x32xbf16>) outs(%1, %1 : tensor<12x3x32xf32>, tensor<12x3x32xf32>) {{
  ^bb0(%in: bf16, %out: f32, %out_0: f32):
    %3 = arith.extf %in : bf16 to f32
    %4 = arith.mulf %3, %3 : f32
    linalg.yield %4, %3 : f32, f32
  }} -> (tensor<12x3x32xf32>, tensor<12x3x32xf32>)
  return {results} : {types}
}}
"""
ANCHORS = {
    "gather": (
        "%a: tensor<50x32xbf16>, %b: tensor<3x12xi64>",
        '"lk.gather"(%a, %b) {axis = 0 : i64} : (tensor<50x32xbf16>, tensor<3x12xi64>)',
    ),
    "gemm": (
        "%a: tensor<3x12x16xbf16>, %b: tensor<16x32xbf16>",
        '"lk.matmul"(%a, %b) {accumulate = f32, transpose_lhs = false, transpose_rhs = false} '
        ": (tensor<3x12x16xbf16>, tensor<16x32xbf16>)",
    ),
}
TYPES = {"%0": "tensor<3x12x32xbf16>", "%2#0": "tensor<12x3x32xf32>", "%2#1": "tensor<12x3x32xf32>"}


@pytest.mark.parametrize(
    "results", [("%0", "%2#0", "%2#1"), ("%2#1", "%0", "%2#0"), ("%2#1", "%2#0"), ("%2#1", "%0"), ("%2#0",)], ids=str
)
@pytest.mark.parametrize("name", ANCHORS)
def test_each_result_is_stored_where_it_belongs(name: str, results: tuple[str, ...]) -> None:
    operands, anchor = ANCHORS[name]
    types = ", ".join(TYPES[each] for each in results)
    text = TEXT.format(operands=operands, anchor=anchor, results=", ".join(results), types=types)
    view = RegionView.from_text(text, name)
    shapes = [each.type.shape for each in view.operands]
    inputs = [random(shapes[0], "bf16"), random(shapes[1], "bf16", 1)]
    if name == "gather":
        inputs[1] = np.random.default_rng(0).integers(0, 50, shapes[1])
    hold(view, name, [], inputs=inputs)
