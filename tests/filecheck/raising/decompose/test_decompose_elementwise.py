"""decompose-elementwise: PyTorch's constants; negation of integers in integers; floats are negated as they are."""

from __future__ import annotations

from tests.support.torch_text import Check, function


def test_tanh_gelu_has_the_right_constant(check: Check) -> None:
    text = function(
        "%x: @[2,3]",
        "@[2,3]",
        """
  %tanh = torch.constant.str "tanh"
  %r = torch.aten.gelu %x, %tanh : @[2,3], !torch.str -> @[2,3]
  return %r : @[2,3]""",
    )
    check(
        text,
        "decompose-elementwise",
        """
        // CHECK: torch.constant.float 4.471500e-02
        // CHECK: torch.constant.float 0.79788456080286541
        // CHECK: torch.aten.tanh
        // CHECK-NOT: torch.aten.gelu
        """,
    )


def test_integers_are_negated_in_integers(check: Check) -> None:
    text = function(
        "%x: @[4:si64], %y: @[4]",
        "@[4:si64], @[4]",
        """
  %r = torch.aten.neg %x : @[4:si64] -> @[4:si64]
  %s = torch.aten.neg %y : @[4] -> @[4]
  return %r, %s : @[4:si64], @[4]""",
    )
    check(
        text, "decompose-elementwise", "// CHECK: torch.aten.rsub.Scalar\n// CHECK: torch.aten.neg %{{.*}} : {{.*}}f32>"
    )


def test_large_whole_powers_are_no_products(check: Check) -> None:
    text = function(
        "%x: @[4]",
        "@[4], @[4]",
        """
  %i300 = torch.constant.int 300
  %r = torch.aten.pow.Tensor_Scalar %x, %i300 : @[4], !torch.int -> @[4]
  %s = torch.aten.pow.Tensor_Scalar %x, %i3 : @[4], !torch.int -> @[4]
  return %r, %s : @[4], @[4]""",
    )
    check(
        text,
        "decompose-elementwise",
        """
        // CHECK: torch.aten.pow.Tensor_Scalar %{{.*}}, %{{.*}} : !torch.vtensor<[4],f32>, !torch.float
        // CHECK: torch.aten.pow.Tensor_Scalar %{{.*}}, %{{.*}} : !torch.vtensor<[4],f32>, !torch.int
        """,
    )
