"""partition: what an accelerator takes becomes functions, as large as can be, and nothing changes its meaning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lowerkit.dialect.context import new_context, parse_module
from lowerkit.dialect.interpreter.interpreter import interpret
from lowerkit.mlir import ir
from lowerkit.passes.base import PassContext
from lowerkit.passes.function_by_function import run_on_functions
from lowerkit.passes.partition.partition import Partition
from lowerkit.program.weights import WeightStore
from tests.filecheck.conftest import match_checks
from tests.support.equivalence import random_array
from tests.support.targets.accelerators import Takes

Array = np.ndarray[Any, Any]
MATMUL = "{accumulate = f32, transpose_lhs = false, transpose_rhs = false}"
SOFTMAX = "{axis = 1 : i64, log = false}"
T = "tensor<4x4xf32>"


def matmul(result: str, left: str, right: str) -> str:
    return f'%{result} = "lk.matmul"(%{left}, %{right}) {MATMUL} : ({T}, {T}) -> {T}\n'


def softmax(result: str, value: str) -> str:
    return f'%{result} = "lk.softmax"(%{value}) {SOFTMAX} : ({T}) -> {T}\n'


def main(body: str, *returned: str) -> str:
    kinds, names = ", ".join([T] * len(returned)), ", ".join(f"%{name}" for name in returned)
    return f"func.func @main(%x: {T}, %y: {T}) -> ({kinds}) {{\n{body}return {names} : {kinds}\n}}"


def partitioned(
    text: str, *accelerators: Takes, keep: Sequence[str] = (), weights: Mapping[str, Array] | None = None
) -> tuple[ir.Module, PassContext]:
    """Partitions a module; the interpreter finds the same results before and after."""
    store = WeightStore()
    for name, array in (weights or {}).items():
        store.add(name, array)
    module = parse_module(text, new_context())
    shapes = [list(value.type.shape) for value in module.body.operations[0].regions[0].blocks[0].arguments]
    inputs = [random_array(*(4 if extent < 0 else extent for extent in shape)) for shape in shapes]
    before = interpret(module, inputs, store.get)
    context = PassContext(weights=store, accelerators=accelerators, keep_on_host=frozenset(keep))
    run_on_functions(Partition(), module, context)
    assert module.operation.verify()
    for one, other in zip(interpret(module, inputs, store.get), before, strict=True):
        np.testing.assert_array_equal(one, other)
    return module, context


def test_a_chain_is_one_function() -> None:
    text = main(matmul("a", "x", "y") + matmul("b", "a", "y") + softmax("c", "b"), "c")
    module, context = partitioned(text, Takes(["lk.matmul"]))
    match_checks(
        str(module),
        """
        // CHECK: func.func @main
        // CHECK-NOT: lk.matmul
        // CHECK: lk.call
        // CHECK-SAME: callee = "npu_0"
        // CHECK-NOT: lk.call
        // CHECK: lk.softmax
        // CHECK: func.func @npu_0
        // CHECK-SAME: lk.target = "npu"
        // CHECK: lk.matmul
        // CHECK: lk.matmul
        // CHECK: return
        """,
    )
    assert [(each.op, each.target, each.function) for each in context.placements] == [
        ("lk.matmul", "npu", "npu_0"),
        ("lk.matmul", "npu", "npu_0"),
        ("lk.softmax", "", ""),
    ]
    assert context.placements[2].refusals == (("npu", "no lk.softmax"),)
    assert context.placements[2].crossing_bytes == 64
    assert context.placements[0].flops == 2 * 4**3


def test_a_set_that_would_be_left_and_entered_again_is_two() -> None:
    """The second product needs the softmax of the first."""
    text = main(matmul("a", "x", "y") + softmax("s", "a") + matmul("b", "a", "s"), "b")
    module, _ = partitioned(text, Takes(["lk.matmul"]))
    assert str(module).count('lk.target = "npu"') == 2


def test_independent_products_are_one_function_behind_all_that_they_need() -> None:
    text = main(matmul("a", "x", "y") + softmax("s", "y") + softmax("t", "a") + matmul("b", "s", "x"), "t", "b")
    module, _ = partitioned(text, Takes(["lk.matmul"]))
    match_checks(str(module), "// CHECK: lk.softmax\n// CHECK: lk.call\n// CHECK: lk.softmax\n// CHECK: return")


def test_two_sets_that_need_each_other_stay_apart() -> None:
    """Each accelerator's two ops are independent, and each set as a whole would need the other one."""
    body = matmul("a", "x", "y") + softmax("b", "a") + softmax("c", "y") + matmul("d", "c", "x")
    module, _ = partitioned(main(body, "b", "d"), Takes(["lk.matmul"], "one"), Takes(["lk.softmax"], "two"))
    assert str(module).count("lk.target = ") == 3


def test_the_first_accelerator_that_takes_an_op_has_it() -> None:
    text = main(matmul("a", "x", "y") + softmax("b", "a"), "b")
    _, context = partitioned(text, Takes(["lk.matmul"], "one"), Takes(["lk.matmul", "lk.softmax"], "two"))
    assert [each.target for each in context.placements] == ["one", "two"]


def test_a_function_names_its_weights_itself() -> None:
    weight = f'%w = "lk.weight"() {{symbol = "w"}} : () -> {T}\n'
    text = main(weight + matmul("a", "x", "w") + matmul("b", "a", "w"), "b", "w")
    module, context = partitioned(text, Takes(["lk.matmul"]), weights={"w": random_array(4, 4)})
    match_checks(
        str(module),
        """
        // CHECK: lk.call
        // CHECK-SAME: (tensor<4x4xf32>) ->
        // CHECK: func.func @npu_0
        // CHECK: lk.weight
        // CHECK-NOT: lk.weight
        """,
    )
    assert len(context.placements) == 2


def test_extents_are_computed_again_or_passed() -> None:
    text = """
#id = affine_map<(d0, d1) -> (d0, d1)>
func.func @main(%x: tensor<?x4xf32>, %y: tensor<?x4xf32>) -> tensor<?x4xf32> {
  %c0 = arith.constant 0 : index
  %one = arith.constant 1.0 : f32
  %n = tensor.dim %y, %c0 : tensor<?x4xf32>
  %e = tensor.empty(%n) : tensor<?x4xf32>
  %a = linalg.generic {indexing_maps = [#id, #id], iterator_types = ["parallel", "parallel"]}
      ins(%x : tensor<?x4xf32>) outs(%e : tensor<?x4xf32>) {
  ^bb0(%i: f32, %o: f32):
    %s = arith.addf %i, %one : f32
    linalg.yield %s : f32
  } -> tensor<?x4xf32>
  %b = "lk.softmax"(%a) {axis = 1 : i64, log = false} : (tensor<?x4xf32>) -> tensor<?x4xf32>
  return %b : tensor<?x4xf32>
}
"""
    module, _ = partitioned(text, Takes(["linalg.generic"]))
    match_checks(
        str(module),
        """
        // CHECK: %[[N:.*]] = tensor.dim %arg1
        // CHECK: lk.call
        // CHECK-SAME: (tensor<?x4xf32>, index) -> tensor<?x4xf32>
        // CHECK: func.func @npu_0(%{{.*}}: tensor<?x4xf32>, %[[GIVEN:.*]]: index)
        // CHECK: tensor.empty(%[[GIVEN]])
        // CHECK: arith.constant 1.0
        """,
    )


def test_what_stays_on_the_host_says_why() -> None:
    text = main(matmul("a", "x", "y") + softmax("b", "a"), "b")
    both = ["lk.matmul", "lk.softmax"]
    _, context = partitioned(text, Takes(both), keep=["softmax"])
    assert [each.target for each in context.placements] == ["npu", ""]
    assert context.placements[1].refusals == (("npu", "--keep-on-host softmax"),)
    for accelerator, reason in ((Takes(both, not_worth="small"), "small"), (Takes(both, gives_back="odd"), "odd")):
        module, context = partitioned(text, accelerator)
        assert [each.refusals for each in context.placements] == [(("npu", reason),)] * 2
        assert "lk.target" not in str(module)


def test_nothing_without_accelerators() -> None:
    module = parse_module(main(matmul("a", "x", "y"), "a"), new_context())
    assert not Partition().run(module, PassContext(weights=WeightStore()))


def test_bodies_of_branches_are_partitioned_too() -> None:
    text = main(matmul("a", "x", "y"), "a")
    module = parse_module(text + text.replace("@main", "@then"), new_context())
    context = PassContext(weights=WeightStore(), accelerators=[Takes(["lk.matmul"])])
    run_on_functions(Partition(), module, context)
    assert module.operation.verify()
    checks = ["@main", 'callee = "npu_0"', "@npu_0", "@then", 'callee = "npu_then_0"', "@npu_then_0"]
    match_checks(str(module), "\n".join(f"// CHECK: {each}" for each in checks))


def test_what_one_gives_back_is_offered_to_the_next() -> None:
    text = main(matmul("a", "x", "y") + softmax("b", "a") + matmul("c", "b", "y"), "c")
    first = Takes(["lk.matmul", "lk.softmax"], "first", gives_back="too much for it")
    second = Takes(["lk.matmul"], "second")
    module, context = partitioned(text, first, second)
    match_checks(
        str(module),
        "// CHECK-COUNT-2: lk.call\n// CHECK: func.func @second_0\n// CHECK: func.func @second_1",
    )
    assert [(each.op, each.target, each.refusals) for each in context.placements] == [
        ("lk.matmul", "second", (("first", "too much for it"),)),
        ("lk.softmax", "", (("first", "too much for it"), ("second", "no lk.softmax"))),
        ("lk.matmul", "second", (("first", "too much for it"),)),
    ]


def test_sets_are_made_anew_with_what_was_given_back() -> None:
    text = main(softmax("a", "x") + matmul("b", "a", "y") + softmax("c", "b"), "c")
    first = Takes(["lk.matmul"], "first", not_worth="not worth it")
    second = Takes(["lk.softmax", "lk.matmul"], "second")
    module, context = partitioned(text, first, second)
    match_checks(str(module), "// CHECK: func.func @second_0\n// CHECK-NOT: func.func @")
    assert {each.function for each in context.placements} == {"second_0"}
