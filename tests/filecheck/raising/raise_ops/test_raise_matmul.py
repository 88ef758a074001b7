"""raise-matmul: transposes become flags, vectors become matrices; scalars that are computed stay."""

from __future__ import annotations

from tests.support.torch_text import Check, function


def test_linear_keeps_the_weight_as_it_is_stored(check: Check) -> None:
    text = function(
        "%x: @[2,3,4], %w: @[5,4], %b: @[5]",
        "@[2,3,5]",
        "\n  %r = torch.aten.linear %x, %w, %b : @[2,3,4], @[5,4], @[5] -> @[2,3,5]\n  return %r : @[2,3,5]",
    )
    check(
        text,
        "raise-matmul",
        """
        // CHECK: %[[M:.*]] = "lk.matmul"({{.*}}) {accumulate = f32, transpose_lhs = false, transpose_rhs = true}
        // CHECK: %[[T:.*]] = torch_c.from_builtin_tensor %[[M]]
        // CHECK: torch.aten.add.Tensor %[[T]]
        """,
    )


def test_transposes_of_operands_become_flags(check: Check) -> None:
    text = function(
        "%x: @[4,3], %y: @[2,5,4]",
        "@[2,3,5]",
        """
  %order = torch.prim.ListConstruct %i0, %i2, %i1 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %xt = torch.aten.t %x : @[4,3] -> @[3,4]
  %yt = torch.aten.permute %y, %order : @[2,5,4], !torch.list<int> -> @[2,4,5]
  %r = torch.aten.matmul %xt, %yt : @[3,4], @[2,4,5] -> @[2,3,5]
  return %r : @[2,3,5]""",
    )
    check(text, "raise-matmul", '// CHECK: "lk.matmul"({{.*}}transpose_lhs = true, transpose_rhs = true')


def test_permutation_of_batch_dims_is_not_looked_through(check: Check) -> None:
    text = function(
        "%x: @[2,3,4], %y: @[4,2,5]",
        "@[2,3,5]",
        """
  %order = torch.prim.ListConstruct %i1, %i0, %i2 : (!torch.int, !torch.int, !torch.int) -> !torch.list<int>
  %yt = torch.aten.permute %y, %order : @[4,2,5], !torch.list<int> -> @[2,4,5]
  %r = torch.aten.bmm %x, %yt : @[2,3,4], @[2,4,5] -> @[2,3,5]
  return %r : @[2,3,5]""",
    )
    check(text, "raise-matmul", '// CHECK: torch.aten.permute\n// CHECK: "lk.matmul"({{.*}}transpose_rhs = false')


def test_bf16_accumulates_in_f32(check: Check) -> None:
    text = function(
        "%x: @[3,4:bf16], %y: @[4,5:bf16]",
        "@[3,5:bf16]",
        "\n  %r = torch.aten.mm %x, %y : @[3,4:bf16], @[4,5:bf16] -> @[3,5:bf16]\n  return %r : @[3,5:bf16]",
    )
    check(text, "raise-matmul", '// CHECK: "lk.matmul"({{.*}}accumulate = f32{{.*}} -> tensor<3x5xbf16>')


def test_scale_that_is_not_constant_stays_and_says_so(check: Check) -> None:
    text = function(
        "%b: @[5], %x: @[3,4], %y: @[4,5], %alpha: !torch.float",
        "@[3,5]",
        """
  %r = torch.aten.addmm %b, %x, %y, %i1, %alpha : @[5], @[3,4], @[4,5], !torch.int, !torch.float -> @[3,5]
  return %r : @[3,5]""",
    )
    context = check(text, "raise-matmul", "// CHECK: torch.aten.addmm")
    assert "a scalar argument is not a constant" in context.remarks[0]
