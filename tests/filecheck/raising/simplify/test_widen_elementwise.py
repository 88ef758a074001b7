"""widen-elementwise: 16-bit activations and ops with scalars in f32; sums of tensors and f32 stay."""

from __future__ import annotations

from tests.support.torch_text import Check, function


def test_bf16_activation_is_computed_in_f32(check: Check) -> None:
    text = function(
        "%x: @[2,3:bf16]",
        "@[2,3:bf16]",
        "\n  %r = torch.aten.silu %x : @[2,3:bf16] -> @[2,3:bf16]\n  return %r : @[2,3:bf16]",
    )
    check(
        text,
        "widen-elementwise",
        """
        // CHECK: %[[W:.*]] = torch.aten.to.dtype %{{.*}} -> !torch.vtensor<[2,3],f32>
        // CHECK: %[[S:.*]] = torch.aten.silu %[[W]] : !torch.vtensor<[2,3],f32> -> !torch.vtensor<[2,3],f32>
        // CHECK: %[[R:.*]] = torch.aten.to.dtype %[[S]], %{{.*}} -> !torch.vtensor<[2,3],bf16>
        // CHECK: return %[[R]]
        """,
    )


def test_sum_of_bf16_tensors_and_f32_activation_stay(check: Check) -> None:
    text = function(
        "%x: @[2,3:bf16], %y: @[2,3]",
        "@[2,3:bf16], @[2,3]",
        """
  %r = torch.aten.add.Tensor %x, %x, %i1 : @[2,3:bf16], @[2,3:bf16], !torch.int -> @[2,3:bf16]
  %s = torch.aten.silu %y : @[2,3] -> @[2,3]
  return %r, %s : @[2,3:bf16], @[2,3]""",
    )
    context = check(text, "widen-elementwise", "// CHECK-NOT: torch.aten.to.dtype\n// CHECK: return")
    assert not context.remarks
