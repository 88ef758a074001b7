"""merge-predicates: a comparison joins the op that chooses by it, where nobody else reads it."""

from __future__ import annotations

import numpy as np

from lowerkit.dialect.context import new_context, parse_module
from lowerkit.dialect.interpreter.interpreter import interpret
from lowerkit.passes.base import PassContext
from lowerkit.passes.partition.merge_predicates import MergePredicates
from lowerkit.program.weights import WeightStore
from tests.filecheck.conftest import match_checks
from tests.support.targets.accelerators import Takes

RELU = """
#id = affine_map<(d0) -> (d0)>
func.func @main(%x: tensor<8xf32>) -> {results} {{
  %zero = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<8xi1>
  %f = tensor.empty() : tensor<8xf32>
  %p = linalg.generic {{indexing_maps = [#id, #id], iterator_types = ["parallel"]}}
      ins(%x : tensor<8xf32>) outs(%e : tensor<8xi1>) {{
  ^bb0(%i: f32, %o: i1):
    %c = arith.cmpf olt, %i, %zero : f32
    linalg.yield %c : i1
  }} -> tensor<8xi1>
  %r = linalg.generic {{indexing_maps = [#id, #id, #id], iterator_types = ["parallel"]}}
      ins(%p, %x : tensor<8xi1>, tensor<8xf32>) outs(%f : tensor<8xf32>) {{
  ^bb0(%i: i1, %j: f32, %o: f32):
    %s = arith.select %i, %zero, %j : f32
    linalg.yield %s : f32
  }} -> tensor<8xf32>
  return {returned} : {results}
}}
"""


def merged(text: str, *accelerators: Takes) -> str:
    module = parse_module(text, new_context())
    x = np.array([-1.0, -0.0, 0.0, 2.0, np.nan, np.inf, -np.inf, 1e-40], np.float32)
    before = interpret(module, [x])
    changed = MergePredicates().run(module, PassContext(weights=WeightStore(), accelerators=accelerators))
    assert module.operation.verify()
    for one, other in zip(interpret(module, [x]), before, strict=True):
        np.testing.assert_array_equal(one, other)
    assert changed == (str(module).count("linalg.generic") == 1)
    return str(module)


def test_the_two_ops_of_relu_become_one() -> None:
    match_checks(
        merged(RELU.format(results="tensor<8xf32>", returned="%r"), Takes([])),
        """
        // CHECK: linalg.generic
        // CHECK: arith.cmpf olt
        // CHECK: arith.select
        // CHECK-NOT: linalg.generic
        """,
    )


def test_bools_that_are_needed_stay() -> None:
    text = RELU.format(results="(tensor<8xf32>, tensor<8xi1>)", returned="%r, %p").replace(
        "%r, %p : (tensor<8xf32>, tensor<8xi1>)", "%r, %p : tensor<8xf32>, tensor<8xi1>"
    )
    assert merged(text, Takes([])).count("linalg.generic") == 2


def test_nothing_without_accelerators() -> None:
    assert merged(RELU.format(results="tensor<8xf32>", returned="%r")).count("linalg.generic") == 2
