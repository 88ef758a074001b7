"""What is refused in a program that is to give the same bits on every mesh, by name."""

from __future__ import annotations

import pytest

from lowerkit.dialect.context import new_context, parse_module
from lowerkit.errors import UnsupportedError
from lowerkit.mlir import ir
from lowerkit.passes.shard.invariance import is_invariant, mark_exact, mark_invariant
from lowerkit.spmd.invariant import require_known_targets, require_one_order, seconds_of


def summed(kind: str = "all_reduce", reduction: str = "sum", element: str = "f32", name: str = "main") -> str:
    result = "3" if kind == "reduce_scatter" else "2x3"
    return f"""func.func @{name}(%x: tensor<2x3x{element}>) -> tensor<{result}x{element}> {{
      %e = tensor.empty() : tensor<2x3x{element}>
      %t = linalg.generic {{indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>],
          iterator_types = ["parallel", "parallel"]}}
          ins(%x : tensor<2x3x{element}>) outs(%e : tensor<2x3x{element}>) {{
        ^bb0(%a: {element}, %o: {element}):
          linalg.yield %a : {element}
      }} -> tensor<2x3x{element}>
      %v = tensor.expand_shape %t [[0], [1, 2]] output_shape [2, 3, 1]
          : tensor<2x3x{element}> into tensor<2x3x1x{element}>
      %w = tensor.collapse_shape %v [[0], [1, 2]] : tensor<2x3x1x{element}> into tensor<2x3x{element}>
      %p = "lk.collective_start"(%w) {{axis = "tp", kind = "{kind}", ranks = 2 : i64, reduction = "{reduction}"}}
          : (tensor<2x3x{element}>) -> tensor<{result}x{element}> loc("sum@mlp.down")
      %y = "lk.collective_done"(%p) : (tensor<{result}x{element}>) -> tensor<{result}x{element}>
      return %y : tensor<{result}x{element}>
    }}"""


def parsed(text: str) -> ir.Module:
    return parse_module(text, new_context())


@pytest.mark.parametrize(
    ("kind", "reduction"), [("all_reduce", "sum"), ("all_reduce", "product"), ("reduce_scatter", "sum")]
)
def test_sums_of_floats_by_ranks_are_refused(kind: str, reduction: str) -> None:
    with pytest.raises(UnsupportedError, match=f"1 collectives add floats .*{kind} along 'tp' at .*mlp.down") as caught:
        require_one_order(parsed(summed(kind, reduction)))
    assert caught.value.code == "LK4007"
    assert "--invariant" in (caught.value.hint or "")


@pytest.mark.parametrize(("reduction", "element"), [("max", "f32"), ("min", "bf16"), ("sum", "i32")])
def test_what_is_exact_is_not(reduction: str, element: str) -> None:
    require_one_order(parsed(summed(reduction=reduction, element=element)))


def test_look_ups_are_exact() -> None:
    module = parsed(summed())
    block = module.body.operations[0].operation.regions[0].blocks[0]
    term = next(op.operation for op in block.operations if op.operation.name == "linalg.generic")
    with module.context:
        mark_exact(term.results[0])
    require_one_order(module)


def test_the_bodies_of_branches_are_looked_at() -> None:
    text = f"func.func @main() {{\nreturn\n}}\n{summed(name='branch')}"
    with pytest.raises(UnsupportedError, match="mlp.down"):
        require_one_order(parsed(text))


def test_a_mark_is_on_functions_too() -> None:
    """They go through passes in modules of their own."""
    module = parsed(f"func.func @main() {{\nreturn\n}}\n{summed(name='branch')}")
    functions = [op.operation for op in module.body.operations]
    assert not any(map(is_invariant, functions))
    mark_invariant(module)
    assert all("lk.invariant" in function.attributes for function in functions)
    assert is_invariant(functions[1].regions[0].blocks[0].operations[0].operation)


def test_accelerators_are_refused() -> None:
    require_known_targets([])
    with pytest.raises(UnsupportedError, match="the kernels of cuda, acme_npu") as caught:
        require_known_targets(["cuda", "acme_npu"])
    assert caught.value.code == "LK4007"
    assert "--target cpu" in (caught.value.hint or "")


def test_the_time_is_that_of_all_functions() -> None:
    one = seconds_of(parsed(summed()))
    assert one > 0
    both = f"{summed(name='main')}\n{summed(name='branch')}"
    assert seconds_of(parsed(both)) == pytest.approx(2 * one)
