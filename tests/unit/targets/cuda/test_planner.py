"""Which loops threads share out, which nests share a kernel, and bodies that cannot be cut."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from lowerkit.dialect.interpreter.interpreter import interpret
from lowerkit.targets.cuda.planned import PlannedRegion
from lowerkit.targets.cuda.planner.plan import plan_region
from lowerkit.targets.region_view import RegionView
from tests.support.region_kernels import anchored, tensor
from tests.support.suite.randomness import RANDOM
from tests.support.targets.cuda_kernels import compile_cuda, run_cuda


def plan(text: str) -> PlannedRegion:
    return plan_region(RegionView.from_text(text, "region"))


def test_a_row_of_softmax_is_reduced_by_one_thread_and_divided_by_many() -> None:
    kind = tensor(["?", 37], "f32")
    function = plan(anchored("softmax", [kind], kind, "axis = 1 : i64, log = false")).function
    rows, elements = (("ceildiv", count, 128) for count in (("dim", 0), ("mul", ("dim", 0), 37)))
    assert [launch.blocks for launch in function.launches] == [rows, elements, rows, elements]
    assert all(launch.block % 32 == 0 for launch in function.launches)
    assert function.dims == 2 and function.operands == [("mul", ("dim", 0), 148)]


def test_the_zeros_of_a_product_and_what_follows_it_share_its_kernel() -> None:
    types = [tensor([5, 7], "f32"), tensor([7, 3], "f32")]
    text = f"""
    func.func @region(%a: {types[0]}, %b: {types[1]}) -> tensor<5x3xf32> {{
      %0 = "lk.matmul"(%a, %b) {{accumulate = f32, transpose_lhs = false, transpose_rhs = false}}
        : ({types[0]}, {types[1]}) -> tensor<5x3xf32>
      %e = tensor.empty() : tensor<5x3xf32>
      %1 = linalg.generic {{indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
                           iterator_types = ["parallel", "parallel"]}} ins(%0 : tensor<5x3xf32>)
                           outs(%e : tensor<5x3xf32>) {{
      ^bb0(%x: f32, %o: f32):
        %y = arith.negf %x : f32
        linalg.yield %y : f32
      }} -> tensor<5x3xf32>
      return %1 : tensor<5x3xf32>
    }}"""
    (launch,) = plan(text).function.launches
    assert (launch.blocks, launch.block) == (1, 128)


def test_equal_kernels_have_one_name() -> None:
    kind = tensor([4, 8], "f32")
    text = anchored("softmax", [kind], kind, "axis = 1 : i64, log = false")
    assert plan(text) == plan(text)
    other = plan(anchored("softmax", [kind], kind, "axis = 1 : i64, log = true"))
    assert set(other.kernels) & set(plan(text).kernels), "the maximum of a row is the same in both"


def looped(body: str, results: str = "tensor<6xf32>") -> RegionView:
    """A region that a loop over tensors computes, such as those of ops without a form in linalg."""
    return RegionView.from_text(
        f"""
    func.func @region(%a: tensor<6xf32>, %i: tensor<6xi64>) -> {results} {{
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c5 = arith.constant 5 : index
      %c6 = arith.constant 6 : index
      %zero = arith.constant 0.0 : f32
      %e = tensor.empty() : tensor<6xf32>
      %z = linalg.fill ins(%zero : f32) outs(%e : tensor<6xf32>) -> tensor<6xf32>
      {body}
    }}""",
        "looped",
    )


def blocks_of(view: RegionView) -> list[object]:
    """Runs a region against the interpreter; returns (blocks, threads of a block) of its launches."""
    inputs = [RANDOM.standard_normal(6).astype(np.float32), RANDOM.integers(0, 6, 6)]
    compiled = compile_cuda(view)
    expected = interpret(view.clone_module(), inputs, function="region")
    for found, wanted in zip(run_cuda(compiled, inputs), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    return [(launch.blocks, launch.block) for launch in compiled.planned.function.launches]


def loop(step: Callable[[], str] | str) -> str:
    return f"""
      %r = scf.for %k = %c0 to %c5 step %c1 iter_args(%t = %z) -> (tensor<6xf32>) {{
        {step if isinstance(step, str) else step()}
        scf.yield %n : tensor<6xf32>
      }}
      return %r : tensor<6xf32>"""


def test_iterations_that_write_their_own_element_are_dealt_out() -> None:
    step = """
        %x = tensor.extract %a[%k] : tensor<6xf32>
        %n = tensor.insert %x into %t[%k] : tensor<6xf32>"""
    assert (1, 128) in blocks_of(looped(loop(step)))


def test_iterations_that_read_what_the_one_before_wrote_are_not() -> None:
    step = """
        %x = tensor.extract %a[%k] : tensor<6xf32>
        %before = tensor.extract %t[%k] : tensor<6xf32>
        %sum = arith.addf %x, %before : f32
        %next = arith.addi %k, %c1 : index
        %n = tensor.insert %sum into %t[%next] : tensor<6xf32>"""
    assert (1, 32) in blocks_of(looped(loop(step)))


def test_iterations_that_write_where_data_says_are_not() -> None:
    step = """
        %at = tensor.extract %i[%k] : tensor<6xi64>
        %place = arith.index_cast %at : i64 to index
        %x = tensor.extract %a[%k] : tensor<6xf32>
        %n = tensor.insert %x into %t[%place] : tensor<6xf32>"""
    assert (1, 32) in blocks_of(looped(loop(step)))


def test_a_number_that_is_loaded_after_it_was_written() -> None:
    """The loop's first element is read after the loop, and used by another one: loaded again where it is needed."""
    body = """
      %r = scf.for %k = %c0 to %c6 step %c1 iter_args(%t = %z) -> (tensor<6xf32>) {
        %x = tensor.extract %a[%k] : tensor<6xf32>
        %y = arith.mulf %x, %x : f32
        %n = tensor.insert %y into %t[%k] : tensor<6xf32>
        scf.yield %n : tensor<6xf32>
      }
      %first = tensor.extract %r[%c0] : tensor<6xf32>
      %f = tensor.empty() : tensor<6xf32>
      %s = scf.for %k = %c0 to %c6 step %c1 iter_args(%t = %f) -> (tensor<6xf32>) {
        %x = tensor.extract %r[%k] : tensor<6xf32>
        %y = arith.addf %x, %first : f32
        %n = tensor.insert %y into %t[%k] : tensor<6xf32>
        scf.yield %n : tensor<6xf32>
      }
      return %s : tensor<6xf32>"""
    assert blocks_of(looped(body)) == [(1, 128), (1, 128)]


def test_a_number_that_changes_before_it_is_used_makes_one_thread_of_the_body() -> None:
    """Read, overwritten in place, then used: to load it again would give the new value."""
    body = """
      %r = scf.for %k = %c0 to %c6 step %c1 iter_args(%t = %z) -> (tensor<6xf32>) {
        %x = tensor.extract %a[%k] : tensor<6xf32>
        %n = tensor.insert %x into %t[%k] : tensor<6xf32>
        scf.yield %n : tensor<6xf32>
      }
      %first = tensor.extract %r[%c0] : tensor<6xf32>
      %s = scf.for %k = %c0 to %c6 step %c1 iter_args(%t = %r) -> (tensor<6xf32>) {
        %x = tensor.extract %t[%k] : tensor<6xf32>
        %y = arith.addf %x, %first : f32
        %n = tensor.insert %y into %t[%k] : tensor<6xf32>
        scf.yield %n : tensor<6xf32>
      }
      return %s : tensor<6xf32>"""
    assert blocks_of(looped(body)) == [(1, 32)]
