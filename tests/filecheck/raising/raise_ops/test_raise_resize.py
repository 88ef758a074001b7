"""raise-resize: coordinates of each mode; a factor counts only where it says more than the sizes."""

from __future__ import annotations

from tests.support.torch_text import Check, function


def bilinear(size: str, factors: str, result: str) -> str:
    return function(
        "%x: @[1,3,4,5]",
        result,
        f"""
  %f = torch.constant.float 1.7
  %t = torch.constant.float 2.0
  %i7 = torch.constant.int 7
  %i9 = torch.constant.int 9
  %size = torch.prim.ListConstruct %i7, %i9 : (!torch.int, !torch.int) -> !torch.list<int>
  %same = torch.prim.ListConstruct %t, %t : (!torch.float, !torch.float) -> !torch.list<float>
  %odd = torch.prim.ListConstruct %f, %f : (!torch.float, !torch.float) -> !torch.list<float>
  %r = torch.aten.upsample_bilinear2d.vec %x, {size}, %false, {factors}
      : @[1,3,4,5], {"!torch.list<int>" if size != "%none" else "!torch.none"}, !torch.bool,
        {"!torch.list<float>" if factors != "%none" else "!torch.none"} -> {result}
  return %r : {result}""",
    )


def test_size_and_whole_factor_need_no_scales(check: Check) -> None:
    expected = '// CHECK: "lk.resize"({{.*}}coordinates = "half_pixel", mode = "linear"{{.*}}scales = array<f64>'
    check(bilinear("%size", "%none", "@[1,3,7,9]"), "raise-resize", expected)
    check(bilinear("%none", "%same", "@[1,3,8,10]"), "raise-resize", expected)


def test_odd_factor_is_kept(check: Check) -> None:
    # floor(4 * 1.7) = 6 and floor(5 * 1.7) = 8: PyTorch still steps by 1 / 1.7.
    check(
        bilinear("%none", "%odd", "@[1,3,6,8]"),
        "raise-resize",
        '// CHECK: "lk.resize"({{.*}}scales = array<f64: 1.7{{.*}}, 1.7{{.*}}>, size = array<i64: 6, 8>',
    )


def test_nearest_rounds_down_and_dynamic_sizes_stay(check: Check) -> None:
    def nearest(rows: str) -> str:
        return function(
            f"%x: @[1,3,{rows},5]",
            f"@[1,3,{rows},10]",
            f"""
  %t = torch.constant.float 2.0
  %o = torch.constant.float 1.0
  %f = torch.prim.ListConstruct %o, %t : (!torch.float, !torch.float) -> !torch.list<float>
  %r = torch.aten.upsample_nearest2d.vec %x, %none, %f
      : @[1,3,{rows},5], !torch.none, !torch.list<float> -> @[1,3,{rows},10]
  return %r : @[1,3,{rows},10]""",
        )

    check(
        nearest("4"),
        "raise-resize",
        '// CHECK: "lk.resize"({{.*}}coordinates = "asymmetric", mode = "nearest", nearest_rounding = "floor"',
    )
    context = check(nearest("?"), "raise-resize", "// CHECK: torch.aten.upsample_nearest2d.vec")
    assert "dim 2 of" in context.remarks[0]
