"""Costs of canonical programs: operations and bytes counted by hand, collectives beside what is computed meanwhile."""

from __future__ import annotations

import pytest

from lowerkit.dialect.context import new_context
from lowerkit.dialect.ragged import OPERAND_RUNS, RESULT_RUNS
from lowerkit.errors import UnsupportedError
from lowerkit.mlir import ir
from lowerkit.spmd.cost.machine import DeviceModel, LinkModel, Links
from lowerkit.spmd.cost.program_cost import ProgramCost, cost_of

DEVICE = DeviceModel(flops=1e9, bandwidth=1e9, memory=1 << 30)
LINK = LinkModel(bandwidth=1e9, latency=1e-6)

PRODUCT = """
func.func @main(%x: tensor<4x8xf32>) -> tensor<4x16xf32> {
  %w = "lk.weight"() {symbol = "w"} : () -> tensor<8x16xf32>
  %y = "lk.matmul"(%x, %w) {transpose_lhs = false, transpose_rhs = false, accumulate = f32}
    : (tensor<4x8xf32>, tensor<8x16xf32>) -> tensor<4x16xf32>
  %e = tensor.empty() : tensor<4x16xf32>
  %z = linalg.generic {indexing_maps = [affine_map<(i, j) -> (i, j)>, affine_map<(i, j) -> (i, j)>],
      iterator_types = ["parallel", "parallel"]} ins(%y : tensor<4x16xf32>) outs(%e : tensor<4x16xf32>) {
    ^bb0(%a: f32, %b: f32):
      %c = arith.mulf %a, %a : f32
      %d = arith.addf %c, %a : f32
      linalg.yield %d : f32
  } -> tensor<4x16xf32>
  return %z : tensor<4x16xf32>
}
"""

OVERLAP = """
func.func @main(%x: tensor<64x64xf32>, %v: tensor<64x64xf32>) -> (tensor<64x64xf32>, tensor<64x64xf32>) {
  %s = "lk.collective_start"(%x) {kind = "all_reduce", axis = "tp", ranks = 2 : i64, reduction = "sum"}
    : (tensor<64x64xf32>) -> tensor<64x64xf32>
  %y = "lk.matmul"(%v, %v) {transpose_lhs = false, transpose_rhs = false, accumulate = f32}
    : (tensor<64x64xf32>, tensor<64x64xf32>) -> tensor<64x64xf32>
  %d = "lk.collective_done"(%s) : (tensor<64x64xf32>) -> tensor<64x64xf32>
  return %d, %y : tensor<64x64xf32>, tensor<64x64xf32>
}
"""


def cost(
    text: str, sizes: dict[str, int] | None = None, link: LinkModel | Links = LINK, dynamic: int | None = None
) -> ProgramCost:
    return cost_of(ir.Module.parse(text, new_context()), sizes or {}, DEVICE, link, dynamic=dynamic)


def test_a_product_and_what_follows_it() -> None:
    found = cost(PRODUCT)
    product, after = found.compute
    assert (product.name, product.flops) == ("lk.matmul", 2 * 4 * 8 * 16)
    # The result goes to the op behind it in registers.
    assert product.moved == 4 * (4 * 8 + 8 * 16)
    assert (after.flops, after.moved) == (2 * 4 * 16, 4 * 4 * 16)
    assert found.weight_bytes == 4 * 8 * 16
    assert found.flops == product.flops + after.flops
    assert found.seconds == pytest.approx(max(1024, 640) / 1e9 + max(128, 256) / 1e9)


def test_layers_that_stand_for_others_count_as_often() -> None:
    once = cost(PRODUCT)
    thrice = cost_of(ir.Module.parse(PRODUCT, new_context()), {}, DEVICE, LINK, count=lambda _: 3)
    assert (thrice.flops, thrice.weight_bytes) == (3 * once.flops, 3 * once.weight_bytes)
    assert thrice.seconds == pytest.approx(3 * once.seconds)


def test_a_collective_runs_beside_what_stands_between() -> None:
    moved, flops = 4 * 64 * 64, 2 * 64**3
    found = cost(OVERLAP, {"tp": 2})
    (collective,) = found.collectives
    alone = 1e-6 + moved / 1e9  # one shot: one message of all
    assert collective.span.seconds == pytest.approx(alone)
    assert found.seconds == pytest.approx(flops / 1e9)  # longer than the collective, which is hidden
    assert found.waited_seconds == 0
    slow = cost(OVERLAP, {"tp": 2}, Links(LINK, {"tp": LinkModel(1e6, 1e-6)}))
    assert slow.waited_seconds == pytest.approx(1e-6 + moved / 1e6 - flops / 1e9)
    assert slow.seconds == pytest.approx(1e-6 + moved / 1e6)


def test_a_mesh_without_the_axis_is_refused() -> None:
    with pytest.raises(ValueError, match="2 ranks of 'tp'"):
        cost(OVERLAP, {"dp": 2})


def test_symbolic_extents_count_as_said_or_are_refused() -> None:
    text = PRODUCT.replace("4x", "?x").replace("tensor.empty()", "tensor.empty(%n)")
    extent = "  %k = arith.constant 0 : index\n  %n = tensor.dim %x, %k : tensor<?x8xf32>\n"
    text = text.replace("  %e = ", f"{extent}  %e = ")
    assert cost(text, dynamic=4).flops == cost(PRODUCT).flops
    with pytest.raises(UnsupportedError, match="symbolic extent") as caught:
        cost(text)
    assert caught.value.code == "LK4002"


def segments(*operands: int) -> str:
    """Returns the attributes that say how many operands each of the operand runs has; there is one result."""
    runs = {"operand": (operands, OPERAND_RUNS), "result": ((1,), RESULT_RUNS)}
    found = [
        f"{name}SegmentSizes = array<i32: {', '.join(map(str, [*first, *[0] * (total - len(first))]))}>"
        for name, (first, total) in runs.items()
    ]
    return ", ".join(found)


BRANCHES = """
func.func @main(%p: tensor<i1>, %x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %y = "lk.cond"(%p, %x) {then_function = "long", else_function = "short", SIZES}
    : (tensor<i1>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %y : tensor<8x8xf32>
}
func.func @long(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %w = "lk.weight"() {symbol = "v"} : () -> tensor<8x8xf32>
  %a = "lk.matmul"(%x, %w) {transpose_lhs = false, transpose_rhs = false, accumulate = f32}
    : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  %b = "lk.matmul"(%a, %w) {transpose_lhs = false, transpose_rhs = false, accumulate = f32}
    : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %b : tensor<8x8xf32>
}
func.func @short(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {
  %w = "lk.weight"() {symbol = "w"} : () -> tensor<8x8xf32>
  %a = "lk.matmul"(%x, %w) {transpose_lhs = false, transpose_rhs = false, accumulate = f32}
    : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
  return %a : tensor<8x8xf32>
}
""".replace("SIZES", segments(1, 1))


def test_a_branch_counts_as_the_longer_body_and_the_weights_of_both() -> None:
    found = cost(BRANCHES)
    assert found.flops == 2 * (2 * 8**3)
    assert found.weight_bytes == 2 * 4 * 8 * 8
    assert found.activation_bytes >= 2 * 4 * 8 * 8


def test_a_loop_counts_as_one_turn() -> None:
    call = "\n".join(BRANCHES.splitlines()[2:4])
    turn = f'%y = "lk.while"(%x) {{condition_function = "less", body_function = "long", {segments(1)}}}'
    text = BRANCHES.replace(call, f"  {turn}\n    : (tensor<8x8xf32>) -> tensor<8x8xf32>")
    condition = """
func.func @less(%x: tensor<8x8xf32>) -> tensor<i1> {
  %t = arith.constant dense<true> : tensor<i1>
  return %t : tensor<i1>
}
"""
    assert cost(text + condition).flops == 2 * (2 * 8**3)
