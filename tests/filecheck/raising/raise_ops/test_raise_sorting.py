"""raise-sorting: topk, sort and argsort; a computed k stays."""

from __future__ import annotations

from tests.support.torch_text import Check, function


def test_topk_and_sort(check: Check) -> None:
    text = function(
        "%x: @[2,5]",
        "@[2,2:si64], @[2,5:si64]",
        """
  %v, %i = torch.aten.topk %x, %i2, %m1, %false, %true
      : @[2,5], !torch.int, !torch.int, !torch.bool, !torch.bool -> @[2,2], @[2,2:si64]
  %a = torch.aten.argsort %x, %i0, %true : @[2,5], !torch.int, !torch.bool -> @[2,5:si64]
  return %i, %a : @[2,2:si64], @[2,5:si64]""",
    )
    check(
        text,
        "raise-sorting",
        """
        // CHECK: "lk.topk"({{.*}}) {axis = 1 : i64, k = 2 : i64, largest = false, sorted = true}
        // CHECK: %{{.*}}:2 = "lk.sort"({{.*}}) {axis = 0 : i64, descending = true, stable = false}
        """,
    )


def test_bytes_are_ordered_with_a_sign(check: Check) -> None:
    text = function(
        "%x: @[2,5:ui8]",
        "@[2,5:ui8], @[2,5:si64]",
        """
  %v, %i = torch.aten.sort %x, %m1, %false
      : @[2,5:ui8], !torch.int, !torch.bool -> @[2,5:ui8], @[2,5:si64]
  return %v, %i : @[2,5:ui8], @[2,5:si64]""",
    )
    check(
        text,
        "raise-sorting",
        """
        // CHECK: torch.aten.to.dtype {{.*}} -> !torch.vtensor<[2,5],si16>
        // CHECK: "lk.sort"({{.*}}stable = false} : (tensor<2x5xi16>)
        // CHECK: torch.aten.to.dtype {{.*}} -> !torch.vtensor<[2,5],ui8>
        """,
    )


def test_computed_k_stays_and_says_so(check: Check) -> None:
    text = function(
        "%x: @[2,5], %k: !torch.int",
        "@[2,?]",
        """
  %v, %i = torch.aten.topk %x, %k, %m1, %false, %true
      : @[2,5], !torch.int, !torch.int, !torch.bool, !torch.bool -> @[2,?], @[2,?:si64]
  return %v : @[2,?]""",
    )
    context = check(text, "raise-sorting", '// CHECK: torch.aten.topk\n// CHECK-NOT: "lk.topk"')
    assert "an int argument is not a constant" in context.remarks[0]
